"""Which file of a snapshot is its script, and which others are the user's own."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpumem_magic.sources.stacks.callsite import cell_number
from gpumem_magic.values.recording import Cell, Events, Stack

_INSTALLED = re.compile(
    r"(?:site|dist)-packages/|/lib(?:64)?/python\d|^<frozen |^<string>$|^<stdin>$"
)

_LONGEST = 1 << 20
"""Bytes of source that are shown beside its lines; what is longer was not written by hand."""


def choose_files(events: Events, stacks: tuple[Stack, ...]) -> tuple[Cell, dict[str, Cell]]:
    """The script, and all files outside of installed packages by their name; without sources.

    The script is the outermost file of the user's that most events came from; "" where no stack
    was recorded.
    """
    weights = np.bincount(events.stack[events.stack >= 0], minlength=len(stacks)).tolist()
    outermost: Counter[str] = Counter()
    own: dict[str, None] = {}
    for stack, weight in zip(stacks, weights, strict=True):
        files = [f.filename for f in stack if not _INSTALLED.search(f.filename.replace("\\", "/"))]
        own |= dict.fromkeys(files)
        if files:
            outermost[files[-1]] += weight
    script = outermost.most_common(1)[0][0] if outermost else ""
    return _cell(script), {name: _cell(name) for name in own if name != script}


def _cell(filename: str) -> Cell:
    return Cell("", filename, cell_number(filename))


def with_source(cell: Cell) -> Cell:
    """The cell with the text of its file, where that is a .py that lies on this machine."""
    path = Path(cell.filename)
    try:
        if path.suffix == ".py" and path.is_file() and path.stat().st_size <= _LONGEST:
            return replace(cell, source=path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        pass
    return cell
