"""Follows the storages of one device operator by operator, and keeps the books equal to the
allocator's counters: what no storage explains is a block of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic.sources.accelerator.backend import Counters
from gpumem_magic.sources.collected import Deaths, Row, events_of, tensors_in
from gpumem_magic.sources.cuda.history import Columns
from gpumem_magic.sources.modes import leave_mode
from gpumem_magic.sources.stacks.callstacks import CallStacks
from gpumem_magic.values.recording import Action, LiveBlocks

SLACK = 1 << 20
"""What an allocator gives on top of a storage's size at most: kSmallSize of PyTorch's caching
allocators, the largest remainder that they do not split off."""

_NO_HANDLER = torch._C._disabled_torch_dispatch_impl


class StorageLog(TorchDispatchMode):
    """The storages on a device, for good, and between `begin` and `end` every change of them.

    A storage's address is its identity in this process. counters: asked after every operator.
    failed: the number of rows, the stack and the name of the operator that raised last.
    """

    supports_higher_order_operators = True

    def __init__(self, kind: str, index: int, counters: Callable[[], Counters]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind, self.index = kind, index
        self.rows: list[Row] = []
        self.failed: tuple[int, int, str] | None = None
        self.elsewhere = False
        self._counters = counters
        self._sizes: dict[int, int] = {}
        self._deaths = Deaths(self._died)
        self._unseen: list[tuple[int, int]] = []  # blocks of what no storage explains
        self._made = 0
        self._now = Counters(0)
        self._level = 0
        self._stacks = CallStacks()
        self._clock: float | None = None
        self._fault: Exception | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would wrap the handler and import its compiler at the first operator."""
        return False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> dict[int, int]:
        """Bytes of each storage that is followed, by address."""
        return dict(self._sizes)

    def identities(self) -> dict[int, object]:
        """What stands at each address: an object of its own for each storage."""
        return dict(self._deaths)

    def adopt(self, storage: Any) -> int | None:
        """The address of a storage, which is followed from here on; None where it is not here."""
        if not self._is_here(storage.device) or not _bytes(storage):
            return None
        key: int = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self._deaths.expect(storage)
        return key

    def locate(self, tensor: torch.Tensor) -> int | None:
        """The address of a tensor's storage, see `find`."""
        try:
            return self.find(tensor.untyped_storage()) if self._is_here(tensor.device) else None
        except (RuntimeError, NotImplementedError):  # sparse, fake and functional tensors have none
            return None

    def find(self, storage: Any) -> int | None:
        """The address of a storage here. Before `begin` it is followed from here on."""
        if self._clock is None:
            return self.adopt(storage)
        return storage._cdata if storage._cdata in self._sizes else None

    def begin(self) -> LiveBlocks:
        """Record from here on; what is there. What no storage explains of it is the last block."""
        self._deaths.catch_up()
        self.rows, self.failed, self.elsewhere, self._fault = [], None, False, None
        self._stacks = CallStacks()
        self._stacks.begin(sys._getframe(1))
        self._now = self._counters()
        self._level = self._now.allocated
        rest = self._level - sum(self._sizes.values())
        self._unseen = [(self._new_address(), rest)] if rest > 0 else []
        address, size = np.array([*self._sizes.items(), *self._unseen], np.int64).reshape(-1, 2).T
        self._clock = time.perf_counter()
        self.__enter__()  # type: ignore[no-untyped-call]
        return LiveBlocks(address, size, size)

    def end(self) -> float:
        """Settle the books and stop recording; the seconds since `begin`, 0 if that was not."""
        if self._clock is None:
            return 0.0
        seconds = time.perf_counter() - self._clock
        modes = _python_dispatch
        leave_mode(self, modes._get_current_dispatch_mode_stack(), modes)
        try:
            self._settle([])
        finally:
            self._clock = None
            self._stacks.end()
        return seconds

    def columns(self) -> Columns:
        """The events that were recorded. Raises what recording them has raised, if it did."""
        if self._fault is not None:
            raise self._fault
        stacks = self._stacks.stacks()
        events = replace(events_of(self.rows, stacks), graph=None)
        return Columns(events, stacks, self._level, frozenset(self._sizes), 0, None, None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if types and any(kind.__torch_dispatch__ is not _NO_HANDLER for kind in types):
            return NotImplemented  # a subclass that wraps tensors: its own operators are seen
        try:
            out = func(*args, **(kwargs or {}))
        except RuntimeError:
            stack = self._stacks.capture(sys._getframe())
            self.failed = len(self.rows), stack, str(getattr(func, "overloadpacket", func))
            raise
        if getattr(func, "is_view", False):
            return out
        try:
            self._settle([storage for tensor in tensors_in(out) for storage in self._new(tensor)])
        except Exception as error:  # in the midst of the user's code: told at the end
            self._fault = error
        return out

    def _is_here(self, device: torch.device) -> bool:
        if device.type != self.kind:
            return False
        here = device.index in (None, self.index)
        self.elsewhere = self.elsewhere or not here
        return here

    def _new(self, tensor: torch.Tensor) -> Iterator[Any]:
        """The tensor's storage, if it is on the device and was not known."""
        if self._is_here(tensor.device):
            try:
                storage = tensor.untyped_storage()
            except (RuntimeError, NotImplementedError):
                return
            if storage._cdata not in self._sizes and _bytes(storage):
                yield storage

    def _settle(self, born: list[Any]) -> None:
        """Enter what an operator has made, and whatever else the counters say has changed."""
        now, before = self._counters(), self._now
        self._now = now
        top = max(self._level, now.allocated)
        if now.peak is not None and now.peak > (before.peak or 0) and now.peak > top:
            self._passing(now.peak - self._level)
        if now.reserved is not None and now.reserved != before.reserved:
            change = now.reserved - (before.reserved or 0)
            self._log(Action.SEGMENT_ALLOC if change > 0 else Action.SEGMENT_FREE, 0, abs(change))
        asked = {key: self._sizes[key] for storage in born if (key := self.adopt(storage))}
        rest = now.allocated - self._level - sum(asked.values())
        if asked and abs(rest) < SLACK:
            largest = max(asked, key=lambda key: asked[key])
            self._sizes[largest] = max(1, asked[largest] + rest)
            rest = now.allocated - self._level - sum(self._sizes[key] for key in asked)
        self._vanish(max(0, -rest))
        for key, requested in asked.items():
            self._log(Action.ALLOC, key, self._sizes[key], requested)
        if rest > 0:
            self._appear(rest)

    def _passing(self, size: int) -> None:
        """What an operator took and gave back."""
        address = self._new_address()
        self._log(Action.ALLOC, address, size)
        self._log(Action.FREE, address, size)

    def _appear(self, size: int) -> None:
        self._unseen.append((self._new_address(), size))
        self._log(Action.ALLOC, *self._unseen[-1])

    def _vanish(self, size: int) -> None:
        """Take so much from what no storage explains, the newest first; and if that is not enough,
        from what nobody knows."""
        while size and self._unseen:
            address, held = self._unseen.pop()
            self._log(Action.FREE, address, held)
            if held > size:
                self._appear(held - size)
            size = max(0, size - held)
        if size:
            self._log(Action.FREE, self._new_address(), size)

    def _died(self, key: int) -> None:
        size = self._sizes.pop(key)
        if self._clock is not None:
            self._log(Action.FREE, key, size)

    def _new_address(self) -> int:
        """One that no storage has."""
        self._made += 1
        return -self._made

    def _log(self, action: Action, address: int, size: int, requested: int | None = None) -> None:
        self._level += size * ((action is Action.ALLOC) - (action is Action.FREE))
        assert self._clock is not None
        self.rows.append(
            (
                action,
                address,
                size,
                size if requested is None else requested,
                self._stacks.capture(sys._getframe()),
                torch._C._current_graph_task_id() != -1,
                time.perf_counter() - self._clock,
                False,
            )
        )


def _bytes(storage: Any) -> int:
    """Bytes of a storage; 0 where a symbol stands for them: such a storage has no memory."""
    size = storage.nbytes()
    return size if type(size) is int else 0
