"""What was alive at the peak and at the end, how high the peak was, and who asked for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.sources.stacks.callsite import cell_number
from gpumem_magic.sources.stacks.running import source_of
from gpumem_magic.trace.attribution import Attribution
from gpumem_magic.trace.levels import Levels
from gpumem_magic.trace.owners import CATEGORIES, CODE, Owners
from gpumem_magic.trace.pairing import Pairing
from gpumem_magic.trace.stacks import Texts
from gpumem_magic.values.findings import Block, CallNode, Level
from gpumem_magic.values.recording import (
    Category,
    Frame,
    Phase,
    Reading,
    Recording,
    Running,
    Stack,
)
from gpumem_magic.values.report import Basis

_BLOCKS_KEPT = 1000  # a list that grows in a loop is seen whole, and saved in some 100 KB

_PYTORCH = re.compile(r"-packages/torch/|/lib/python\d[^/]*/(?!(?:site|dist)-packages/)|^<frozen ")
"""Files of torch and of Python itself: what they allocate is their caller's."""

_PACKAGES = re.compile(r".*-packages/")

UNKNOWN = "(older, or from no Python code)"


def find_peak(recording: Recording, levels: Levels) -> Level:
    """The highest of each level over the cell, the start included.

    device_used: what PyTorch held at its peak and, as far as the readings know, what everything
    else on the device took at most.
    """
    reserved = int(levels.reserved.max()) if levels.reserved_known else None
    rest = [_not_pytorch(reading) for reading in (recording.before, recording.after)]
    most = max((size for size in rest if size is not None), default=None)
    used = None if reserved is None or most is None else reserved + most
    if used is not None and recording.device.total > 0:
        used = min(used, recording.device.total)
    return Level(int(levels.allocated.max()), reserved, used)


def _not_pytorch(reading: Reading) -> int | None:
    if reading.device_used is None or reading.reserved is None:
        return None
    return max(reading.device_used - reading.reserved, 0)


def by_category(timeline_row: NDArray[np.int64]) -> Mapping[Category, int]:
    """Bytes of each category that has any, in the order of Category."""
    return {
        category: int(size) for category, size in zip(CATEGORIES, timeline_row, strict=True) if size
    }


@dataclass(frozen=True, slots=True)
class KnownBlocks:
    """What the stages of a trace know of every block.

    lives: when it lived. owners: who owned it. kind: int8, its place in owners.CATEGORIES.
    attribution: who ran at each event.
    """

    lives: Pairing
    owners: Owners
    kind: NDArray[np.int8]
    attribution: Attribution


def find_blocks(recording: Recording, known: KnownBlocks, event: int) -> tuple[Block, ...]:
    """The largest blocks alive right after `event`; the older first among equals."""
    alive = known.lives.alive(event)
    largest = alive[np.argsort(-known.lives.size[alive], kind="stable")][:_BLOCKS_KEPT]
    return tuple(_block(int(block), recording, known) for block in largest)


def _block(block: int, recording: Recording, known: KnownBlocks) -> Block:
    lives, owners, labels = known.lives, known.owners, recording.labels
    birth, naming, shaping = lives.birth[block], owners.naming[block], owners.shaping[block]
    shape, dtype = recording.made(birth)
    if shaping >= 0:
        shape, dtype = labels[shaping].shape, labels[shaping].dtype
    return Block(
        name=labels[naming].name if naming >= 0 else None,
        size=int(lives.size[block]),
        shape=shape,
        dtype=dtype,
        category=CATEGORIES[known.kind[block]],
        line=int(known.attribution.line[birth]) if birth >= 0 else None,
        module=module_at(recording, int(known.attribution.row[birth])) if birth >= 0 else "",
    )


def module_at(recording: Recording, row: int) -> str:
    """The path of the module that ran at a stack of the recording; "" where none is known."""
    running = _running(recording, row)
    return running.path if running else ""


def _running(recording: Recording, row: int) -> Running | None:
    """The module that ran at a stack of the recording, of which -1 is none."""
    running = recording.modules.running
    return running[row] if 0 <= row < len(running) else None


