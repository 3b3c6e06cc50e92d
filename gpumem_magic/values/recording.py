"""The vocabulary that every stage shares: what a source records of one cell, before anyone
interprets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.units import MIB
from gpumem_magic.values.names import Names

LARGE_SEGMENT = 20 * MIB
"""Bytes of the segment that PyTorch takes for a block of 1 to 10 MiB (kLargeBuffer of
c10/cuda/CUDACachingAllocator.cpp)."""


class Action(IntEnum):
    """What one allocator event did; the names are those of PyTorch's memory history."""

    ALLOC = 0  # a block was handed out: allocated grows
    FREE = 1  # its owner gave it back ("free_requested"): allocated shrinks
    FREE_COMPLETED = 2  # it may be reused; later than FREE only when another stream used it
    SEGMENT_ALLOC = 3  # cudaMalloc: reserved grows
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5  # expandable segments: reserved grows
    SEGMENT_UNMAP = 6
    OOM = 7  # an allocation failed for good; size is what was asked for


class Category(Enum):
    """The kinds of memory, in PyTorch's own words."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATION = "activation"
    INPUT = "input"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    OTHER = "other"


class Phase(IntEnum):
    """What the program was doing at an event, as far as the source can tell."""

    FORWARD = 0  # and everything that is neither of the others
    BACKWARD = 1
    OPTIMIZER = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """One Python frame of a call stack."""

    filename: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""Innermost frame first, as in PyTorch's memory history."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the notebook.

    source: as typed. filename: what its frames carry. number: its `In[number]`.
    code: the same as Python with the same lines, as IPython makes it; None where that is `source`.
    name: of a script that a cell ran, in place of the number.
    """

    source: str
    filename: str
    number: int | None = None
    code: str | None = None
    name: str = ""

    @property
    def title(self) -> str:
        """`In[number]`, "cell" where it has none, or the script's name."""
        return self.name or (f"In[{self.number}]" if self.number else "cell")

    @property
    def python(self) -> str:
        """The cell without IPython's own syntax."""
        return self.source if self.code is None else self.code


@dataclass(frozen=True, slots=True)
class Device:
    """The device that was measured. `total` is what `torch.cuda.mem_get_info` calls total, in
    bytes; 0 where it is not known, as in a snapshot."""

    name: str
    index: int
    total: int
    capability: tuple[int, int]
    virtual: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes at one moment; None where it is not known, and then `unknown[field]` says why.

    allocated: held by tensors and workspaces (whole blocks). reserved: held by PyTorch's allocator.
    device_used: in use on the whole device, by every process. process_used: this process's share,
    context included.
    """

    allocated: int | None
    reserved: int | None
    device_used: int | None
    process_used: int | None
    unknown: Mapping[str, str] = field(default_factory=dict)

    def reason(self, *sizes: str) -> str:
        """Why the first of these sizes that is not known is not."""
        missing = next(size for size in sizes if getattr(self, size) is None)
        return self.unknown.get(missing, f"{missing} was not read")

    def shares(self) -> tuple[int | None, int | None, dict[str, str]]:
        """What this process uses beyond PyTorch's own, what no share of this process explains, and
        why either is not known: `context` and `others`."""
        sizes, unknown = list[int | None](), dict[str, str]()
        others = "others", "device_used", "process_used"
        for name, *pair in (("context", "process_used", "reserved"), others):
            whole, part = (getattr(self, size) for size in pair)
            known = whole is not None and part is not None
            sizes.append(max(whole - part, 0) if known else None)  # readings a moment apart
            unknown.update({} if known else {name: self.reason(*pair)})
        return sizes[0], sizes[1], unknown


@dataclass(frozen=True, slots=True)
class Events:
    """The allocator's events in order, one row each, as columns of equal length n.

    action: int8, an Action. address: int64. size: int64 bytes by which the event changes its
    counter (the whole block for ALLOC and FREE, rounding and slack included; the segment or pages
    for SEGMENT_*). requested: int64 bytes the program asked for (ALLOC, FREE, OOM; elsewhere size).
    stack: int32 index into Recording.stacks, -1 where none is known. phase: int8, a Phase.
    time: float64 seconds since the recording began. graph: of an ALLOC, whether autograd recorded
    the operator that made it. made: int32, of an ALLOC, what it was made for, as index into
    Recording.results, or -1. Both are None where the source does not see operators.
    """

    action: NDArray[np.int8]
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    requested: NDArray[np.int64]
    stack: NDArray[np.int32]
    phase: NDArray[np.int8]
    time: NDArray[np.float64]
    graph: NDArray[np.bool_] | None = None
    made: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.action)

    def recorded(self, births: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether autograd recorded what made each block, by the event of its birth, n where it has
        none; False where the source does not see operators."""
        graph = np.zeros(len(self), bool) if self.graph is None else self.graph
        found: NDArray[np.bool_] = np.append(graph, False)[births]
        return found

    def allocated_changes(self) -> NDArray[np.int64]:
        """int64 (n,): by how many bytes each event changed what is allocated."""
        return self._changes((Action.ALLOC,), (Action.FREE,))

    def reserved_changes(self) -> NDArray[np.int64]:
        """int64 (n,): by how many bytes each changed what the allocator holds of the device."""
        grows = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
        return self._changes(grows, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))

    def _changes(self, grows: tuple[Action, ...], shrinks: tuple[Action, ...]) -> NDArray[np.int64]:
        sign = np.zeros(max(Action) + 1, np.int64)
        sign[list(grows)], sign[list(shrinks)] = 1, -1
        return sign[self.action] * self.size


