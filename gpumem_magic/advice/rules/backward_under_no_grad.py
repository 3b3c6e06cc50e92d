"""A training step under `torch.no_grad()`, which has nothing to go backward through."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from gpumem_magic.advice.code import Code, Function
from gpumem_magic.advice.evidence.definitions import header
from gpumem_magic.advice.evidence.gradient_flow import (
    NO_GRAPH,
    GradientFlow,
    backward_calls,
    goes_backward,
)
from gpumem_magic.advice.rewrite import UnsafeError
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.values.advice import Advice, Edit, Example, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names

_ERROR = "does not require grad and does not have a grad_fn"
_STEPS = (".backward", ".step", ".zero_grad", ".item", ".train", ".eval", "print")
_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(128, 64, device="cuda")
labels = torch.randint(0, 4, (128,), device="cuda")
criterion(model(x), labels).backward()
optimizer.step()
"""


class BackwardUnderNoGrad(Rule):
    """A forward pass under `torch.no_grad()` leaves nothing for `backward()` to go through.

    The error "element 0 of tensors does not require grad and does not have a grad_fn" says that the
    loss was computed without a graph. Where the forward pass stands under `torch.no_grad()` or
    `torch.inference_mode()`, in a `with` block or by a decorator, the training step has to move out
    of it. This is about a correct program: training needs the memory that `no_grad` saves.
    """

    name: ClassVar[str] = "backward-under-no-grad"
    problem: ClassVar[str] = "backward() failed, because its forward pass ran without gradients"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_SETUP,
            before="""\
for step in range(2):
    optimizer.zero_grad()
    with torch.no_grad():  # saves memory
        output = model(x)
        # compare
        loss = criterion(output, labels)
        loss.backward()
    optimizer.step()""",
            after="""\
for step in range(2):
    optimizer.zero_grad()
    output = model(x)
    # compare
    loss = criterion(output, labels)
    loss.backward()
    optimizer.step()""",
        ),
        mended(
            ("@torch.no_grad()\n", ""),
            setup=_SETUP,
            before="""\
@torch.no_grad()
def train_step(model, batch, labels):
    optimizer.zero_grad()
    loss = criterion(model(batch), labels)
    loss.backward()
    optimizer.step()
    return loss.item()

print(train_step(model, x, labels))""",
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        if trace.error is None or _ERROR not in trace.error:
            return
        found = [place for call in backward_calls(cell) for place in _places(cell, names, call)]
        for place in dict.fromkeys(found):
            yield self._advice(cell, names, place)

    def _advice(self, cell: Code, names: Names, place: _Place) -> Advice:
        last = place.node.end_lineno or place.line
        advice = Advice(
            self.name,
            problem=f"backward() on line {place.call.lineno} has nothing to go through: its "
            f"forward pass stands under {place.text} of line {place.line} (to line {last}).",
            change="Move the forward pass, the loss and backward() out of it.",
            line=place.line,
            saving=0,
            known=Known.EXACT,
        )
        return self.propose(cell, advice, lambda: _without(cell, names, place))


@dataclass(frozen=True, slots=True)
class _Place:
    """A block, or a decorated function, that turns gradients off; held: the expression in it."""

    node: ast.With | Function
    held: ast.expr
    call: ast.Call
    text: str

    @property
    def line(self) -> int:
        return self.held.lineno


def _places(cell: Code, names: Names, call: ast.Call) -> Iterator[_Place]:
    """What turned gradients off around the forward pass of a `backward()`: the innermost.

    None where a model ran outside of it, too: that one's parameters may be frozen.
    """
    statements = [cell.statement(call), *_behind(cell, names, call)]
    if any(_runs_a_model(names, s) and not cell.is_under(s, *NO_GRAPH) for s in statements):
        return
    for statement in statements:
        for above in cell.ancestors(statement):
            if isinstance(above, ast.With):
                held = [item.context_expr for item in above.items]
            elif isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef):
                held = above.decorator_list
            else:
                continue
            off = [e for e in held if _is_off(cell, e)]
            if off:
                yield _Place(above, off[0], call, cell.text(off[0]))
                break


def _runs_a_model(names: Names, statement: ast.stmt) -> bool:
    calls = [n.func for v in header(statement) for n in ast.walk(v) if isinstance(n, ast.Call)]
    models = [names.modules.get(f.id) for f in calls if isinstance(f, ast.Name)]
    return any(model is not None and model.parameters for model in models)


def _behind(cell: Code, names: Names, call: ast.Call) -> set[ast.stmt]:
    """The statements that a `backward()` would have gone through, had they recorded."""
    return GradientFlow(cell, names, everywhere=True).origin(goes_backward(call)).statements


def _is_off(cell: Code, expression: ast.expr) -> bool:
    called = expression.func if isinstance(expression, ast.Call) else expression
    return cell.dotted(called) in NO_GRAPH


def _without(cell: Code, names: Names, place: _Place) -> Iterator[Edit]:
    if isinstance(place.node, ast.With):
        yield from _dedented(cell, names, place.node, place)
    else:
        line = place.held.lineno
        if place.held.end_lineno != line or not cell.lines[line - 1].lstrip().startswith("@"):
            raise UnsafeError("the decorator takes more than its line")
        yield _whole_lines(cell, line, line)


def _dedented(cell: Code, names: Names, block: ast.With, place: _Place) -> Iterator[Edit]:
    """The statements of the block in its place; lines that begin inside a string stay."""
    first = block.body[0]
    if len(block.items) != 1 or first.lineno <= (place.held.end_lineno or place.line):
        raise UnsafeError("the block opens something else as well, or stands on one line")
    if not all(_belongs(cell, names, place, statement) for statement in block.body):
        raise UnsafeError("the block holds more than the training step")
    begin = block.lineno
    depth = len(cell.indentation(first.lineno)) - len(cell.indentation(begin))
    yield _whole_lines(cell, begin, place.held.end_lineno or begin)
    inside = cell.lines_inside_strings()
    for number in range((place.held.end_lineno or begin) + 1, (block.end_lineno or begin) + 1):
        if number not in inside and cell.lines[number - 1][:depth].isspace():
            at = cell.offset(number, 0)
            yield Edit(at, at + depth, "")


def _belongs(cell: Code, names: Names, place: _Place, statement: ast.stmt) -> bool:
    """Whether a statement is part of the training step, or touches no graph."""
    step = _behind(cell, names, place.call)
    if statement in step or place.call in ast.walk(statement):
        return True
    calls = cell.calls(*_STEPS, within=statement)
    return isinstance(statement, ast.Expr) and calls[:1] == [statement.value]


def _whole_lines(cell: Code, first: int, last: int) -> Edit:
    start = cell.offset(first, 0)
    return Edit(start, cell.offset(last, 0) + len(cell.lines[last - 1]) + 1, "")
