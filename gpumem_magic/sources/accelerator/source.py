"""Measures cells on an accelerator whose allocator keeps no history: counters before, at the peak
and after, and lines from the storages that operators make."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpumem_magic.sources.accelerator.backend import Backend
from gpumem_magic.sources.accelerator.storages import StorageLog
from gpumem_magic.sources.cuda.history import paint
from gpumem_magic.sources.cuda.memory import Recorded, memory_by_tensors
from gpumem_magic.sources.cuda.regions import Regions
from gpumem_magic.sources.device_memory import DeviceMemory
from gpumem_magic.sources.failures import one_line, out_of_memory, read_failure
from gpumem_magic.sources.interrupts import Interrupts
from gpumem_magic.sources.objects.allocation_sites import Remembered, with_categories
from gpumem_magic.sources.objects.labels import START, OwnerWatch, label_owners
from gpumem_magic.sources.stacks.callsite import error_line
from gpumem_magic.values.findings import Level, Trace
from gpumem_magic.values.recording import (
    Cell,
    Device,
    Failure,
    LiveBlocks,
    Phase,
    Reading,
    Recording,
)


@dataclass(frozen=True, slots=True)
class _Begun:
    watch: OwnerWatch
    started: float
    before: Reading
    initial: LiveBlocks


class AcceleratorSource:
    """Measures cells on the device of an accelerator that is current when the first one begins."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._index = backend.current()
        self._log = StorageLog(backend.kind, self._index, lambda: backend.counters(self._index))
        self._regions = Regions(self._log.__len__, self._look)
        self._interrupts = Interrupts()
        self._begun: _Begun | None = None
        self._remembered = Remembered(self._log.identities)

    @property
    def device(self) -> Device:
        """The accelerator."""
        return self._backend.describe(self._index)

    def enter(self) -> None:
        """Nothing: the user's code runs on the device as it is."""

    def leave(self) -> None:
        """Nothing, as for `enter`."""

    def level(self) -> Level:
        """What is allocated, reserved and used now, as far as PyTorch tells."""
        reading = self._backend.read(self._index)
        return Level(reading.allocated, reading.reserved, reading.device_used)

    def start(self, namespaces: Callable[[], Mapping[str, Any]]) -> None:
        """Begin recording; `namespaces()` gives the names that may own tensors."""
        watch = OwnerWatch(namespaces, self._log.__len__, self._log.locate)
        watch.look(START, lambda: 0)
        self._interrupts.install()
        before = self._backend.read(self._index)
        initial = with_categories(self._log.begin(), self._remembered.categories())
        self._begun = _Begun(watch, time.time(), before, initial)
        self._regions.install()

    def stop(
        self, cell: Cell, cells: Mapping[str, Cell], error: BaseException | None
    ) -> tuple[Recording, ...]:
        """End recording; one Recording, of the device."""
        begun = self._begun
        if begun is None:
            raise RuntimeError("nothing is being recorded: start comes first")
        try:
            self._regions.remove()
            begun.watch.look("end", self._log.__len__, error=error)
            begun.watch.read_names(error)
        finally:
            seconds = self._end()
        columns = paint(self._log.columns(), self._regions.spans)
        recording = Recording(
            device=self.device,
            cell=cell,
            started=begun.started,
            seconds=seconds,
            before=begun.before,
            after=self._backend.read(self._index),
            events=columns.events,
            stacks=columns.stacks,
            initial=begun.initial,
            labels=label_owners(begun.watch.seen, columns.events, begun.initial),
            cells=cells,
            failure=self._failure(error, len(columns.events)),
            error=None if error is None else one_line(error),
            error_line=error_line(error, cell, cells),
            notes=self._notes(begun.watch),
            names=begun.watch.names,
            modules=begun.watch.modules(columns.stacks),
        )
        return (recording,)

    def remember(self, recording: Recording, trace: Trace) -> None:
        """Keep what `trace` tells of the storages that stay, as long as they live."""
        self._remembered.take(recording, trace)

    def born_in(self, cell: Cell) -> frozenset[int]:
        """See Source: addresses of storages."""
        return self._remembered.born_in(cell)

    def memory(self) -> DeviceMemory:
        """What tensors tell of the device: each storage that Python comes to is one block."""
        sites = self._remembered.sites()
        stepped = self._regions.last is Phase.OPTIMIZER if sites else None
        recorded = Recorded(self._remembered.categories(), sites, {}, stepped)
        why = f"PyTorch's allocator for {self._backend.kind.upper()} keeps no list of its blocks"
        reading, log = self._backend.read(self._index), self._log
        return memory_by_tensors(self.device, reading, recorded, why, log.find, log.sizes)

    def close(self) -> None:
        """Give up a recording that was not stopped."""
        self._regions.remove()
        self._end()

    def _end(self) -> float:
        self._begun = None
        try:
            return self._log.end()
        finally:
            self._interrupts.remove()

    def _look(self, kind: str, optimizer: object | None) -> None:
        if self._begun is not None:
            self._begun.watch.look(kind, self._log.__len__, optimizer)

    def _failure(self, error: BaseException | None, events: int) -> Failure | None:
        message = out_of_memory(error, (self._backend.kind.upper(),))
        if message is None:
            return None
        position, stack, operator = self._log.failed or (events, -1, None)
        found = read_failure(message, position)
        return replace(found, stack=stack, op=operator)

    def _notes(self, watch: OwnerWatch) -> tuple[str, ...]:
        kind = self._backend.kind.upper()
        notes = [] if watch.failure is None else [watch.failure]
        if self._backend.counters(self._index).peak is None:
            notes.append(
                f"This PyTorch counts no peak for {kind}: the one shown is the highest level "
                "between operators, without what an operator takes and gives back."
            )
        if self._log.elsewhere:
            notes.append(f"Only {kind} device {self._index} was measured, of several in use.")
        return tuple(notes)
