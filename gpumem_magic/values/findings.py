"""What a trace says of a cell, as frozen values: all that reports and rules need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import LARGE_SEGMENT, Category, Device, Machine


@dataclass(frozen=True, slots=True)
class Level:
    """Bytes on the device at one moment; None where unknown."""

    allocated: int | None
    reserved: int | None
    device_used: int | None

    @property
    def in_use(self) -> int | None:
        """The bytes of the card in use; those reserved where no more is known."""
        return self.reserved if self.device_used is None else self.device_used


@dataclass(frozen=True, slots=True)
class Call:
    """The part of a line that ran in a function of another cell: `In[cell]:line function`; script:
    the name of the script that it ran in."""

    cell: int | None
    line: int
    function: str
    source: str
    allocated: int
    freed: int
    net: int
    peak: int | None
    count: int
    script: str = ""


@dataclass(frozen=True, slots=True)
class Called:
    """What other lines of its own cell did, which a line had called: bytes allocated and freed, and
    the highest allocated level of the device meanwhile."""

    allocated: int
    freed: int
    peak: int


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the cell: bytes allocated and freed while it, or what it called, ran.

    number: 1-based line of the cell; 0 collects what no line of the cell can be named for.
    peak: the highest allocated level of the device while it ran (None: no event on it).
    count: how many times it ran, as its events show. growth: net bytes per pass. called: what lines
    of the same cell did beside that, in functions that this one called; None for nothing.
    """

    number: int
    source: str
    allocated: int
    freed: int
    net: int
    peak: int | None
    count: int
    calls: tuple[Call, ...] = ()
    called: Called | None = None

    @property
    def total(self) -> int:
        """Bytes allocated by the line and by all that it called."""
        return self.allocated + (self.called.allocated if self.called else 0)

    @property
    def total_net(self) -> int:
        """The same, less what was freed."""
        return self.net + (self.called.allocated - self.called.freed if self.called else 0)

    @property
    def highest(self) -> int | None:
        """The highest allocated level while it, or what it called, ran; None without an event."""
        called = self.called.peak if self.called else None
        return max((peak for peak in (self.peak, called) if peak is not None), default=None)

    @property
    def growth(self) -> int:
        """Net bytes per pass, rounded down; 0 for a line that never ran."""
        return self.net // self.count if self.count else 0


@dataclass(frozen=True, slots=True)
class Block:
    """One storage that was alive at the peak. line is None when it is older than the cell. module:
    the one that ran when it was made, "" where none is known."""

    name: str | None
    size: int
    shape: tuple[int, ...] | None
    dtype: str | None
    category: Category
    line: int | None
    module: str = ""


@dataclass(frozen=True, slots=True)
class CallNode:
    """A line of the cell, a module that ran in it, or what that did: bytes of the blocks that it,
    with all that it called, allocated.

    depth: 0 for a line of the cell; what a node called follows it, one deeper. at_peak: of blocks
    alive at the peak; those of depth 0 are all that were. allocated: in the whole cell. kept: of
    blocks made in the cell that outlive it.
    """

    name: str
    depth: int
    at_peak: int
    allocated: int
    kept: int


class Unit(Enum):
    """What leaves memory behind, one after the other: passes of a loop, calls of a function inside
    each other, modules."""

    PASS = "passes"
    CALL = "calls"
    MODULE = "modules"