def find_call_tree(recording: Recording, known: KnownBlocks, event: int) -> tuple[CallNode, ...]:
    """Who allocated the blocks: lines of the cell, the modules that ran in them, and their lines.

    Parameters, gradients and what optimizers keep belong to the module that has them. event: of the
    peak. Empty where the recording knows no module.
    """
    if not recording.modules.paths or not len(known.lives):
        return ()
    tree = _Branch()
    ways = _Ways(recording, known)
    lives, born = known.lives, known.lives.birth >= 0
    masks = (
        (lives.birth <= event) & (lives.death > event),
        born,
        born & (lives.death >= len(recording.events)),
    )
    sums = [np.bincount(ways.column, np.where(mask, lives.size, 0)) for mask in masks]
    columns = np.array(sums, np.int64).T
    for way in np.flatnonzero(columns.any(axis=1)).tolist():
        tree.add(ways.steps(way), columns[way])
    return tuple(tree.nodes(np.maximum(tree.sums // _PARTS, 1)))


_PARTS = 200
"""What is smaller than one of so many parts of the whole is told together with others."""

_OWNED = frozenset(
    {Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE}
)
_STATE_OF = re.compile(r".*\.state\[(.+)\]\['")
_STEP = re.compile(r"[^.\[]+(?:\[[^\]]*\])*")
_BEFORE = "(before the cell)"
_WITHIN = {Phase.BACKWARD: "(backward)", Phase.OPTIMIZER: "(optimizer)"}


@dataclass(slots=True)
class _Branch:
    """A node while the tree grows. sums: at the peak, allocated, kept; of all that is inside."""

    sums: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, np.int64))
    inner: dict[str, _Branch] = field(default_factory=dict)

    def add(self, steps: Sequence[str], sums: NDArray[np.int64]) -> None:
        branch = self
        branch.sums += sums
        for step in steps:
            branch = branch.inner.setdefault(step, _Branch())
            branch.sums += sums

    def nodes(self, least: NDArray[np.int64], depth: int = 0) -> Iterator[CallNode]:
        """What is inside, the most at the peak first; what is smaller than `least` as one."""
        ranked = sorted(self.inner.items(), key=lambda item: (-item[1].sums).tolist())
        small = [branch.sums for _, branch in ranked if (branch.sums < least).all()]
        for name, branch in ranked[: len(ranked) - len(small)] if len(small) > 1 else ranked:
            way, last = branch.unforked()
            steps = (step.replace(" > ", "\u00a0>\u00a0") for step in (name, *way))  # of the source
            yield CallNode(" > ".join(steps), depth, *last.sums.tolist())
            yield from last.nodes(least, depth + 1)
        if len(small) > 1:
            yield CallNode(f"({len(small)} smaller)", depth, *np.sum(small, axis=0).tolist())

    def unforked(self) -> tuple[list[str], _Branch]:
        """The steps that have all bytes of this node, and the last of them."""
        for step, branch in self.inner.items():
            if (branch.sums == self.sums).all():
                way, last = branch.unforked()
                return [step, *way], last
        return [], self


class _Ways:
    """The way to each block: lines of the cell, the modules that they called, and what those did.

    column: int64, the number of each block's way.
    """

    def __init__(self, recording: Recording, known: KnownBlocks) -> None:
        self._recording = recording
        self._texts = Texts()
        self._owned: dict[tuple[int, str, str], int] = {}
        birth = known.lives.birth
        row = np.append(known.attribution.row, -1)[birth]  # a birth before the cell is -1
        phase = np.append(known.attribution.phase, 0)[birth].astype(np.int64)
        self.column = (row + 1) * len(Phase) + phase
        self._rest = (len(recording.stacks) + 2) * len(Phase)
        for block, key in self._owners(known, row):
            self.column[block] = self._rest + self._owned.setdefault(key, len(self._owned))
        self._keys = tuple(self._owned)

    def _owners(
        self, known: KnownBlocks, row: NDArray[np.int64]
    ) -> Iterator[tuple[int, tuple[int, str, str]]]:
        """Blocks that a module has: each with its row, the module's path and its kind."""
        kinds = np.isin(known.kind, [CODE[kind] for kind in _OWNED])
        for block in np.flatnonzero(kinds & (known.owners.naming >= 0)).tolist():
            name = self._recording.labels[known.owners.naming[block]].name or ""
            if path := self._module_of(name):
                yield block, (int(row[block]), path, CATEGORIES[known.kind[block]].value)

    def _module_of(self, name: str) -> str:
        state = _STATE_OF.match(name)
        path = (state[1] if state else name.removesuffix(".grad")).rpartition(".")[0]
        return self._recording.modules.paths.get(path, "")

    def steps(self, way: int) -> tuple[str, ...]:
        """The names of the nodes on the way of that number."""
        if way >= self._rest:
            row, path, kind = self._keys[way - self._rest]
            return (*self._lines(row), *_STEP.findall(path), kind)
        row, phase = way // len(Phase) - 1, Phase(way % len(Phase))
        running = _running(self._recording, row) if row >= 0 else None
        within = (_WITHIN[phase],) if phase in _WITHIN else ()
        end = (*_STEP.findall(running.path), running.text) if running else ()
        return (*self._lines(row, running.frames if running else 0), *within, *end)

    def _lines(self, row: int, inside: int = 0) -> tuple[str, ...]:
        """The cells' lines that called each other, without so many innermost frames."""
        stacks = self._recording.stacks
        if row < 0:
            return (_BEFORE,)
        frames = stacks[row][inside:] if row < len(stacks) else ()
        named = (self._line(frame) for frame in reversed(frames))
        return tuple(name for name in named if name) or (UNKNOWN,)

    def _line(self, frame: Frame) -> str:
        cell = self._recording.cell_at(frame)
        if cell is None:
            return ""
        where = "line " if cell is self._recording.cell else f"{cell.title}:"
        return f"{where}{frame.line}  {self._texts.line(cell, frame.line)}"


@dataclass(frozen=True, slots=True)
class Places:
    """Bytes at the peak by who asked for them, the most first.

    frames: by line, as "attention.py:88 forward". modules: by Python's module, as
    "transformers.models.llama"; cells of a notebook are one. sources: the text of the lines.
    """

    frames: dict[str, int]
    modules: dict[str, int]
    sources: dict[str, str]


def find_places(basis: Basis) -> Places:
    """Sum up what was alive at the peak, by the innermost frame outside of torch."""
    lives = basis.lifetimes
    frames: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    sources: dict[str, str] = {}
    texts = Texts()
    alive = lives.at_peak
    sums = np.bincount(lives.stack[alive] + 1, lives.size[alive])
    for row in np.flatnonzero(sums).tolist():
        asking, size = asked_by(lives.stacks[row - 1]) if row else (), int(sums[row])
        place = _place(asking[0], basis.recording) if asking else UNKNOWN
        frames[place] += size
        if asking and place not in sources:
            sources[place] = _source(asking[0], basis.recording, texts)
        modules[_module(asking[0], basis.recording) if asking else UNKNOWN] += size
    return Places(dict(frames.most_common()), dict(modules.most_common()), sources)


def places_of(stack: Stack, recording: Recording) -> tuple[str, ...]:
    """The frames outside of torch, the innermost first; of a stack within it the outermost."""
    return tuple(_place(frame, recording) for frame in asked_by(stack))


def asked_by(stack: Stack) -> Stack:
    """The frames that are not torch's; the outermost where all are."""
    return tuple(f for f in stack if not _PYTORCH.search(_path_of(f))) or stack[-1:]


def _path_of(frame: Frame) -> str:
    return frame.filename.replace("\\", "/")


def _cell(frame: Frame, recording: Recording) -> int | None:
    """The number of the cell that the frame lies in."""
    cell = recording.cell_at(frame)
    return cell.number if cell and cell.number is not None else cell_number(frame.filename)


def _source(frame: Frame, recording: Recording, texts: Texts) -> str:
    """The text of the line; empty of a snapshot's files, which lay elsewhere."""
    cell = recording.cell_at(frame)
    if cell is None:
        return source_of(frame) if recording.device.total else ""
    return texts.line(cell, frame.line)


def _place(frame: Frame, recording: Recording) -> str:
    """ "In[3]:5 forward"; "line 5 forward" of a cell that has no number, as a predicted one."""
    cell, function = _cell(frame, recording), frame.function
    ran = "" if function.startswith("<module") else f" {function}"
    if cell is not None:
        return f"In[{cell}]:{frame.line}{ran}"
    if frame.filename == recording.cell.filename and frame.filename.startswith("<"):
        return f"line {frame.line}{ran}"
    return f"{PurePosixPath(_path_of(frame)).name}:{frame.line}{ran}"


def _module(frame: Frame, recording: Recording) -> str:
    if _cell(frame, recording) is not None:
        return "(cells)"
    path = _path_of(frame)
    if not _PACKAGES.match(path):
        return PurePosixPath(path).stem
    return ".".join(PurePosixPath(_PACKAGES.sub("", path)).with_suffix("").parts)
