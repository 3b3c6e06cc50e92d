"""Weights that each forward pass computes of others, and that wait for the backward pass."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import is_short, last_moment
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.tree import FUNCTIONS, Function, header, lines_of, parameters
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_SHARE = 0.25
_SHARE_IF_SHORT = 0.1
"""Of the peak, that they take together."""

_LAYERS = 2
"""Layers from which they are told of: one is at work at any time."""

_ASKS = frozenset({"dtype", "device", "shape"})
"""What may be asked of the input without a look at its numbers."""

Computed = tuple[tuple[ast.expr, NDArray[np.bool_]], ...]
"""Expressions, each with the storages that it gave in all forward passes."""

_LOW_RANK = (
    "A product of two thin matrices need not be added to the weight: x @ A.T @ B.T beside what the "
    "layer computes with the weight alone gives the same, and makes nothing of the weight's size."
)
_AGAIN = (
    "Compute them again in the backward pass: with the layer under torch.utils.checkpoint only its "
    "input is kept."
)

_SETUP = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)

class Lora(nn.Module):
    def __init__(self, size, rank=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size) / 50, requires_grad=False)
        self.A = nn.Parameter(torch.randn(rank, size) / 50)
        self.B = nn.Parameter(torch.randn(size, rank) / 50)

    def forward(self, x):
        return {}

model = nn.Sequential(*[Lora(1024) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2)
x = torch.randn(8, 1024, device="cuda")
for _ in range(2):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
last = loss.item()"""


_APART = {
    "F.linear(x, self.weight + self.B @ self.A)": (
        "F.linear(x, self.weight) + x @ self.A.T @ self.B.T"
    ),
    "x @ torch.add(self.weight, self.B @ self.A, alpha=0.5).T": (
        "x @ self.weight.T + (x @ self.A.T) @ (self.B.T * 0.5)"
    ),
}
"""What makes new weights, and what gives the same beside them."""


class ComputedWeights(Rule):
    """Each forward pass computes weights of other weights, and autograd keeps them.

    An adapter that adds `B @ A` to the weight of its layer, a quantized layer that unpacks its
    weight, a weight that is cast or normalized in `forward()`: the layer multiplies its input by a
    new matrix, and keeps that for the backward pass, so that all layers together hold the model a
    second time. Beside the weights the activations may be small: a smaller batch does not help.
    `x @ A.T @ B.T` beside the layer makes no such matrix; checkpointing makes it again.
    """

    name: ClassVar[str] = "computed-weights"
    problem: ClassVar[str] = "weights that each forward pass computes wait for the backward pass"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = tuple(
        mended(
            (merged, apart),
            before=_SETUP.format(merged),
            rewritten=False,
            results=("last",),
            within=1e-3,
        )
        for merged, apart in _APART.items()
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        code, trace = cell.joined() or (cell, trace)
        lives = trace.lives
        if not lives.recorded.any():
            return
        share = _SHARE_IF_SHORT if is_short(trace) else _SHARE
        least = max(MIB, int(share * (trace.peak.allocated or 0)))
        for value, made in code.once(computed_weights, lives):
            own = np.flatnonzero(made & lives.alive(last_moment(trace)))
            if len(own) >= _LAYERS and int(lives.size[own].sum()) >= least:
                gradients = _like_weights(lives) & (lives.born == Phase.BACKWARD)
                saving = lives.saved_at_peak(made | gradients)
                advice = self._advice(code, lives, value, own, saving)
                yield advice if code is cell else replace(advice, line=None)

    def _advice(
        self, code: Code, lives: Lifetimes, value: ast.expr, own: NDArray[np.int64], saving: int
    ) -> Advice:
        size = int(lives.size[own].sum())
        shapes = {lives.tensor(row)[0] or () for row in own.tolist()}
        shape = f" of {[*shapes.pop()]}" if len(shapes) == 1 else ""
        thin = any(
            isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult) for n in ast.walk(value)
        )
        return Advice(
            self.name,
            problem=f"Each forward pass computes weights on {code.place(value.lineno)}, "
            f"{code.text(value)}: {len(own)} results{shape}, {format_bytes(size)}, were kept for "
            "the backward pass.",
            change=_LOW_RANK if thin else _AGAIN,
            line=value.lineno,
            size=size,
            saving=saving,
            known=Known.ESTIMATED,
        )


