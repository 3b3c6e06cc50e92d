"""Finds forward passes that saved activations for a backward pass that never came."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rewrite import Edit, import_line, wrap
from gpumem_magic.advice.rule import Advice, Known
from gpumem_magic.events import Category, Phase
from gpumem_magic.names import Names
from gpumem_magic.trace.findings import Trace
from gpumem_magic.trace.lifetimes import Lifetimes
from gpumem_magic.units import MIB, format_bytes

WITHOUT_GRAPH = ("torch.no_grad", "torch.inference_mode", "torch.set_grad_enabled")
_BACKWARD = (".backward", "torch.autograd.grad", "torch.autograd.backward")
_LEAST = MIB
_SHARE = 0.02
"""Of the line that saves most: lines with less are not worth a wrapper."""


@dataclass(frozen=True, slots=True)
class UnusedGraph:
    """Statements of one block whose forward passes saved `size` bytes at the peak for nothing.

    saving: how much lower the peak would be without them. in_evaluation: the model was set to
    evaluation, by `eval()`.
    """

    statements: tuple[ast.stmt, ...]
    size: int
    saving: int
    in_evaluation: bool

    @property
    def line(self) -> int:
        """The first line."""
        return self.statements[0].lineno

    @property
    def place(self) -> str:
        """The lines, in words: "line 3", "lines 3-5"."""
        last = self.statements[-1].end_lineno or self.line
        return f"line {self.line}" if last == self.line else f"lines {self.line}-{last}"

    def advice(self, rule: str) -> Advice:
        """What is wrong, with its numbers."""
        return Advice(
            rule,
            problem=f"The forward pass on {self.place} saved {format_bytes(self.size)} of "
            "activations, and no backward pass used them.",
            change="",
            line=self.line,
            size=self.size,
            saving=self.saving,
            known=Known.ESTIMATED,
        )


def find_unused_graphs(trace: Trace, cell: Code, names: Names) -> Iterator[UnusedGraph]:
    """Each block of neighbouring statements that saved activations for nothing.

    Where a loss is still there at the end, or the cell failed before its `backward()`, it may yet
    come: then nothing is found.
    """
    lives = trace.lifetimes
    if lives is None or _may_go_backward(trace, cell, names):
        return
    lines = cell.calling_lines(lives)
    saved = (lives.of(Category.ACTIVATION) | lives.graph) & (lines > 0)
    saved &= lives.born == Phase.FORWARD
    used = np.unique(lines[(lives.freed == Phase.BACKWARD) | (lives.born == Phase.BACKWARD)])
    unused = saved & ~np.isin(lines, used)
    for statements in _blocks(cell, _weighty(lines, lives, unused)):
        first, last = statements[0].lineno, statements[-1].end_lineno or statements[-1].lineno
        here = unused & (lines >= first) & (lines <= last)
        kept = here & _named(lives)
        size = lives.bytes(here & lives.at_peak)
        saving = lives.saved_at_peak(here & ~kept)
        if size >= _LEAST and saving >= _LEAST:
            yield UnusedGraph(tuple(statements), size, saving, _in_evaluation(cell, names))


def without_graph(cell: Code, graph: UnusedGraph) -> tuple[Edit, ...]:
    """The statements under `torch.no_grad()`."""
    torch = cell.spelling("torch")
    if not torch:
        wrapped = wrap(cell, graph.statements, "with torch.no_grad():")
        return (*import_line(cell, "import torch"), *wrapped)
    return wrap(cell, graph.statements, f"with {torch}.no_grad():")


def _weighty(lines: NDArray[np.int32], lives: Lifetimes, unused: NDArray[np.bool_]) -> list[int]:
    """The lines that most of the bytes were saved on."""
    by_line = {n: lives.bytes(unused & (lines == n)) for n in np.unique(lines[unused]).tolist()}
    return [n for n, size in by_line.items() if size >= _SHARE * max(by_line.values())]


def _may_go_backward(trace: Trace, cell: Code, names: Names) -> bool:
    calls_backward = next(cell.calls(*_BACKWARD), None) is not None
    if trace.error is not None and calls_backward:
        return True
    losses = [t for t in names.tensors.values() if t.has_graph and not t.shape and t.on_device]
    return bool(losses)


def _named(lives: Lifetimes) -> NDArray[np.bool_]:
    return np.array([lives.name(i) is not None for i in range(len(lives))], bool)


def _in_evaluation(cell: Code, names: Names) -> bool:
    evaluated = [m for m in names.modules.values() if m.parameters]
    return bool(evaluated) and not any(module.training for module in evaluated)


def _blocks(cell: Code, lines: list[int]) -> Iterator[list[ast.stmt]]:
    """Statements on these lines, neighbours of one block together."""
    group: list[ast.stmt] = []
    for line in lines:
        statement = cell.statement_at(line)
        if statement is None or cell.is_under(statement, *WITHOUT_GRAPH) or statement in group:
            continue
        if group and _next_to(cell, group[-1], statement):
            group.append(statement)
            continue
        if group:
            yield group
        group = [statement]
    if group:
        yield group


def _next_to(cell: Code, one: ast.stmt, other: ast.stmt) -> bool:
    block = cell.block(one)
    return other in block and block.index(other) == block.index(one) + 1