@dataclass(frozen=True, slots=True)
class Growth:
    """What each pass of a loop left behind: `size` bytes by `passes` passes, the `first` of them
    counted from 1, of `ran` in all; `each` bytes a pass.

    holder: the way to it ("trainer.history[*]"), empty where nothing was found. graph: it is, or
    carries, autograd's graph. kind: of the holder, a HolderKind's value. line: where it was made,
    the largest of it, in the cell that was measured or in `cell` ("In[3]"); lines: the fewest that
    nearly all of it was made in, where there are several. anew: one block, made anew in each pass.
    rows: which storages they are, as rows of Lifetimes. recorded: autograd recorded how some were
    made, whether or not backward() has freed their graph. unit: what is counted, where it is no
    passes. shown: bytes of these storages that tensors show, 0 where that is not known.
    """

    holder: str
    graph: bool
    kind: str
    size: int
    each: int
    passes: int
    first: int
    ran: int
    line: int | None
    cell: str = ""
    anew: bool = False
    rows: tuple[int, ...] = ()
    recorded: bool = False
    unit: Unit = Unit.PASS
    shown: int = 0
    lines: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The holder, without the functions whose variable it is."""
        return self.holder.rpartition("().")[2]

    @classmethod
    def counted(
        cls, unit: Unit, holder: str, count: int, size: int, place: tuple[int | None, str]
    ) -> Growth:
        """That of `count` units that all hold something. place: the line, and the cell if it is
        another one."""
        line, cell = place
        return cls(holder, False, "", size, size // count, count, 1, count, line, cell, unit=unit)


@dataclass(frozen=True, slots=True)
class Enlarged:
    """One operator's large results of little, on one line: `size` bytes of them at the failure or
    the peak, `count` in number; the last has `shape` and was made of `operands`. failed: memory ran
    out as the last one was asked for, which `size` includes, as it does `derived` bytes of what was
    computed of them, element by element. line: the user's innermost, in the cell that was measured
    or in `cell` ("In[3]"). layer: the file of torch.nn.modules whose layer was running ("linear";
    "module": one of the user's own), "eager_transforms" where torch.func made it, or ""."""

    op: str
    shape: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    size: int
    count: int
    failed: bool
    line: int | None
    cell: str
    layer: str
    derived: int = 0


@dataclass(frozen=True, slots=True)
class LeftOver:
    """Names of earlier cells that the cell, and functions of other cells, say nothing of: `size`
    bytes were alive through them at the failure or the peak. names: the largest first; none where
    no name at all leads to what was there."""

    names: tuple[str, ...]
    size: int


class Way(Enum):
    """One thing that may have left room for an allocation that failed."""

    OTHERS = "other processes"  # had they not been there
    EXPANDABLE = "expandable segments"
    GRADIENTS = "gradients"  # of the step before, had they been dropped
    HISTORY = "output history"  # results that the notebook keeps
    UNUSED = "unused variable"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A single change: `size` bytes that it concerns, `name` of the variable, if it is one.

    line: before which it is made, where that is not the one that failed, but called what did.
    enough: whether the allocation would then have found room; None where the bytes would do, but it
    is not known whether they lie in one piece.
    """

    way: Way
    size: int
    enough: bool | None
    name: str | None = None
    line: int | None = None


PART_OF_HELD = 0.05
"""Of what tensors held, that gaps must be to be the reason why memory ran out."""

_PART_ASKED = 0.1
"""Of what was asked for, likewise."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Why an allocation failed: `requested` bytes wanted, `segment` asked of the device, which had
    `device_free`; `reserved_free` lay free inside reserved memory, in pieces of at most
    `largest_free`.

    fragmented: those pieces and the device's rest together would have held the request, but no
    single one did.
    held: what was allocated at that moment, by category; empty where it is not known.
    point: that moment's index in the timeline.
    blocks: the largest storages alive then. others: bytes of other processes. missing: bytes that
    the device, or a limit of `allowed` bytes, lacked. remedies: those that would have been enough
    come first. library: who ran out of memory where it was not PyTorch's allocator. unknown: why
    `others` is not known. shape: of the one tensor that was asked for, where that is known.
    of_module: for what a module owns, as it was built or moved.
    too_large: it has no room however much is freed of what could be. explained: something else than
    gaps is the cause, as advice says.
    """

    requested: int | None
    segment: int | None
    device_free: int | None
    reserved_free: int | None
    largest_free: int | None
    fragmented: bool | None
    line: int | None
    op: str | None
    message: str
    held: Mapping[Category, int] = field(default_factory=dict)
    point: int | None = None
    blocks: tuple[Block, ...] = ()
    others: int | None = None
    missing: int | None = None
    allowed: int | None = None
    remedies: tuple[Remedy, ...] = ()
    library: str = ""
    unknown: Mapping[str, str] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    of_module: bool = False
    too_large: bool = False
    explained: bool = False

    def remedy(self, way: Way) -> Remedy | None:
        """The largest remedy of this kind, if there is one."""
        found = [remedy for remedy in self.remedies if remedy.way is way]
        return max(found, key=lambda remedy: remedy.size, default=None)

    def left_by(self, remedy: Remedy) -> int | None:
        """Bytes that the remedy would leave free beyond this request, at most: how much further the
        cell gets; None where that is not known, or none are left."""
        if self.requested is None or self.device_free is None or self.reserved_free is None:
            return None
        free = self.device_free + self.reserved_free - self.requested
        left = free if remedy.way is Way.EXPANDABLE else free + remedy.size
        return left if left >= 0 else None

    @property
    def is_in_pieces(self) -> bool:
        """Whether it is fragmented, and more than what lies free in the last pieces of any card
        that is full: the rest of one segment, which any cell leaves, is no gap between blocks."""
        least = max(PART_OF_HELD * sum(self.held.values()), _PART_ASKED * (self.requested or 0))
        least = max(least, LARGE_SEGMENT)
        free = self.reserved_free or 0
        return bool(self.fragmented) and not self.explained and free >= least

    @property
    def place(self) -> str:
        """Where it happened, as a sentence begins: "line 3"."""
        return f"line {self.line}" if self.line else "the cell"


@dataclass(frozen=True, slots=True)
class Timeline:
    """The cell's history for drawing: m points in order, extremes kept, m <= a few thousand.

    time: float64 seconds. allocated, reserved: int64 bytes. line: int32 line of the cell, 0 for
    unknown. by_category: int64[m, len(Category)] bytes, columns in the order of Category, rows sum
    to allocated.
    peak: the point where allocated is highest (-1 when m is 0).
    """

    time: NDArray[np.float64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]
    line: NDArray[np.int32]
    by_category: NDArray[np.int64]
    peak: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Timeline):
            return NotImplemented
        columns = ("time", "allocated", "reserved", "line", "by_category")
        return self.peak == other.peak and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in columns
        )

    def __hash__(self) -> int:
        return hash((self.peak, self.allocated.tobytes()))


@dataclass(frozen=True, slots=True)
class Survivors:
    """Blocks alive at the end: address int64, category int8 (its place in Category)."""

    address: NDArray[np.int64]
    category: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Trace:
    """What the events of a Recording mean. unknown: field name -> why it could not be told.

    peak: the highest of each size over the cell, as the allocator's own peak counters tell it; they
    need not have been reached at the same moment. at_peak and blocks: when `allocated` was highest.
    survivors: what the next recording may want to know of the blocks that it finds; None: nothing.
    device, error, machine: of the recording. lifetimes: every storage; None where events
    are missing. growth: what passes of a loop left, up to the failure or the peak. call_tree: who
    allocated, by module; empty where no module is known. enlarged: large results of little, at the
    failure or the peak, where the source sees operators. left_over: what only earlier cells speak
    of, where there is any. fits: of the recording. evaluations: places of stacks where functions
    of other cells only evaluate, of a cell that failed.
    """

    before: Level
    peak: Level
    after: Level
    lines: tuple[Line, ...]
    blocks: tuple[Block, ...]
    at_peak: Mapping[Category, int]
    at_end: Mapping[Category, int]
    timeline: Timeline
    oom: OutOfMemory | None
    unknown: Mapping[str, str]
    survivors: Survivors | None = None
    device: Device | None = None
    error: str | None = None
    lifetimes: Lifetimes | None = None
    machine: Machine = field(default_factory=Machine)
    growth: tuple[Growth, ...] = ()
    call_tree: tuple[CallNode, ...] = ()
    enlarged: tuple[Enlarged, ...] = ()
    left_over: LeftOver | None = None
    fits: bool | None = None
    evaluations: frozenset[int] = frozenset()

    @property
    def lives(self) -> Lifetimes:
        """The lifetimes, where they are known: rules are asked nowhere else."""
        assert self.lifetimes is not None
        return self.lifetimes