def computed_weights(code: Code, lives: Lifetimes) -> Computed:
    """Expressions of methods whose results have the shapes of weights; one of each statement."""
    found: dict[ast.stmt, tuple[ast.expr, NDArray[np.bool_]]] = {}
    values = [*_computed(code)]
    made = _like_weights(lives) & (lives.born == Phase.FORWARD) if values else np.zeros(0, bool)
    for value in values if made.any() else ():
        own = made & _made_on(code, lives, lines_of(value))
        if own.any() and _are_weights(code, lives, value, own):
            found.setdefault(code.statement(value), (value, own))
    return tuple(found.values())


def _made_on(code: Code, lives: Lifetimes, lines: range) -> NDArray[np.bool_]:
    """Which storages the text's innermost function made on these lines."""
    inner = (next(iter(code.lines_in(stack)), 0) for stack in lives.stacks)
    return np.array([*(line in lines for line in inner), False], bool)[lives.stack]


def _like_weights(lives: Lifetimes) -> NDArray[np.bool_]:
    """What is as a matrix of weights in shape, and neither that nor kept as its gradient."""
    weights = lives.of(Category.PARAMETER, Category.BUFFER)
    others = weights | lives.of(Category.GRADIENT, Category.OPTIMIZER_STATE)
    shapes = {lives.tensor(row)[0] for row in np.flatnonzero(weights).tolist()}
    shapes = {shape for shape in shapes if shape and len(shape) > 1}
    made = (lives.birth >= 0) & ~others & (lives.stack >= 0)
    rows = [row for row in np.flatnonzero(made).tolist() if lives.tensor(row)[0] in shapes]
    return lives.rows(rows)


def _are_weights(code: Code, lives: Lifetimes, value: ast.expr, own: NDArray[np.bool_]) -> bool:
    """Whether these are what the expression gives: all that its statement computes, or nothing else
    is as large; outputs of as many rows as the layer has would look alike."""
    if value in header(code.statement(value)):
        return True
    others = (lives.born == Phase.FORWARD) & ~code.born_in(value, lives)
    others &= ~lives.of(Category.PARAMETER, Category.BUFFER, Category.GRADIENT)
    others &= ~lives.of(Category.OPTIMIZER_STATE)
    return not np.isin(lives.size[others], lives.size[own]).any()


def _computed(code: Code) -> Iterator[ast.expr]:
    """The largest expressions in methods that compute something of their object's attributes."""
    for function in code.nodes(*FUNCTIONS):
        of_class = isinstance(code.parent(function), ast.ClassDef)
        if not of_class or not isinstance(function, FUNCTIONS) or function.name == "__init__":
            continue
        if parameters(function):
            yield from _in_method(code, function)


def _in_method(code: Code, function: Function) -> Iterator[ast.expr]:
    own = {parameters(function)[0]}
    for statement in code.nodes(ast.stmt, within=function):
        for value in header(statement):
            if not isinstance(statement, FUNCTIONS):
                yield from _largest(code, value, own)
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _of_weights(value, own):
                own.add(name)


def _largest(code: Code, value: ast.expr, own: set[str]) -> Iterator[ast.expr]:
    code.work.spend(1)
    if isinstance(value, ast.BinOp | ast.Call) and _of_weights(value, own):
        read = {n.attr for n in code.nodes(ast.Attribute, within=value)}
        if not read & code.once(_states):
            yield value
        return
    for child in ast.iter_child_nodes(value):
        inner = child.value if isinstance(child, ast.keyword) else child
        if isinstance(inner, ast.expr):
            yield from _largest(code, inner, own)


def _states(code: Code) -> set[str]:
    """Attributes that methods give new values as they run: no weights, whatever their shape."""
    given = (n for n in code.nodes(ast.Attribute) if isinstance(n.ctx, ast.Store))
    within = ((n, code.function(n)) for n in given)
    return {n.attr for n, function in within if function and function.name != "__init__"}


def _of_weights(value: ast.expr, own: set[str]) -> bool:
    """Whether an expression reads these names, and nothing else but functions and constants."""
    read: list[bool] = []
    waiting: list[ast.AST] = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Attribute) and node.attr in _ASKS:
            continue
        if isinstance(node, ast.Call):
            method = isinstance(node.func, ast.Attribute) and _begins(node.func) in own
            waiting += [*([node.func] if method else []), *node.args]
            waiting += [keyword.value for keyword in node.keywords]
        elif isinstance(node, ast.Name):
            read.append(node.id in own)
        else:
            waiting += ast.iter_child_nodes(node)
    return bool(read) and all(read)


def _begins(node: ast.expr) -> str:
    """The name that an expression begins with."""
    while not isinstance(node, ast.Name):
        inner = next((n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)), None)
        if inner is None:
            return ""
        node = inner
    return node.id
