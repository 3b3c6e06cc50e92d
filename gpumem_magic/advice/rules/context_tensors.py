"""Custom autograd functions that keep tensors as attributes of their context."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.evidence.unused_graphs import freed_by_backward
from gpumem_magic.advice.rewrite import UnsafeError, insert_before, remove
from gpumem_magic.advice.rewrite import replace as put
from gpumem_magic.advice.rule import Rule
from gpumem_magic.advice.tree import lines_of
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Edit, Example, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names

_CONTEXTS = ("torch.autograd.Function", "torch.autograd.function.Function")
_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(8)]).cuda()
x = torch.randn(2048, 512, device="cuda")
optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)
"""
_STEPS = """\
for step in range(3):
    optimizer.zero_grad()
    h = x
    for layer in layers:
        h = {name}.apply(layer(h){more})
    loss = h.pow(2).mean()
    loss.backward()
    optimizer.step()
last = loss.item()"""
_SWISH = """\
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        {keep}
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        {first}s = torch.sigmoid({x})
        return grad * (s * (1 + {x} * (1 - s)))

""" + _STEPS.format(name="Swish", more="")
_SCALED = """\
class ScaledExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale  # a number
        inner = torch.tanh(x)
{keep}        return inner * scale

    @staticmethod
    def backward(ctx, grad):
{first}        return grad * ctx.scale * (1 - {inner} ** 2), None

""" + _STEPS.format(name="ScaledExp", more=", 0.5")


