"""What `torch.cuda.memory._record_memory_history` keeps of the card's events, and the snapshots of
it, in the format of torch/csrc/cuda/memory_snapshot.cpp."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import torch

from gpumem_magic.allocator.segments import Listener
from gpumem_magic.allocator.settings import UNLIMITED, VARIABLES, Settings
from gpumem_magic.allocator.snapshot import Plain, plain_segment
from gpumem_magic.sources.stacks.callstacks import CallStacks
from gpumem_magic.values.recording import Action
from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.storages import Storages

_CONTEXTS = (None, "state", "alloc", "all")
"""Whose stacks are kept: nobody's; those of blocks; of what allocates too; of what frees too."""

_ACTIONS = ["free_requested" if action is Action.FREE else action.name.lower() for action in Action]
_SNAPSHOT = "snapshot"
_NO_STACK = -1


class MemoryHistory:
    """The recording that user code switches on and off itself.

    Stacks hold Python frames only, whatever `stacks` asks for: below them is no C++ of CUDA's.
    """

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._rows: deque[tuple[str, int, int, int, int, int, str]] = deque()
        self._stacks = CallStacks()
        self._born: dict[int, tuple[int, int]] = {}  # stack and stream of each block that lives
        self._context: int | None = None  # an index of _CONTEXTS; None: nothing is recorded
        self._skipped: frozenset[str] = frozenset()
        self._listener: Listener | None = None
        self.metadata = ""

    def record(
        self,
        enabled: str | None,
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        clear_history: bool = False,
        *others: Any,
    ) -> None:
        """Switch recording to "all" or "state" (of what lives), or off, which drops the history.

        others: contexts of compilers and annotations, which are not kept, and actions to skip.
        """
        _check("state", enabled, (None, "state", "all"), "'state', 'all', or None")
        _check("context", context, _CONTEXTS, "'state', 'alloc', 'all', or None")
        _check("stacks", stacks, ("python", "all"), "'python', or 'all'")
        most = max(1, max_entries) if enabled == "all" else 1  # "state" has a ring of one entry
        keeps = enabled is not None and not clear_history
        self._rows = deque(self._rows if keeps else (), maxlen=most)
        self._context = None if enabled is None else _CONTEXTS.index(context)
        self._skipped = frozenset(*(one for one in others if isinstance(one, list)))
        if self._listener is None and enabled is not None:
            self._listener = self._hear
            self._storages.listen(self._listener)

    def record_as_before(
        self,
        enabled: bool,
        record_context: bool = True,
        max_entries: int = 1,
        record_all_contexts: bool = False,
        cpp: bool = False,
        *others: Any,
    ) -> None:
        """`record` as it was first called."""
        context = "all" if record_all_contexts else "state" if record_context else None
        self.record("all" if enabled else None, context, "all", max_entries, *others)

    def install(self, patches: Patches) -> None:
        """Let torch.cuda.memory ask here."""
        for name, function in {
            "record_memory_history": self.record,
            "record_memory_history_legacy": self.record_as_before,
            "memorySnapshot": self.snapshot,
            "isHistoryEnabled": lambda: self._context is not None,
            "allocationTraceback": self.stack_of,
            "setMemoryMetadata": lambda text: setattr(self, "metadata", text),
            "getMemoryMetadata": lambda: self.metadata,
            "attach_out_of_memory_observer": self._storages.oom_observers.append,
        }.items():
            patches.set(torch._C, f"_cuda_{name}", function)

    def end(self) -> None:
        """Forget everything, and all who wanted to hear of refusals."""
        if self._listener is not None:
            self._storages.unlisten(self._listener)
            self._listener = None
        self._storages.oom_observers.clear()
        self.record(None)
        self._stacks = CallStacks()
        self._born.clear()
        self.metadata = ""

    def stack_of(self, tensor_address: int) -> list[Plain] | None:
        """Where the block of the storage at that address was allocated, if that was recorded."""
        living = (one for one in self._storages.living() if one.data_ptr() == tensor_address)
        storage = next(living, None)
        address = 0 if storage is None else self._storages.addresses.get(storage._cdata, 0)
        stack, _ = self._born.get(address, (_NO_STACK, 0))
        return None if stack == _NO_STACK else self._frames({}, stack)

    def snapshot(self, request: tuple[int, int, bool] | None = None) -> Plain:
        """What `torch.cuda.memory._snapshot()` gives; the recording notes that it was taken.

        request: a pool, of which there is one, and whether the events are wanted.
        """
        include_traces = request is None or request[-1]
        allocator, known = self._storages.allocator, dict[int, list[Plain]]()

        def of_block(address: int) -> list[Plain]:
            stack, _ = self._born.get(address, (_NO_STACK, 0))
            return [] if stack == _NO_STACK else self._frames(known, stack)

        taken = {
            "segments": [plain_segment(one, 0, [], of_block) for one in allocator.snapshot()],
            "device_traces": [list(self._entries(known)) if include_traces else []],
            "allocator_settings": _settings(allocator.settings),
            "external_annotations": [],
        }
        if self._context is not None and _SNAPSHOT not in self._skipped:
            self._note(_SNAPSHOT, 0, allocator.allocated, 0, _NO_STACK)
        return taken

    def _hear(self, action: int, address: int, size: int, requested: int) -> None:
        context, stack, stream = self._context, _NO_STACK, self._storages.stream
        is_freed = action in (Action.FREE, Action.FREE_COMPLETED)
        if is_freed:
            stack, stream = self._born.get(address, (stack, 0))
        if context and (not is_freed or _CONTEXTS[context] == "all"):
            stack = self._stacks.capture(sys._getframe(1))
        if action == Action.ALLOC:
            self._born[address] = stack, stream
        elif action == Action.FREE_COMPLETED:
            self._born.pop(address, None)
        name = _ACTIONS[action]
        if context is None or name in self._skipped:
            return
        place = self._storages.allocator.driver.free if action == Action.OOM else address
        shown = stack if context >= _CONTEXTS.index("alloc") else _NO_STACK
        self._note(name, place, requested, stream, shown)

    def _note(self, action: str, place: int, size: int, stream: int, stack: int) -> None:
        now = time.time_ns() // 1000
        self._rows.append((action, place, size, stream, now, stack, self.metadata))

    def _entries(self, known: dict[int, list[Plain]]) -> Iterator[Plain]:
        for action, place, size, stream, now, stack, metadata in self._rows:
            entry: Plain = {
                "action": action,
                "device_free" if action == "oom" else "addr": place,
                "size": size,
                "stream": stream,
                "time_us": now,
                "compile_context": "N/A",
                "user_metadata": metadata,
            }
            yield entry if stack == _NO_STACK else entry | {"frames": self._frames(known, stack)}

    def _frames(self, known: dict[int, list[Plain]], stack: int) -> list[Plain]:
        """The stack of that number: one object for all that have it, which a pickle has once."""
        if stack not in known:
            known[stack] = [
                {"name": frame.function, "filename": frame.filename, "line": frame.line}
                for frame in self._stacks.resolve(stack)
            ]
        return known[stack]


def _check(what: str, value: str | None, allowed: Collection[str | None], words: str) -> None:
    if value not in allowed:
        raise RuntimeError(f"expected {what} to be {words}")  # torch's words


def _settings(settings: Settings) -> Plain:
    most = settings.max_split_size
    divisions = enumerate(settings.roundup_power2_divisions)
    return {
        "PYTORCH_CUDA_ALLOC_CONF": next(filter(None, map(os.environ.get, VARIABLES)), ""),
        "max_split_size": -1 if most == UNLIMITED else most,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {str(1 << power): count for power, count in divisions},
    }
