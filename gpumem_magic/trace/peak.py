"""What was alive at the peak and at the end, how high the peak was, and who asked for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.sources.stacks.callsite import cell_number
from gpumem_magic.trace.attribution import Attribution
from gpumem_magic.trace.levels import Levels
from gpumem_magic.trace.owners import CATEGORIES, Owners
from gpumem_magic.trace.pairing import Pairing
from gpumem_magic.values.findings import Block, Level
from gpumem_magic.values.recording import Category, Frame, Label, Reading, Recording, Stack
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
    return tuple(_block(int(block), recording.labels, known) for block in largest)


def _block(block: int, labels: tuple[Label, ...], known: KnownBlocks) -> Block:
    lives, owners = known.lives, known.owners
    birth, naming, shaping = lives.birth[block], owners.naming[block], owners.shaping[block]
    return Block(
        name=labels[naming].name if naming >= 0 else None,
        size=int(lives.size[block]),
        shape=labels[shaping].shape if shaping >= 0 else None,
        dtype=labels[shaping].dtype if shaping >= 0 else None,
        category=CATEGORIES[known.kind[block]],
        line=int(known.attribution.line[birth]) if birth >= 0 else None,
    )


@dataclass(frozen=True, slots=True)
class Places:
    """Bytes at the peak by who asked for them, the most first.

    frames: by line, as "attention.py:88 forward". modules: by Python's module, as
    "transformers.models.llama"; cells of a notebook are one.
    """

    frames: dict[str, int]
    modules: dict[str, int]


def find_places(basis: Basis) -> Places:
    """Sum up what was alive at the peak, by the innermost frame outside of torch."""
    lives = basis.lifetimes
    frames: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    alive = lives.at_peak
    sums = np.bincount(lives.stack[alive] + 1, lives.size[alive])
    for row in np.flatnonzero(sums).tolist():
        frame, size = _asking(lives.stacks[row - 1]) if row else None, int(sums[row])
        frames[_place(frame, basis.recording) if frame else UNKNOWN] += size
        modules[_module(frame, basis.recording) if frame else UNKNOWN] += size
    return Places(dict(frames.most_common()), dict(modules.most_common()))


def places_of(stack: Stack, recording: Recording) -> tuple[str, ...]:
    """The frames outside of torch, the innermost first; of a stack within it the outermost."""
    outside = [frame for frame in stack if not _PYTORCH.search(_path_of(frame))]
    return tuple(_place(frame, recording) for frame in outside or stack[-1:])


def _asking(stack: Stack) -> Frame | None:
    """The innermost frame that is not torch's; the outermost where all are."""
    outside = (frame for frame in stack if not _PYTORCH.search(_path_of(frame)))
    return next(outside, stack[-1] if stack else None)


def _path_of(frame: Frame) -> str:
    return frame.filename.replace("\\", "/")


def _cell(frame: Frame, recording: Recording) -> int | None:
    """The number of the cell that the frame lies in."""
    own = recording.cell
    cell = own if frame.filename == own.filename else recording.cells.get(frame.filename)
    return cell.number if cell and cell.number is not None else cell_number(frame.filename)


def _place(frame: Frame, recording: Recording) -> str:
    cell = _cell(frame, recording)
    where = f"In[{cell}]" if cell is not None else PurePosixPath(_path_of(frame)).name
    function = "" if frame.function.startswith("<module") else f" {frame.function}"
    return f"{where}:{frame.line}{function}"


def _module(frame: Frame, recording: Recording) -> str:
    if _cell(frame, recording) is not None:
        return "(cells)"
    path = _path_of(frame)
    if not _PACKAGES.match(path):
        return PurePosixPath(path).stem
    return ".".join(PurePosixPath(_PACKAGES.sub("", path)).with_suffix("").parts)