@dataclass(frozen=True, slots=True)
class LiveBlocks:
    """Blocks that were alive when the recording began: int64 columns of equal length.

    category: int8, what an earlier recording found each to be, as its place in Category, or -1.
    segments: int64 rows (address, size, 1 where it is a mapped part of an expandable segment and 0
    for a whole one) of all that the allocator held; None where that is not known.
    """

    address: NDArray[np.int64]
    size: NDArray[np.int64]
    requested: NDArray[np.int64]
    category: NDArray[np.int8] | None = None
    segments: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that decide a block's size. `max_split_size`: bytes, None for no limit.

    divisions: `roundup_power2_divisions` for 1 MiB, 2 MiB, 4 MiB, ... 32 GiB; 0 or 1 rounds to 512
    bytes.
    """

    max_split_size: int | None = None
    divisions: tuple[int, ...] = (0,) * 16


@dataclass(frozen=True, slots=True)
class Label:
    """Who owned the block at `address` when `position` events had been recorded.

    category is None where ownership alone does not tell it (a named tensor, say); then the block's
    life does. has_graph: the tensor carried a `grad_fn`. shape and dtype ("float32") are the
    owner's.
    """

    position: int
    address: int
    category: Category | None
    name: str | None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    has_graph: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """The best way to a block that outlived the cell: "outputs[3].grad_fn", "evaluate().outs[3]".

    graph: an autograd graph is on the way. kind: of what holds it, a HolderKind's value.
    module: the way to the outermost module on it, "" where there is none. gradient: it leads
    through the gradient of a tensor. shown: bytes of it that tensors show, as far as is known.
    """

    address: int
    path: str
    graph: bool
    kind: str
    module: str = ""
    gradient: bool = False
    shown: int = 0


Tensor = tuple[tuple[int, ...], str]
"""The shape of a tensor and its dtype ("float32")."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """A result with many times the elements of what one operator made it of: its shape, and those
    of the operands. position: the number of events before it was allocated; the next allocation
    is its own, or the failure is."""

    position: int
    op: str
    shape: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """An out-of-memory error of the cell: `requested` bytes by the program, of which the allocator
    made a request for `segment` bytes to the device, where `device_free` bytes were free.

    stack: index into Recording.stacks or -1. position: number of events before it. op: the
    operator ("aten.addmm") where the source sees operators. reserved_free: bytes that lay free
    inside reserved memory, in pieces of at most largest_free. shape: of the tensor it was for. None
    stands for not known: a library that ran out of memory does not tell what it requested.
    """

    requested: int | None
    segment: int | None
    device_free: int | None
    position: int
    stack: int
    phase: Phase
    op: str | None
    message: str
    reserved_free: int | None = None
    largest_free: int | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process on the device; pid and used (bytes) are None where the driver hides them."""

    pid: int | None
    name: str
    used: int | None


