"""Scores for every word of the vocabulary at every position."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace as changed
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rewrite import UnsafeError, import_line, remove, replace, set_keyword
from gpumem_magic.advice.rule import Rule
from gpumem_magic.advice.rules.logits_examples import EXAMPLES
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.values.advice import Advice, Cost, Edit, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_SHARE = 0.2
"""Of the peak: with less, the logits are not what sets it."""

_PIECES = 8
_LOSS = "torch.nn.functional.cross_entropy"
_CHECKPOINT = "torch.utils.checkpoint.checkpoint"
_FLAT = ("view", "reshape", "flatten", "contiguous")


class FullLogits(Rule):
    """The last layer of a language model gives a score to each word of the vocabulary at every
    position: batch x length x vocabulary numbers, often more than all activations before it.

    The loss makes two more of that size, the log-softmax and the gradient. Computed for a piece of
    the positions at a time, under a checkpoint, only one piece is ever there; the last layer is
    then computed twice. For generation only the last position is needed: give the last layer that
    one alone (in transformers: `logits_to_keep=1`).
    """

    name: ClassVar[str] = "full-logits"
    problem: ClassVar[str] = "the logits of all positions set the peak of a language model"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = EXAMPLES

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        if np.any(lives.born == Phase.BACKWARD) or trace.error is not None:
            yield from self._in_training(lives, cell)
        elif not np.any(lives.of(Category.ACTIVATION)):
            yield from self._in_inference(lives, cell, names)

    def _in_training(self, lives: Lifetimes, cell: Code) -> Iterator[Advice]:
        for loss in cell.calls(_LOSS):
            logits = _flattened(loss)
            sized = _of_loss(cell, lives, loss)
            if logits is None or not _weighs(lives, sized):
                continue
            proposed = self.propose(
                cell,
                _advice(lives, sized, loss.lineno, "The loss", lives.saved_at_peak(sized)),
                partial(_in_pieces, cell, loss, logits),
            )
            yield proposed if proposed.source else _unclaimed(proposed)

    def _in_inference(self, lives: Lifetimes, cell: Code, names: Names) -> Iterator[Advice]:
        for read in cell.walk():
            if not isinstance(read, ast.Subscript) or not _is_last_position(read):
                continue
            call = _origin(cell, read.value)
            if call is None:
                continue
            sized = _of_line(cell, lives, call)
            if _weighs(lives, sized):
                saving = lives.saved_at_peak(sized)
                advice = _advice(lives, sized, call.lineno, "The model", saving)
                advice = _last_only(advice)
                proposed = self.propose(cell, advice, partial(_kept, cell, names, read, call))
                yield proposed if proposed.source else _unclaimed(proposed)
                return


def _advice(
    lives: Lifetimes, sized: NDArray[np.bool_], line: int, what: str, saving: int
) -> Advice:
    size = lives.bytes(sized & lives.at_peak)
    return Advice(
        FullLogits.name,
        problem=f"{what} on line {line} holds {format_bytes(size)} of logits at the peak, "
        f"{format_bytes(int(lives.size[sized].max()))} for all positions at once.",
        change=f"Compute the last layer and the loss in {_PIECES} pieces, each checkpointed.",
        line=line,
        size=size,
        saving=saving,
        known=Known.ESTIMATED,
        price="The last layer is computed twice.",
        cost=Cost.TIME,
    )


def _last_only(advice: Advice) -> Advice:
    change = "Compute the logits of the last position only: no other is read."
    return changed(advice, change=change, price="", cost=Cost.NOTHING)


def _unclaimed(advice: Advice) -> Advice:
    return changed(advice, saving=None, known=None)


def _weighs(lives: Lifetimes, sized: NDArray[np.bool_]) -> bool:
    size = lives.bytes(sized & lives.at_peak)
    return size >= max(MIB, _SHARE * int(lives.levels().max()))


def _on_line(cell: Code, lives: Lifetimes, node: ast.expr) -> NDArray[np.bool_]:
    """Storages born while an expression of the cell was computed."""
    return cell.born_in(node, lives) & (lives.birth >= 0) & ~lives.of(Category.WORKSPACE)


def _of_loss(cell: Code, lives: Lifetimes, loss: ast.Call) -> NDArray[np.bool_]:
    """The logits and all that is as large: by the size of the log-softmax that the loss made."""
    inside = [any(f.function == "cross_entropy" for f in stack[:2]) for stack in lives.stacks]
    made = _on_line(cell, lives, loss) & np.array([*inside, False], bool)[lives.stack]
    if not made.any():
        return np.zeros(len(lives), bool)
    largest = int(lives.size[made].max())
    same: NDArray[np.bool_] = np.isin(lives.size, [largest, largest // 2]) & (lives.birth >= 0)
    same &= lives.of(Category.ACTIVATION, Category.TEMPORARY)
    return same


def _of_line(cell: Code, lives: Lifetimes, call: ast.Call) -> NDArray[np.bool_]:
    """What a model's last linear layer returned in a call, where nothing larger was made."""
    here = _on_line(cell, lives, call)
    innermost = [stack[0].filename if stack else "" for stack in lives.stacks]
    linear = np.array([*(f.endswith("modules/linear.py") for f in innermost), False], bool)
    outputs = np.flatnonzero(here & linear[lives.stack])
    if not len(outputs) or lives.size[outputs[-1]] < lives.size[here].max():
        return np.zeros(len(lives), bool)
    found: NDArray[np.bool_] = here & (lives.size >= lives.size[outputs[0]])
    return found


def _flattened(loss: ast.Call) -> ast.expr | None:
    """The logits of `cross_entropy(logits.view(-1, n), targets.view(-1))`."""
    given = loss.args[0] if len(loss.args) > 1 else None
    bare = _bare(given) if given is not None else None
    return bare if bare is not given else None


