"""Measures cells on the virtual GPU: what its allocator does becomes a Recording."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from gpumem_magic.allocator.caching import CachingAllocator
from gpumem_magic.allocator.settings import UNLIMITED
from gpumem_magic.sources.cuda.history import live_blocks
from gpumem_magic.sources.cuda.memory import Recorded
from gpumem_magic.sources.cuda.regions import Regions
from gpumem_magic.sources.device_memory import DeviceMemory
from gpumem_magic.sources.failures import (
    is_of_library,
    one_line,
    out_of_memory,
    read_failure,
)
from gpumem_magic.sources.holders.left import find_held
from gpumem_magic.sources.objects.allocation_sites import Remembered, with_categories
from gpumem_magic.sources.objects.labels import START, OwnerWatch, label_owners
from gpumem_magic.sources.stacks.callsite import error_line
from gpumem_magic.sources.summing import sums_note
from gpumem_magic.values.findings import Level, Trace
from gpumem_magic.values.recording import (
    Category,
    Cell,
    Device,
    Events,
    Label,
    LiveBlocks,
    Machine,
    Phase,
    Reading,
    Recording,
    Rules,
)
from gpumem_magic.virtual.catalog import GPUModel
from gpumem_magic.virtual.event_log import MAX_EVENTS, EventLog
from gpumem_magic.virtual.gpu import Kernelless, VirtualGPU
from gpumem_magic.virtual.memory import known_kinds, virtual_memory

_CONVOLVED = (
    "Not included: cuDNN's workspace while a convolution runs (up to 128 MiB in calls that were "
    "measured, or two copies of its inputs and result)."
)
_BENCHMARKED = (
    f"{_CONVOLVED[:-1]}; with cudnn.benchmark, in the first call of each shape, up to all that is "
    "free."
)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A recording that is under way."""

    log: EventLog
    watch: OwnerWatch
    started: float
    before: Reading
    initial: LiveBlocks
    retries: int


