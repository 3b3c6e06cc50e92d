"""Finds the parts of a training step in a cell: optimizers, their steps, what clears gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code, called
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import BEFORE, Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category

_OPTIMIZER = re.compile(r"torch\.optim\.(?:(?!lr_scheduler|swa_utils)\w+\.)?([A-Z]\w*)")
_OWNER = re.compile(r"(?:<.*?\.state\[|list\()?(\w+)")
"""Whose a gradient or a state is: its optimizer's where that has a name, else its model's."""

_LAST = re.compile(r"([^\W\d]\w*)(?:\.values\(\)\))?(?:\[[^\]]*\])*$")
"""The last word of a tensor's name: "exp_avg" of "adam.exp_avg[2]", and of what is found under a
key that is an object, "list(adam.exp_avg.values())[2]"."""

_OWNED = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.ACTIVATION)

_HARMLESS = re.compile(r"zero_grad|no_grad|enable_grad|set_grad_enabled|requires_grad|clip_grad")


@dataclass(frozen=True, slots=True)
class Built:
    """A statement `target = torch.optim.Kind(...)`; target and kind as text."""

    statement: ast.stmt
    call: ast.Call
    target: str
    kind: str


@dataclass(frozen=True, slots=True)
class Step:
    """A statement that makes an optimizer's step. optimizer: its text ("self.optimizer"). scaled:
    a loss scaler makes it (`scaler.step(optimizer)`)."""

    statement: ast.stmt
    call: ast.Call
    optimizer: str
    scaled: bool

    @property
    def line(self) -> int:
        """Where it stands."""
        return self.call.lineno


def optimizer_class(dotted: str) -> str:
    """ "AdamW" for "torch.optim.AdamW" and "torch.optim.adamw.AdamW"; "" for what is no optimizer
    of torch."""
    match = _OPTIMIZER.fullmatch(dotted)
    return match[1] if match else ""


def find_built(cell: Code) -> tuple[Built, ...]:
    """Optimizers of torch that the cell builds and gives a name or an attribute."""
    return cell.once(_built)


def _built(cell: Code) -> tuple[Built, ...]:
    return tuple(
        Built(node, node.value, cell.text(node.targets[0]), kind)
        for node in cell.nodes(ast.Assign)
        if isinstance(node.value, ast.Call) and len(node.targets) == 1
        if (kind := optimizer_class(cell.dotted(node.value.func)))
    )


def find_steps(cell: Code, names: Names) -> Iterator[Step]:
    """Statements that make a step of an optimizer; those with a closure are none of them."""
    for call in cell.calls(".step"):
        statement = cell.statement(call)
        if not isinstance(statement, ast.Expr) or not isinstance(call.func, ast.Attribute):
            continue
        first = call.args[0] if call.args else None
        if first is None and is_optimizer(call.func.value, cell, names):
            yield Step(statement, call, cell.text(call.func.value), scaled=False)
        elif first is not None and is_optimizer(first, cell, names):
            yield Step(statement, call, cell.text(first), scaled=True)


def is_optimizer(expression: ast.expr, cell: Code, names: Names) -> bool:
    """Whether an expression is an optimizer: by its value, else by what the cell does with it."""
    if not isinstance(expression, (ast.Name, ast.Attribute)):
        return False
    text = cell.text(expression)
    if any(built.target == text for built in find_built(cell)):
        return True
    if isinstance(expression, ast.Name) and cell.function(expression) is None:
        return expression.id in names.optimizers
    if text in names.modules or text in names.others:
        return False
    return text in names.optimizers or any(
        isinstance(call.func, ast.Attribute) and cell.text(call.func.value) == text
        for call in cell.calls(".zero_grad")
    )


def trained_here(cell: Code, lives: Lifetimes) -> Lifetimes:
    """The same, with gradients and states that are older than the cell, and of models and
    optimizers that it does not speak of, as "other"."""
    older = lives.of(Category.GRADIENT, Category.OPTIMIZER_STATE) & (lives.line == BEFORE)
    spoken, category = cell.spoken(), lives.category.copy()
    for row in np.flatnonzero(older).tolist():
        owner = _OWNER.match(lives.name(row) or "")
        if owner is not None and owner[1] not in spoken:
            category[row] = list(Category).index(Category.OTHER)
    return replace(lives, category=category)


def are_kept(trace: Trace) -> bool:
    """Whether passes of a loop leave models or gradients behind: then not all of them are the
    step's."""
    rows = [row for growth in trace.growth for row in growth.rows]
    return bool(trace.lives.of(Category.PARAMETER, Category.GRADIENT)[rows].any())


