"""What a large result is beside large: a piece of what could be larger, and of wide numbers."""

from __future__ import annotations

import ast
from typing import Final

import numpy as np

from gpumem_magic.advice.code import Code, called
from gpumem_magic.units import format_bytes
from gpumem_magic.values.findings import Enlarged
from gpumem_magic.values.lifetimes import Lifetimes

_CUTTING: Final = frozenset({"split", "chunk", "tensor_split", "unbind"})

_WIDE: Final = (
    " {size} of these are int64, 8 bytes to a number: bool holds a mask in 1, int32 counts in 4 "
    "(cumsum(0, dtype=torch.int32)); only indices have to be int64."
)


def is_a_piece(cell: Code, one: Enlarged) -> bool:
    """Whether a loop makes it of some rows at a time: of x[i:j], or of a part of x.split()."""
    statement, loop = cell.looped(one.line, one.cell)
    if statement is None or not isinstance(loop, ast.For):
        return False
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    if any(called(call) in _CUTTING for call in cell.nodes(ast.Call, within=loop.iter)):
        return bool(names & cell.spoken(statement))
    cuts = cell.nodes(ast.Slice, within=statement)
    return any(names & cell.spoken(cut) for cut in cuts)


def of_wide_numbers(cell: Code, lives: Lifetimes, one: Enlarged) -> str:
    """What to say of those numbers of its shape, or computed of it there, that are int64; "" of
    few."""
    count = int(np.prod(one.shape))
    large = np.flatnonzero(lives.at_peak & (lives.size >= 8 * count) & (lives.size < 9 * count))
    size = sum(
        int(lives.size[row])
        for row in large.tolist()
        if (tensor := lives.tensor(row))[1] == "int64" and np.prod(tensor[0] or ()) == count
        if one.cell or cell.lines_in(lives.frames(row))[:1] == [one.line]
    )
    return _WIDE.format(size=format_bytes(size)) if 2 * size >= one.size else ""