def _bare(node: ast.expr) -> ast.expr:
    """Without `.view(...)` and the like."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in _FLAT:
            break
        node = node.func.value
    return node


def _in_pieces(cell: Code, loss: ast.Call, logits: ast.expr) -> Iterator[Edit]:
    if len(loss.args) != 2 or any(k.arg != "ignore_index" for k in loss.keywords):
        raise UnsafeError("the loss has options of its own")
    ignored = next((cell.text(k.value) for k in loss.keywords), "-100")
    option = f", ignore_index={ignored}" if loss.keywords else ""
    head, made = _head(cell, cell.statement(loss), logits)
    hidden, layer = cell.text(head.args[0]), cell.text(head.func)
    targets = cell.text(_bare(loss.args[1]))
    checkpoint = "checkpoint"
    if cell.dotted(ast.Name(checkpoint)) != _CHECKPOINT:
        if checkpoint in cell.spoken():
            raise UnsafeError("checkpoint is a name of the cell already")
        yield from import_line(cell, f"from {_CHECKPOINT.rpartition('.')[0]} import checkpoint")
    indent = cell.indentation(loss.lineno)
    function = cell.text(loss.func)
    text = (
        f"sum(\n{indent}    {checkpoint}(\n"
        f'{indent}        lambda h, t: {function}({layer}(h), t{option}, reduction="sum"),\n'
        f"{indent}        h, t, use_reentrant=False,\n{indent}    )\n"
        f"{indent}    for h, t in zip({hidden}.flatten(0, -2).chunk({_PIECES}), "
        f"{targets}.flatten().chunk({_PIECES}))\n"
        f"{indent}) / ({targets} != {ignored}).sum()"
    )
    if made is not None:
        yield from remove(cell, made)
    yield from replace(cell, loss, text)


def _head(cell: Code, statement: ast.stmt, logits: ast.expr) -> tuple[ast.Call, ast.Assign | None]:
    """The call of the last layer, and the statement that names its result."""
    made = None
    if isinstance(logits, ast.Name):
        given = set(cell.assigned(logits.id))
        above = [s for s in cell.before(statement) if s in given]
        if len(above) != 1 or not isinstance(above[0], ast.Assign):
            raise UnsafeError("the last layer is not called beside the loss")
        reads = list(cell.reads(logits.id, within=cell.function(statement)))
        if any(cell.statement(read) is not statement for read in reads) or len(reads) > 2:
            raise UnsafeError(f"{logits.id} is read elsewhere, too")
        made = above[0]
        logits = made.value
    if not isinstance(logits, ast.Call) or len(logits.args) != 1 or logits.keywords:
        raise UnsafeError("the last layer is not called beside the loss")
    if not isinstance(logits.func, ast.Attribute):
        raise UnsafeError("the whole model is called, not its last layer")
    return logits, made


def _is_last_position(node: ast.Subscript) -> bool:
    """`[:, -1]`, `[:, -1, :]`."""
    index = node.slice
    return (
        isinstance(index, ast.Tuple)
        and len(index.elts) > 1
        and ast.unparse(index.elts[0]) == ":"
        and ast.unparse(index.elts[1]) in ("-1", "-1:")
    )


def _origin(cell: Code, node: ast.expr) -> ast.Call | None:
    """The call that made the logits, through a name or `.logits`."""
    if isinstance(node, ast.Attribute) and node.attr == "logits":
        return _origin(cell, node.value)
    if isinstance(node, ast.Call):
        return node
    if isinstance(node, ast.Name):
        made = list(cell.assigned(node.id))
        if len(made) == 1 and isinstance(made[0], ast.Assign):
            return _origin(cell, made[0].value)
    return None


def _kept(cell: Code, names: Names, read: ast.Subscript, call: ast.Call) -> Iterator[Edit]:
    """The last layer is given the last position, or the model is told to keep it."""
    statement = cell.statement(call)
    given = statement.value if isinstance(statement, ast.Assign) else None
    whole = given is call or (isinstance(given, ast.Attribute) and given.value is call)
    target = statement.targets[0] if whole and isinstance(statement, ast.Assign) else None
    if isinstance(target, ast.Name):
        for other in cell.reads(target.id):
            above = cell.parent(other)
            if isinstance(above, ast.Attribute) and above.attr == "logits":
                above = cell.parent(above)
            if not isinstance(above, ast.Subscript) or not _is_last_position(above):
                raise UnsafeError(f"{target.id} is read elsewhere, too")
    facts = names.modules.get(cell.text(call.func))
    if facts is not None and facts.type.startswith("transformers."):
        yield from set_keyword(cell, call, "logits_to_keep", "1")
        return
    layer = (
        call
        if isinstance(call.func, ast.Attribute)
        else _last_layer(cell, facts.type if facts else "")
    )
    if len(layer.args) != 1 or layer.keywords:
        raise UnsafeError("the last layer has more than one input")
    end = cell.end(layer.args[0])
    yield Edit(end, end, "[:, -1:]")


def _last_layer(cell: Code, kind: str) -> ast.Call:
    """`self.head(x)` in `return self.head(x)` of the model's class in this cell."""
    name = kind.rpartition(".")[2]
    for made in cell.walk():
        if isinstance(made, ast.ClassDef) and made.name == name:
            returns = [n for n in ast.walk(made) if isinstance(n, ast.Return)]
            forward = [n for n in returns if getattr(cell.function(n), "name", "") == "forward"]
            value = forward[0].value if len(forward) == 1 else None
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                return value
    raise UnsafeError("the last layer of the model is not in this cell")
