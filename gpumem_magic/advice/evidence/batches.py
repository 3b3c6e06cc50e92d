"""Finds tensors that are moved as a whole and read in batches."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rewrite import UnsafeError, enclose, insert_before, remove, replace
from gpumem_magic.values.advice import Edit
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category

_SPLITS = ("split", "chunk")
_ABOUT = frozenset(("shape", "dtype", "ndim", "size", "dim", "numel", "is_floating_point"))
"""What may be asked of a tensor wherever it lies."""

_Comprehension = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


@dataclass(frozen=True, slots=True)
class Moved:
    """A statement that moves a whole tensor to the device. batches: where it is read in part, and
    the loops over its parts."""

    name: str
    statement: ast.Assign
    call: ast.Call
    batches: tuple[ast.Subscript, ...]
    loops: tuple[ast.For, ...]
    host_indices: frozenset[str]


def moved(cell: Code, names: Names) -> Iterator[Moved]:
    """Tensors that the cell moves to the device once, and then reads only a part at a time."""
    on_host = frozenset(name for name, tensor in names.tensors.items() if not tensor.on_device)
    for statement in cell.nodes(ast.Assign):
        if len(statement.targets) != 1:
            continue
        target, call = statement.targets[0], statement.value
        if not isinstance(target, ast.Name) or not isinstance(call, ast.Call):
            continue
        if _is_move(cell, call) and cell.loop(statement) is None:
            batches = _batches(cell, target.id, statement)
            if batches is not None and any(batches):
                yield Moved(target.id, statement, call, *batches, on_host)


def _is_move(cell: Code, call: ast.Call) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr == "cuda":
        return True
    if function.attr != "to" or not call.args:
        return False
    first = call.args[0]
    if isinstance(first, ast.Constant):
        return isinstance(first.value, str) and first.value.startswith("cuda")
    return isinstance(first, ast.Name) and not cell.dotted(first).startswith("torch.")


def _batches(
    cell: Code, name: str, statement: ast.Assign
) -> tuple[tuple[ast.Subscript, ...], tuple[ast.For, ...]] | None:
    """None where the tensor is used otherwise than in part."""
    scope = cell.function(statement)
    parts: list[ast.Subscript] = []
    loops: list[ast.For] = []
    if sum(1 for _ in cell.assigned(name)) > 1:
        return None
    for read in cell.reads(name):
        above = cell.parent(read)
        if cell.inside(read, statement.value):
            continue
        if cell.function(read) is not scope:
            return None
        if isinstance(above, ast.Subscript) and above.value is read and _repeats(cell, above):
            parts.append(above)
        elif (loop := _loop_over_parts(cell, above)) is not None:
            loops.append(loop)
        elif not _asks_about(cell, read, above):
            return None
    return tuple(parts), tuple(loops)


def _repeats(cell: Code, node: ast.AST) -> bool:
    within = any(isinstance(above, _Comprehension) for above in cell.ancestors(node))
    return within or cell.loop(node) is not None


def _loop_over_parts(cell: Code, above: ast.AST | None) -> ast.For | None:
    """The loop `for part in data.split(n):` with data's attribute given."""
    if not isinstance(above, ast.Attribute) or above.attr not in _SPLITS:
        return None
    call = cell.parent(above)
    loop = cell.parent(call) if call is not None else None
    if isinstance(loop, ast.For) and loop.iter is call and isinstance(loop.target, ast.Name):
        return loop
    return None


def _asks_about(cell: Code, read: ast.Name, above: ast.AST | None) -> bool:
    if isinstance(above, ast.Attribute):
        return above.attr in _ABOUT
    return isinstance(above, ast.Call) and cell.dotted(above.func) == "len" and read in above.args


def born_on(lives: Lifetimes, lines: Iterable[int]) -> NDArray[np.bool_]:
    """Which storages these lines made, weights, gradients and workspaces aside."""
    found = np.isin(lives.line, list(lines))
    return found & ~lives.of(Category.PARAMETER, Category.WORKSPACE, Category.GRADIENT)


def move_batches(cell: Code, whole: Moved) -> Iterator[Edit]:
    """The tensor stays where it was; each part is moved where it is read."""
    function = whole.call.func
    assert isinstance(function, ast.Attribute)
    moving = cell.source[cell.end(function.value) : cell.end(whole.call)]
    for part in whole.batches:
        _require_host_index(part, whole.host_indices)
        yield from enclose(cell, part, "", moving)
    for loop in whole.loops:
        assert isinstance(loop.target, ast.Name)
        text = f"{loop.target.id} = {loop.target.id}{moving}"
        yield from insert_before(cell, loop.body[0], text)
    if isinstance(function.value, ast.Name) and function.value.id == whole.name:
        yield from remove(cell, whole.statement)
    else:
        yield from replace(cell, whole.call, cell.text(function.value))


def _require_host_index(part: ast.Subscript, on_host: frozenset[str]) -> None:
    """Raises UnsafeError for an index that may lie on the device, which no host tensor takes."""
    index = part.slice
    for one in index.elts if isinstance(index, ast.Tuple) else [index]:
        known = isinstance(one, (ast.Slice, ast.Constant)) or (
            isinstance(one, ast.Name) and one.id in on_host
        )
        if not known:
            raise UnsafeError(f"the index on line {part.lineno} may be on the device")