@dataclass(frozen=True, slots=True)
class IdleDevice:
    """Another device that nobody uses: its index for CUDA, and bytes."""

    index: int
    name: str
    total: int
    used: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What else there is: other processes on the device, read where memory ran out, and other
    devices of this process that nobody uses."""

    neighbours: tuple[Neighbour, ...] = ()
    idle: tuple[IdleDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """The innermost module of the user's that ran at a stack: its path, the line of its `forward`
    as text, and how many frames, from the innermost, the outermost such module's call has."""

    path: str
    text: str
    frames: int


@dataclass(frozen=True, slots=True)
class Modules:
    """The user's modules. paths: each as the user writes it ("model.h[3].mlp"), and the same with
    modules of one class in one list as one ("model.h[0..11].mlp"). running: which one ran at each
    of Recording.stacks, by the second; None for none. Empty where a source does not know."""

    paths: Mapping[str, str] = field(default_factory=dict)
    running: tuple[Running | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """Everything a source knows of one cell on one device. Raw: all meaning is derived from it.

    initial: what was alive before the first event. labels: owners, taken at several moments. cells:
    other cells of the notebook by the filename of their frames. dropped: events lost to a full ring
    buffer (None: it is not known how many): summed up in front of the others, or with `complete`
    False. notes: sentences for the user. predicted: by a dry run, and `output` is what it printed.
    error_line: the line of the cell that `error` left it from. flow_guessed: values that a dry run
    does not know decided which way the cell went. names: what the notebook's names were at the end.
    rules: the allocator's. highest: bytes that may have been allocated at some moment, with what
    libraries take unseen; 0 where nothing is known of that; likely: that likely were. fits: of a
    dry run without limit, whether the card would have been enough. results: shapes and dtypes of
    what operators made. collected: from where to where, in events, garbage was freed in a dry run.
    """

    device: Device
    cell: Cell
    started: float  # Unix time
    seconds: float
    before: Reading
    after: Reading
    events: Events
    stacks: tuple[Stack, ...]
    initial: LiveBlocks
    labels: tuple[Label, ...] = ()
    cells: Mapping[str, Cell] = field(default_factory=dict)
    failure: Failure | None = None
    retries: int = 0
    error: str | None = None
    complete: bool = True
    predicted: bool = False
    notes: tuple[str, ...] = ()
    dropped: int | None = 0
    output: str = ""
    error_line: int | None = None
    flow_guessed: bool = False
    names: Names = field(default_factory=Names)
    machine: Machine = field(default_factory=Machine)
    rules: Rules = field(default_factory=Rules)
    held: tuple[Held, ...] = ()
    modules: Modules = field(default_factory=Modules)
    expansions: tuple[Expansion, ...] = ()
    highest: int = 0
    likely: int = 0
    fits: bool | None = None
    results: tuple[Tensor, ...] = ()
    collected: tuple[tuple[int, int], ...] = ()

    def cell_at(self, frame: Frame) -> Cell | None:
        """The cell that the frame lies in, this one or another."""
        if frame.filename == self.cell.filename:
            return self.cell
        return self.cells.get(frame.filename)

    def made(self, birth: int) -> Tensor | tuple[None, None]:
        """Shape and dtype of what the block of an ALLOC was made for, where known; -1: it is
        older."""
        row = -1 if self.events.made is None or birth < 0 else self.events.made[birth]
        return self.results[row] if row >= 0 else (None, None)