class ContextTensors(Rule):
    """A custom `autograd.Function` that keeps tensors as `ctx.x = x` keeps them for too long.

    What `ctx.save_for_backward(x)` saves is given back as soon as `backward()` has gone through the
    function. A tensor kept as an attribute stays until the whole graph goes: with the loss, or, if
    it is an output of the function (which then holds itself), not before the garbage collector
    comes by, however many steps later. Save tensors by `ctx.save_for_backward(...)` and read them
    from `ctx.saved_tensors`; numbers, shapes and flags may stay attributes.
    """

    name: ClassVar[str] = "context-tensors"
    problem: ClassVar[str] = "a custom autograd function keeps tensors as attributes of ctx"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_SETUP,
            before=_SWISH.format(keep="ctx.x = x", first="", x="ctx.x"),
            after=_SWISH.format(
                keep="ctx.save_for_backward(x)", first="x, = ctx.saved_tensors\n        ", x="x"
            ),
            results=("last",),
        ),
        Example(
            setup=_SETUP,
            before=_SCALED.format(keep="        ctx.inner = inner\n", first="", inner="ctx.inner"),
            after=_SCALED.format(
                keep="        ctx.save_for_backward(inner)\n",
                first="        inner, = ctx.saved_tensors\n",
                inner="inner",
            ),
            results=("last",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        if not cell.calls(".backward"):
            return
        if any(k.arg == "retain_graph" for call in cell.calls(".backward") for k in call.keywords):
            return
        own = [one for one in _functions(cell) if one.kept and _made(lives, one).any()]
        if not own:
            return
        levels = lives.levels()
        made = np.logical_or.reduce([_made(lives, one) for one in own])
        sooner = replace(lives, death=freed_by_backward(lives, made)).levels()
        saving = int(levels.max() - sooner.max())
        if saving < least_saving(trace):
            return
        for one in own:
            yield self._advice(cell, one, saving)

    def _advice(self, cell: Code, one: _Custom, saving: int) -> Advice:
        attributes = ", ".join(dict.fromkeys(f"ctx.{kept.name}" for kept in one.kept))
        line = one.kept[0].statement.lineno
        advice = Advice(
            self.name,
            problem=f"{one.definition.name} keeps {attributes} (line {line}) beyond its backward "
            f"pass: about {format_bytes(saving)} at the peak is held by graphs that are done.",
            change=f"Save the tensors by {one.context}.save_for_backward(...).",
            line=line,
            name=one.definition.name,
            size=saving,
            saving=saving,
            known=Known.ESTIMATED,
        )
        return self.propose(cell, advice, lambda: _saved(cell, one))


@dataclass(frozen=True, slots=True)
class _Kept:
    """`ctx.name = value` in forward."""

    name: str
    statement: ast.Assign


@dataclass(frozen=True, slots=True)
class _Custom:
    """A custom autograd function. context: what it calls its context in forward; kept: what is
    surely a tensor there."""

    definition: ast.ClassDef
    forward: ast.FunctionDef
    backward: ast.FunctionDef
    context: str
    kept: tuple[_Kept, ...]


def _functions(cell: Code) -> Iterator[_Custom]:
    for node in cell.walk():
        if not isinstance(node, ast.ClassDef):
            continue
        if not any(cell.dotted(base) in _CONTEXTS for base in node.bases):
            continue
        methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        if "forward" in methods and "backward" in methods and methods["forward"].args.args:
            forward, context = methods["forward"], methods["forward"].args.args[0].arg
            kept = tuple(_kept(cell, forward, context))
            yield _Custom(node, forward, methods["backward"], context, kept)


def _kept(cell: Code, forward: ast.FunctionDef, context: str) -> Iterator[_Kept]:
    for node in ast.walk(forward):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            for target, value in _pairs(node.targets[0], node.value):
                if not isinstance(target, ast.Attribute) or not _is_name(target.value, context):
                    continue
                if _is_tensor(cell, forward, value):
                    yield _Kept(target.attr, node)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The parts of `ctx.a, ctx.b = a, b`, or of a plain assignment."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    else:
        yield target, value


def _is_tensor(cell: Code, forward: ast.FunctionDef, value: ast.expr, depth: int = 4) -> bool:
    """Whether a value in forward is surely a tensor: computed by torch, or an argument of it."""
    if isinstance(value, ast.Call):
        return cell.dotted(value.func).startswith("torch.") and not cell.dotted(
            value.func
        ).startswith(("torch.is_", "torch.Size", "torch.get_", "torch.numel"))
    if isinstance(value, ast.BinOp):
        return any(_is_tensor(cell, forward, v, depth) for v in (value.left, value.right))
    if not isinstance(value, ast.Name) or not depth:
        return False
    made = [
        s.value
        for s in ast.walk(forward)
        if isinstance(s, ast.Assign) and any(_is_name(t, value.id) for t in s.targets)
    ]
    if made:
        return all(_is_tensor(cell, forward, v, depth - 1) for v in made)
    for call in ast.walk(forward):
        if isinstance(call, ast.Call):
            called = cell.dotted(call.func)
            if called.startswith("torch.") and any(_is_name(a, value.id) for a in call.args[:1]):
                return True
            function = call.func
            if isinstance(function, ast.Attribute) and _is_name(function.value, value.id):
                return True  # a number has no such methods
    return False


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _made(lives: Lifetimes, one: _Custom) -> NDArray[np.bool_]:
    """What its forward pass made in this cell; autograd does not record what happens inside."""
    return np.isin(lives.line, lines_of(one.forward)) & (lives.birth >= 0)


def _saved(cell: Code, one: _Custom) -> Iterator[Edit]:
    """`save_for_backward` in place of the attributes, and their names read from it."""
    names = [kept.name for kept in one.kept]
    values = [cell.text(kept.statement.value) for kept in one.kept]
    if len(set(names)) < len(names) or any(
        bool(cell.calls(f".{method}", within=one.definition))
        for method in ("save_for_backward", "save_for_forward")
    ):
        raise UnsafeError("the function saves tensors in more than one way")
    if any(isinstance(kept.statement.targets[0], ast.Tuple) for kept in one.kept):
        raise UnsafeError("several attributes are set at once")
    body = one.forward.body
    if any(kept.statement not in body for kept in one.kept):
        raise UnsafeError("it is kept on a condition")
    arguments = one.backward.args.args
    bound = {n.id for n in ast.walk(one.backward) if isinstance(n, ast.Name)}
    bound |= {argument.arg for argument in arguments}
    if not arguments or bound & set(names):
        raise UnsafeError("backward has a variable of the same name")
    others = [n for n in cell.walk() if isinstance(n, ast.Attribute) and n.attr in names]
    context = arguments[0].arg
    reads = [n for n in ast.walk(one.backward) if n in others and _is_name(n.value, context)]
    targets = [kept.statement.targets[0] for kept in one.kept]
    inside = {*ast.walk(one.definition)}
    if any(n not in reads and n not in targets for n in others if n in inside):
        raise UnsafeError("the attribute is used elsewhere, too")
    last = max(one.kept, key=lambda kept: kept.statement.lineno)
    for kept in one.kept:
        if kept is not last:
            yield from remove(cell, kept.statement)
    yield from put(cell, last.statement, f"{one.context}.save_for_backward({', '.join(values)})")
    unpacked = ", ".join(names) + ("," if len(names) == 1 else "")
    yield from insert_before(cell, _first(one.backward), f"{unpacked} = {context}.saved_tensors")
    for node in reads:
        if isinstance(node, ast.Attribute):
            yield from put(cell, node, node.attr)


def _first(function: ast.FunctionDef) -> ast.stmt:
    """The first statement behind the docstring."""
    has_text = ast.get_docstring(function) is not None and len(function.body) > 1
    return function.body[1 if has_text else 0]
