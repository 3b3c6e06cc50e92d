"""Which storages are "on the GPU", and the life of each: birth and death become allocator calls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import getpid as _process_id
from typing import Any

import torch

from gpumem_magic.allocator.caching import AllocationFailed, CachingAllocator
from gpumem_magic.allocator.oom_message import Refusal
from gpumem_magic.allocator.segments import Listener
from gpumem_magic.allocator.settings import Settings
from gpumem_magic.sources.collected import Deaths
from gpumem_magic.sources.objects.ownership import sparse_parts
from gpumem_magic.values.recording import Action

storage_id: Callable[[torch.Tensor], int] = getattr(
    torch._C, "_storage_id", lambda tensor: tensor.untyped_storage()._cdata
)
"""The identity of a tensor's storage, the same for all its views. Not seen by function modes."""

_acquire = type(threading.Lock()).acquire
"""The lock's own, where a dry run has put another in its place: who holds ours soon lets it go."""

ON_DEVICE_WITHOUT_BLOCK = 0
"""The address of an empty storage: it is on the device but takes no block there, as in CUDA."""

Step = tuple[bool | None, int]
"""Whether a block is taken, given back, or neither; its bytes, or its number of those taken."""

_BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
    "use the 'spawn' start method"
)
"""Words of torch.cuda._lazy_init."""


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, on the host, which from here on counts as page-locked memory."""
    tensor.untyped_storage()._gpumem_pinned = True  # type: ignore[attr-defined]
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether `pinned` has had the tensor's storage."""
    return hasattr(tensor.untyped_storage(), "_gpumem_pinned")