def states_by_hand(cell: Code, lives: Lifetimes) -> NDArray[np.bool_]:
    """What is alive at the peak in the size of a weight, and called by a name that code uses which
    changes a weight by its gradient: the states of an optimizer that is none of torch's."""
    if (joined := cell.joined()) is not None:
        cell, lives = joined[0], joined[1].lives
    found = np.zeros(len(lives), bool)
    if not (words := cell.once(_beside_updates)):
        return found
    sizes = np.unique(lives.size[lives.of(Category.PARAMETER) & lives.at_peak])
    own = lives.at_peak & np.isin(lives.size, sizes) & ~lives.of(*_OWNED)
    lines = [node.lineno for node in cell.nodes(ast.Name, ast.Attribute) if _sets(node, words)]
    found |= own & ~lives.named() & np.isin(lives.line, lines)
    for row in np.flatnonzero(own & lives.named()).tolist():
        match = _LAST.search(lives.name(row) or "")
        found[row] = match is not None and match[1] in words
    return found


def _sets(node: ast.expr, words: set[str]) -> bool:
    match node:
        case ast.Name(id=word, ctx=ast.Store()) | ast.Attribute(attr=word, ctx=ast.Store()):
            return word in words
    return False


def _beside_updates(cell: Code) -> set[str]:
    """The names and attributes in the loops, or else functions, in which `p` is changed in place
    and `p.grad` is read."""
    words: set[str] = set()
    for read in cell.nodes(ast.Attribute):
        if read.attr != "grad" or not isinstance(read.ctx, ast.Load):
            continue
        around = cell.loop(read) or cell.function(read)
        own = cell.text(read.value).removesuffix(".data")
        if around is not None and {own, f"{own}.data"} & _changed_in_place(cell, around):
            words |= cell.spoken(around) - {own}
            words |= {node.attr for node in cell.nodes(ast.Attribute, within=around)}
    return words


def _changed_in_place(cell: Code, within: ast.AST) -> set[str]:
    calls = (call for call in cell.nodes(ast.Call, within=within) if called(call).endswith("_"))
    added = (node.target for node in cell.nodes(ast.AugAssign, within=within))
    return {receiver(call, cell) for call in calls} | {cell.text(target) for target in added}


def receiver(call: ast.Call, cell: Code) -> str:
    """The text of what a method is called on."""
    return cell.text(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def is_always_run_after(later: ast.stmt, earlier: ast.stmt, cell: Code) -> bool:
    """Whether both stand in one block, in this order, with no way out between them."""
    if cell.block(earlier) is not cell.block(later) or cell.index(later) <= cell.index(earlier):
        return False
    leaves = (ast.Continue, ast.Break, ast.Return)
    between = cell.after(earlier, until=later)
    return not any(cell.nodes(*leaves, within=statement) for statement in between)


def reads_gradients(cell: Code) -> bool:
    """Whether code reads or sets gradients itself: `.grad`, or a function called after them."""
    if any(
        n.attr == "grad" and not cell.dotted(n).startswith("torch.autograd.")
        for n in cell.nodes(ast.Attribute)
    ):
        return True
    for call in cell.nodes(ast.Call):
        name = called(call) or cell.text(call.func).rsplit(".", 1)[-1]
        own = cell.dotted(call.func).startswith("torch.autograd.") or "autograd" in name
        if "grad" in name and not own and not _HARMLESS.search(name):
            return True
    return False