class VirtualSource:
    """Measures cells on one virtual GPU, which answers for torch from the start until `close`."""

    def __init__(
        self, model: GPUModel, gpu: VirtualGPU | None = None, max_events: int | None = MAX_EVENTS
    ) -> None:
        self.gpu = gpu or VirtualGPU(model)
        self._max_events = max_events
        self._begun: _Begun | None = None
        self._remembered = Remembered(self._standing)
        self._requests = -1
        self._highest = 0
        self._machine = Machine()
        self._regions = Regions(self._position, self._look)
        self.gpu.switch_on()

    @property
    def device(self) -> Device:
        """The simulated card."""
        model = self.gpu.model
        return Device(model.name, 0, model.total, model.capability, virtual=True)

    def enter(self) -> None:
        """The cell's operators run on the card from here on."""
        self.gpu.enter()

    def leave(self) -> None:
        """What runs between cells is none of the card's business."""
        self.gpu.leave()

    def level(self) -> Level:
        """What is allocated, reserved and used on the card."""
        allocator = self.gpu.allocator
        used = allocator.driver.total - allocator.driver.free
        return Level(allocator.allocated, allocator.reserved, used)

    def start(
        self, namespaces: Callable[[], Mapping[str, Any]], outermost: FrameType | None = None
    ) -> None:
        """Begin recording; `namespaces()` gives the names that may own tensors. Stacks end above
        `outermost`, by default where the notebook runs its cell."""
        log = EventLog(self.gpu, self._max_events)
        watch = OwnerWatch(namespaces, self._position, self.gpu.storages.locate)
        self._begun = _Begun(
            log, watch, time.time(), self._read(), self._live_blocks(), self._retries()
        )
        self.gpu.scratch.highest = self.gpu.scratch.likely = 0
        self._look(START, None)
        self._regions.install()
        log.begin(outermost)

    def stop(
        self, cell: Cell, cells: Mapping[str, Cell], error: BaseException | None
    ) -> tuple[Recording, ...]:
        """End recording; one Recording, of the card."""
        begun = self._begun
        if begun is None:
            raise RuntimeError("nothing is being recorded: start comes first")
        seconds = begun.log.end()
        self._regions.remove()
        self._look("end", None, error)
        begun.watch.read_names(error)
        names = begun.watch.visible()
        self._begun = None
        stacks = begun.log.stacks()
        events = begun.log.events(stacks)
        self._regions.check()
        failure, message = None, out_of_memory(error)
        if message is not None:  # what the card refused last; the code may have raised it itself
            failure = begun.log.failure(message)
            if failure is None and (not self.gpu.is_dry or is_of_library(message)):
                failure = read_failure(message, len(begun.log.rows))
        rows = begun.log.to_rows([position for position, _ in begun.watch.seen]).tolist()
        seen = [(row, owned) for row, (_, owned) in zip(rows, begun.watch.seen, strict=True)]
        recording = Recording(
            device=self.device,
            cell=cell,
            started=begun.started,
            seconds=seconds,
            before=begun.before,
            after=self._read(),
            events=events,
            stacks=stacks,
            initial=begun.initial,
            labels=(
                *label_owners(seen, events, begun.initial),
                *self._label_workspaces(events),
            ),
            cells=cells,
            failure=failure,
            retries=self._retries() - begun.retries,
            error=None if error is None else one_line(error),
            error_line=error_line(error, cell, cells),
            notes=self._notes(begun),
            highest=self.gpu.scratch.highest,
            likely=self.gpu.scratch.likely,
            names=begun.watch.names,
            machine=self._machine,
            rules=self._rules(),
            held=find_held(self.memory, names, events, error, circles=self.gpu.is_dry),
            modules=begun.watch.modules(stacks),
            expansions=begun.log.expansions(),
            results=begun.log.results(),
        )
        return (recording,)

    def remember(self, recording: Recording, trace: Trace) -> None:
        """Keep what `trace` tells of the blocks that outlive `recording`, for the next one."""
        self._remembered.take(recording, trace)
        self._requests = self._allocations()

    def born_in(self, cell: Cell) -> frozenset[int]:
        """See Source."""
        return self._remembered.born_in(cell)

    def memory(self) -> DeviceMemory:
        """What the card's allocator holds now."""
        same = self._requests == self._allocations()
        stepped = self._regions.last is Phase.OPTIMIZER if same else None
        known = self._remembered.categories(), self._remembered.sites()
        recorded = Recorded(*known, {}, stepped)
        return virtual_memory(self.gpu, self.device, self._read(), recorded)

    def _standing(self) -> dict[int, object]:
        """What stands at each address: of workspaces, which no storage has, their own keys."""
        held = {address: key for key, address in self.gpu.scratch.held.items()}
        return {**held, **self.gpu.storages.placements()}

    def _allocations(self) -> int:
        return self.gpu.allocator.stats()["allocation.all.allocated"]

    def kinds(self) -> dict[Category, int]:
        """What is known of the kinds of memory while a recording is under way, in bytes."""
        begun = self._begun
        if begun is None:
            return {}
        return known_kinds(begun.initial, begun.watch.seen, self.gpu.allocator.size_of)

    def events_so_far(self) -> Sequence[tuple[Any, ...]]:
        """A row for each event of the recording that is under way: action, address, size, ..."""
        return self._begun.log.rows if self._begun else ()

    @contextlib.contextmanager
    def repeating(self) -> Iterator[EventLog]:
        """The log of the recording that is under way, for events that repeat others of it."""
        log = self._begun.log if self._begun else EventLog(self.gpu)
        try:
            yield log
        finally:
            log.repeats = None

    def news(self) -> int:
        """Grows while the recording comes to something new: a place that allocates, a new peak, a
        module that was imported."""
        if self._begun is None:
            return 0
        self._highest = max(self._highest, self.gpu.allocator.allocated)
        return self._begun.log.places + self._highest + len(sys.modules)

    def share(self, machine: Machine) -> None:
        """Let the card be one of a machine on which other processes run and other devices are."""
        self._machine = machine
        self.gpu.allocator.driver.others = sum(one.used or 0 for one in machine.neighbours)

    def become(
        self,
        model: GPUModel,
        allocator: CachingAllocator,
        moved: Mapping[int, int],
        compute: Kernelless,
    ) -> None:
        """Go on with another card that computes nothing: see VirtualGPU.become."""
        if self._begun is not None:
            self._begun.log.end()
            self._begun = None
            self._regions.remove()
        self.gpu.leave()
        self._remembered.move(moved)
        self.gpu.become(model, allocator, moved, compute)
        self._max_events = None  # a dry run ends its loops by what all their events were

    def close(self) -> None:
        """Switch the card off. Tensors that were on it are host tensors from then on."""
        if self._begun is not None:
            self._begun.log.end()
            self._begun = None
        self._regions.remove()
        covered = self.gpu.switch_off()
        if covered:
            warnings.warn(
                f"{', '.join(covered)} stays as other code has replaced it, over the virtual GPU",
                RuntimeWarning,
                stacklevel=2,
            )

    def _position(self) -> int:
        return len(self._begun.log) if self._begun else 0

    def _look(
        self, kind: str, optimizer: object | None, error: BaseException | None = None
    ) -> None:
        if self._begun is not None:
            with self.gpu.tracker.suspended():
                self._begun.watch.look(kind, self._position, optimizer, error)

    def _retries(self) -> int:
        return self.gpu.allocator.stats()["num_alloc_retries"]

    def _read(self) -> Reading:
        allocator = self.gpu.allocator
        used = allocator.driver.total - allocator.driver.free
        mine = sum(process.used for process in allocator.driver.processes() if process.pid is None)
        return Reading(allocator.allocated, allocator.reserved, used, mine)

    def _rules(self) -> Rules:
        settings = self.gpu.allocator.settings
        limit = settings.max_split_size
        return Rules(None if limit == UNLIMITED else limit, settings.roundup_power2_divisions)

    def _live_blocks(self) -> LiveBlocks:
        blocks = live_blocks(self.gpu.allocator.snapshot())
        return with_categories(blocks, self._remembered.categories())

    def _notes(self, begun: _Begun) -> tuple[str, ...]:
        summed_up = sums_note(begun.log.summed_up) if begun.log.summed_up else None
        convolved = None
        if self.gpu.scratch.highest:
            convolved = _BENCHMARKED if torch.backends.cudnn.benchmark else _CONVOLVED
        return tuple(note for note in (summed_up, begun.watch.failure, convolved) if note)

    def _label_workspaces(self, events: Events) -> tuple[Label, ...]:
        return tuple(
            Label(len(events), address, Category.WORKSPACE, library)
            for (library, _, _), address in self.gpu.scratch.held.items()
            if address
        )