class Storages:
    """The storages on one device, each with its block in the allocator.

    A storage can die at any moment, also inside the allocator's own code when the garbage collector
    runs there or in another thread; its block waits until the allocator is free again.
    capturing: while a CUDA graph is captured, which stream of its pool stands for a stream.
    on_refusal: called as soon as memory has run out, before anything is made of that.
    fault: what the allocator has raised beside that, a defect that the user's code is not to meet.
    """

    def __init__(self, allocator: CachingAllocator, reads_settings: bool = False) -> None:
        self.allocator = allocator
        self._reads_settings = reads_settings
        self.stream = 0
        self.capturing: Callable[[int], int] | None = None
        self.refused_segment: int | None = None
        self.addresses: dict[int, int] = {}
        self._deaths = Deaths(self._died)
        self.catch_up = self._deaths.catch_up
        self._dead: deque[int] = deque()
        self._lock = threading.Lock()
        self._process = _process_id()
        self._listeners: list[Listener] = []
        self.on_placed: Callable[[torch.Tensor, int], None] | None = None
        self.oom_observers: list[Callable[[int, int, int, int], object]] = []
        self.on_refusal: Callable[[], None] | None = None
        self.traced: tuple[type, ...] = ()
        self.fault: Exception | None = None

    def __contains__(self, tensor: torch.Tensor) -> bool:
        try:
            return storage_id(tensor) in self.addresses or isinstance(tensor, self.traced)
        except (NotImplementedError, RuntimeError):  # it has no storage of its own
            inner = torch._C._functorch
            if inner.is_functorch_wrapped_tensor(tensor):  # within vmap and its like
                return inner.get_unwrapped(tensor) in self
            return any(part in self for _, part in sparse_parts(torch, tensor))

    def listen(self, listener: Listener) -> None:
        """Let `listener` be told of every event of the allocator, after those before it."""
        self._listeners.append(listener)
        self._tell_listeners()

    def unlisten(self, listener: Listener) -> None:
        """Tell `listener` no more, if it was told."""
        self._listeners = [one for one in self._listeners if one is not listener]
        self._tell_listeners()

    def _tell_listeners(self) -> None:
        """Set up the allocator, which knows one listener, for those there are now."""
        listeners = tuple(self._listeners)

        def tell(action: Action, address: int, size: int, requested: int) -> None:
            for listener in listeners:
                listener(action, address, size, requested)

        only = listeners[0] if listeners else None
        self.allocator.on_event = tell if len(listeners) > 1 else only

    def locate(self, tensor: torch.Tensor) -> int | None:
        """The address of the tensor's block; None where it has none on this device, or several, as
        sparse tensors have."""
        has_one = torch._C._has_storage(tensor)
        return self.addresses.get(storage_id(tensor)) or None if has_one else None

    def place(self, tensor: torch.Tensor, address: int | None = None) -> None:
        """Put the tensor's storage on the device, into the block at `address` or a new one; those
        of a sparse tensor's parts.

        Raises torch.OutOfMemoryError. Does nothing where it is there already, or only traced.
        """
        if isinstance(tensor, self.traced):
            return
        if tensor.layout is not torch.strided:
            for _, part in sparse_parts(torch, tensor):
                self.place(part)
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.addresses:
            return
        if address is None:
            address = self.malloc(storage.nbytes())
        self.addresses[key] = address
        self._deaths.expect(storage)
        if self.on_placed is not None and address:
            self.on_placed(tensor, address)

    def move(self, allocator: CachingAllocator, moved: Mapping[int, int]) -> None:
        """Go over to another allocator; moved: the address there of each block here."""
        self.allocator = allocator
        self._tell_listeners()
        self._process = _process_id()
        self._lock = threading.Lock()  # another thread of the process before may have held it
        self._dead.clear()
        self.addresses = {key: moved.get(at, at) for key, at in self.addresses.items()}

    def resized(self, tensor: torch.Tensor) -> None:
        """Follow a storage that an operator has made larger: a new block, then the old one goes."""
        storage = tensor.untyped_storage()
        address = self.addresses[storage._cdata]
        if storage.nbytes() > (self.allocator.size_of(address) if address else 0):
            self.reallocate(storage, storage.nbytes())

    def reallocate(self, storage: torch.UntypedStorage, size: int) -> None:
        """Take a new block for a storage, then give the old one back: also where it becomes
        smaller, as resize_bytes_cuda of aten/src/ATen/native/cuda/Resize.cpp. For 0 bytes it has
        none."""
        address = self.addresses[storage._cdata]
        self.addresses[storage._cdata] = self.malloc(size)
        self.release(address)

    @property
    def is_in_bad_fork(self) -> bool:
        """Whether this process is a copy of the one that uses the device, as CUDA forbids it."""
        return _process_id() != self._process

    def check_process(self) -> None:
        """Raise RuntimeError, as CUDA does, in a process that was forked from the device's."""
        if self.is_in_bad_fork:
            raise RuntimeError(_BAD_FORK)

    def malloc(self, size: int) -> int:
        """The address of a new block of `size` bytes. Raises torch.OutOfMemoryError, and
        RuntimeError in a process that was forked from the device's."""
        self.check_process()
        if size == 0:
            return ON_DEVICE_WITHOUT_BLOCK
        if self._reads_settings:
            self.use()
        _acquire(self._lock)
        try:
            capturing, stream = self.capturing, self.stream
            return self.allocator.malloc(size, capturing(stream) if capturing else stream)
        except AllocationFailed as failed:
            refusal = failed.refusal
            self.refused_segment = refusal.segment
        except Exception as error:
            self.fault = error
            return ON_DEVICE_WITHOUT_BLOCK
        finally:
            self._lock.release()
            if self._dead:
                self._bury()
        # Out here it has no __context__, whose traceback would keep tensors of its frames alive.
        raise self._out_of_memory(refusal)

    def repeat(self, steps: Iterable[Step], taken: list[int]) -> None:
        """Take and give back blocks step by step; `taken`: gets the addresses. What dies in between
        is freed before the next step. Raises torch.OutOfMemoryError."""
        malloc, free, dead = self.allocator.malloc, self.allocator.free, self._dead
        _acquire(self._lock)
        try:
            for takes, what in steps:
                if takes:
                    taken.append(malloc(what, self.stream))
                elif takes is not None:
                    free(taken[what])
                while dead:
                    free(dead.popleft())
            return
        except AllocationFailed as failed:
            refusal = failed.refusal
            self.refused_segment = refusal.segment
        finally:
            self._lock.release()
            if dead:
                self._bury()
        raise self._out_of_memory(refusal)

    def _out_of_memory(self, refusal: Refusal) -> torch.OutOfMemoryError:
        """The error, of which observers are told."""
        limit = refusal.total if refusal.allowed is None else refusal.allowed
        for observer in self.oom_observers:
            observer(refusal.device, refusal.segment, limit, refusal.free)
        return torch.OutOfMemoryError(refusal.text())

    def use(self) -> None:
        """Read the allocator's settings from the environment when the device is first used, as
        PyTorch does: a cell may have set them since `import torch`. Raises ValueError for what
        PyTorch rejects."""
        if self._reads_settings:
            self.allocator.start_with(Settings.from_environment())
            self._reads_settings = False

    def release(self, address: int) -> None:
        """Give the block at `address` back."""
        if address:
            self._dead.append(address)
            self._bury()

    def borrow(self, *sizes: int) -> None:
        """Take blocks of so many bytes, and give them back at once."""
        with Blocks(self) as blocks:
            blocks.take(*sizes)

    def _died(self, key: int) -> None:
        if address := self.addresses.pop(key):
            self._dead.append(address)
            self._bury()

    def _bury(self) -> None:
        """Free what has died, unless the allocator is at work: who works there does it then."""
        while self._dead and _acquire(self._lock, blocking=False):
            try:
                self._free_dead()
            finally:
                self._lock.release()

    def _free_dead(self) -> None:
        try:
            while self._dead:
                self.allocator.free(self._dead.popleft())
        except Exception as error:
            self.fault = error

    def placements(self) -> dict[int, object]:
        """What stands at each address: an object of its own for each block ever placed there."""
        deaths, addresses = self._deaths, self.addresses
        return {address: deaths[key] for key, address in addresses.items() if key in deaths}

    def living(self) -> Iterator[Any]:
        """The storages that are alive on the device now."""
        return (
            storage for death in list(self._deaths.values()) if (storage := death()) is not None
        )


class Blocks:
    """Blocks that are given back, the last first, when the `with` statement ends."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._addresses: list[int] = []

    def __enter__(self) -> Blocks:
        return self

    def __exit__(self, *error: object) -> None:
        while self._addresses:
            self._storages.release(self._addresses.pop())

    def take(self, *sizes: int) -> None:
        """Blocks of so many bytes, none for 0 and in a trace. Raises torch.OutOfMemoryError."""
        for size in () if self._storages.traced else sizes:
            self._addresses.append(self._storages.malloc(size))
