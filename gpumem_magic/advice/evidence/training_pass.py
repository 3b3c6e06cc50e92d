"""Finds the forward statements of a cell whose activations wait for its one `backward()`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code, called
from gpumem_magic.advice.rewrite import UnsafeError, insert_before
from gpumem_magic.advice.tree import root
from gpumem_magic.values.advice import Edit
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import ModuleFacts, Names

_SHARE = 0.01
"""Of the activations: statements with less are passed over at the ends of the forward pass."""

_LOSS_MODULES = "torch.nn.modules.loss."


@dataclass(frozen=True, slots=True)
class TrainingPass:
    """Neighbouring statements of one block, the forward pass and the loss, and the statement
    `loss.backward()` that follows in the same block. value: what it calls `backward()` on, the
    variable `loss` itself or a part of it ("output.loss")."""

    forward: tuple[ast.stmt, ...]
    backward: ast.Expr
    loss: str
    value: ast.expr

    def walk(self) -> Iterator[ast.AST]:
        """All nodes of the forward pass."""
        return chain.from_iterable(map(ast.walk, self.forward))


def find_pass(cell: Code, lives: Lifetimes, activations: NDArray[np.bool_]) -> TrainingPass:
    """The statements that made these activations. Raises UnsafeError where there is no one place
    in the cell, or where it is written otherwise."""
    backward = one_backward(cell)
    loss, value = _loss_of(cell, backward)
    before = cell.before(backward)
    sizes = [bytes_of(cell, lives, activations, statement) for statement in before]
    total = lives.bytes(activations)
    weighty = [i for i, size in enumerate(sizes) if size > _SHARE * total]
    if not weighty or 2 * sum(sizes) < total:
        raise UnsafeError("the forward pass is not in the same block as backward()")
    given = set(cell.assigned(loss))
    assigned = [i for i, statement in enumerate(before) if statement in given]
    forward = tuple(before[weighty[0] : max([*weighty, *assigned]) + 1])
    for statement in forward:
        if cell.calls(".step", ".backward", within=statement):
            raise UnsafeError("an optimizer steps between the forward pass and backward()")
    return TrainingPass(forward, backward, loss, value)


def bytes_of(cell: Code, lives: Lifetimes, storages: NDArray[np.bool_], statement: ast.stmt) -> int:
    """Bytes of those storages that were born while a statement of the cell ran."""
    return lives.bytes(storages & cell.born_in(statement, lives))


def heaviest_line(cell: Code, lives: Lifetimes, storages: NDArray[np.bool_]) -> int | None:
    """The line of the cell that most bytes of these storages were born on."""
    lines = cell.calling_lines(lives)
    sizes = np.bincount(np.maximum(lines, 0), np.where(storages, lives.size, 0))
    sizes[0] = 0
    return int(sizes.argmax()) or None


def model_of(cell: Code, names: Names) -> tuple[str, ModuleFacts] | None:
    """The largest model that the cell speaks of, by its name."""
    spoken = cell.spoken()
    models = [(name, facts) for name, facts in names.modules.items() if name in spoken]
    return max(models, key=lambda model: model[1].parameters, default=None)


def outermost(cell: Code, statement: ast.stmt) -> ast.stmt:
    """The outermost loop around a statement within its function, or the statement itself."""
    found = statement
    loop = cell.loop(statement)
    while loop is not None:
        found, loop = loop, cell.loop(loop)
    return found


def before_loops(cell: Code, statement: ast.stmt, text: str) -> tuple[Edit, ...]:
    """A line above the outermost loop around a statement."""
    return insert_before(cell, outermost(cell, statement), text)


def is_mean_loss(cell: Code, names: Names, call: ast.expr) -> bool:
    """Whether an expression is a loss that is the mean over the first dimension of its inputs."""
    if not isinstance(call, ast.Call) or _weighs(call):
        return False
    function = cell.dotted(call.func)
    if function.startswith("torch.nn.functional."):
        return function.endswith(("_loss", "cross_entropy", "_with_logits"))
    if isinstance(call.func, ast.Attribute) and call.func.attr == "mean" and not call.args:
        return True
    if not isinstance(call.func, ast.Name):
        return False
    makers = [s for s in cell.assigned(call.func.id) if isinstance(s, ast.Assign)]
    if any(isinstance(maker.value, ast.Call) and _weighs(maker.value) for maker in makers):
        return False
    facts = names.modules.get(call.func.id)
    return facts is not None and facts.type.startswith(_LOSS_MODULES) and not facts.buffers


def is_mean_of_tokens(cell: Code, names: Names, loss: ast.expr, output: ast.expr) -> bool:
    """Whether `output.loss` is the mean over all tokens that a model of transformers computes: that
    is certain where the labels are its input, as none of them can be left out then (-100)."""
    if not isinstance(loss, ast.Attribute) or loss.attr != "loss":
        return False
    if not isinstance(output, ast.Call) or not isinstance(output.func, ast.Name):
        return False
    model = names.modules.get(output.func.id)
    given = {keyword.arg: cell.text(keyword.value) for keyword in output.keywords}
    inputs = cell.text(output.args[0]) if output.args else given.get("input_ids")
    known = model is not None and model.type.startswith("transformers.")
    return known and inputs is not None and given.get("labels") == inputs and None not in given


def _weighs(call: ast.Call) -> bool:
    """Whether not every element counts the same, or their sum is taken."""
    return any(k.arg in ("reduction", "weight", "ignore_index", None) for k in call.keywords)


def one_backward(cell: Code) -> ast.Expr:
    """The statement `loss.backward()` of a cell that has one. Raises UnsafeError where it is
    written otherwise."""
    calls = list(cell.calls(".backward"))
    if len(calls) != 1:
        raise UnsafeError(f"the cell has {len(calls) or 'no'} calls of backward()")
    statement = cell.statement(calls[0])
    if not isinstance(statement, ast.Expr) or statement.value is not calls[0]:
        raise UnsafeError("backward() is part of a longer statement")
    if calls[0].args or calls[0].keywords:
        raise UnsafeError("backward() has arguments")
    return statement


def _loss_of(cell: Code, backward: ast.Expr) -> tuple[str, ast.expr]:
    """The variable that holds the loss, and what of it `backward()` is called on."""
    value = called_on(backward)
    name = root_of_loss(cell, backward)
    if not name:
        raise UnsafeError("the loss of backward() has no name of its own")
    return name, value


def root_of_loss(cell: Code, backward: ast.Expr) -> str:
    """The variable that holds the loss; "" where it is computed in the statement itself."""
    value = called_on(backward)
    name = root(value.left if isinstance(value, ast.BinOp) else value)
    functions = [node.func for node in ast.walk(value) if isinstance(node, ast.Call)]
    computed = cell.is_imported(name) or any(
        root(f) != name or isinstance(f, ast.Name) for f in functions
    )
    return "" if computed else name


def called_on(backward: ast.Expr) -> ast.expr:
    """What `backward()` is called on, without the GradScaler that scales it."""
    call = backward.value
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    value = call.func.value
    if isinstance(value, ast.Call) and len(value.args) == 1 and called(value) == "scale":
        return value.args[0]
    return value
