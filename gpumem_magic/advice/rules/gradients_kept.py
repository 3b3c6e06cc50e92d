"""Gradients that stay in memory while nobody reads them."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.kept_gradients import (
    KeptGradients,
    find_finished,
    find_zeroed,
    gradients_of,
)
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.evidence.training_code import find_steps, receiver
from gpumem_magic.advice.rewrite import (
    UnsafeError,
    insert_after,
    insert_before,
    remove_keyword,
    replace,
)
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.tree import lines_of
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Edit, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Phase

_SHARE = 0.05
"""Of the peak: less is not worth another place for zero_grad() than where everybody writes it."""

_MODEL = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(768, 768), nn.ReLU()) for _ in range(16)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
data = [torch.randn(256, 768, device="cuda") for _ in range(3)]
"""

_TRAINER = """\
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(16)]).cuda()
batches = [(torch.randn(64, 512, device="cuda"), torch.rand(64, 512, device="cuda"))] * 2
held_out = torch.randn(8192, 512, device="cuda")
"""

_CLASS = """\
class Trainer:
    def __init__(self, model, lr=0.05):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def training_step(self, x, y):
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step(){}
        return loss.item()

    @torch.no_grad()
    def evaluate(self, x):
        self.model.eval()
        return self.model(x).mean().item()

trainer = Trainer(net)
losses = [trainer.training_step(x, y) for x, y in batches]
score = trainer.evaluate(held_out)"""


class GradientsKept(Rule):
    """Gradients that nothing will read any more, and that are alive at the peak.

    Once the optimizer has made its step, the gradients are spent: as many bytes as the trained
    parameters have. `optimizer.zero_grad()` frees them, and right after the step is the place for
    it: then they are gone during the next forward pass and during an evaluation in between. Where
    it stands between the forward pass and `backward()`, or only at the top of the next epoch, they
    lie idle while activations pile up. `zero_grad(set_to_none=False)` and `p.grad.zero_()` never
    free them at all: they fill them with zeros. Results are the same, but for one case: the
    optimizer skips a parameter without a gradient, where with zeros it would have applied momentum
    and weight decay. An ordinary training loop does so, and nothing is wrong with it: the rule
    speaks when memory is short.
    """

    name: ClassVar[str] = "gradients-kept"
    problem: ClassVar[str] = "gradients are alive at the peak although nothing reads them any more"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            ("set_to_none=False", ""),
            ("step()\n", "step()\n    optimizer.zero_grad()\n"),
            setup=_MODEL,
            before="""\
for batch in data:
    loss = F.softplus(model(batch)).mean()
    optimizer.zero_grad(set_to_none=False)  # start from zero
    loss.backward()
    optimizer.step()
final = loss.item()""",
            results=("final",),
        ),
        Example(
            setup=_TRAINER,
            before=_CLASS.format(""),
            after=_CLASS.format("\n        self.optimizer.zero_grad()"),
            results=("losses", "score"),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        yield from self._zeroed(trace, cell, names)
        kept = find_finished(trace, cell, names)
        if kept is None or kept.saving < least_saving(trace, _SHARE):
            return
        if kept.step is not None:
            yield self._after_step(cell, kept)
        elif (statement := _outermost(cell, kept.line)) is not None:
            for name in _clearers(trace, cell, names, kept):
                own = _cleared_by(name, trace, cell, names, kept)
                if own.saving >= least_saving(trace, _SHARE):
                    yield self._before(cell, own, statement, name)

    def _after_step(self, cell: Code, kept: KeptGradients) -> Advice:
        assert kept.step is not None
        step = kept.step
        name = _frees(cell, kept) or step.optimizer
        advice = self._advice(
            kept,
            f"{format_bytes(kept.size)} of gradients were still there at the peak, on line "
            f"{kept.line}; the step on line {step.line} was the last to read them.",
            f"Call {name}.zero_grad() right after the step on line {step.line}.",
        )
        return self.propose(
            cell, advice, partial(insert_after, cell, step.statement, f"{name}.zero_grad()")
        )

    def _before(self, cell: Code, kept: KeptGradients, statement: ast.stmt, name: str) -> Advice:
        advice = self._advice(
            kept,
            f"{format_bytes(kept.size)} of gradients of an earlier cell were there at the peak, on "
            f"line {kept.line}, and nothing read them.",
            f"Call {name}.zero_grad() before line {statement.lineno}, or after the last step of "
            "the training.",
        )
        return self.propose(
            cell, advice, partial(insert_before, cell, statement, f"{name}.zero_grad()")
        )

    def _advice(self, kept: KeptGradients, problem: str, change: str) -> Advice:
        return Advice(
            self.name,
            problem,
            change,
            line=kept.line,
            size=kept.size,
            saving=kept.saving,
            known=Known.ESTIMATED,
        )

    def _zeroed(self, trace: Trace, cell: Code, names: Names) -> Iterator[Advice]:
        calls = [call for call in _fillers(cell) if _is_before_each(cell, call)]
        kept = find_zeroed(trace, cell) if calls else None
        if kept is None or kept.saving < least_saving(trace, _SHARE):
            return
        what = cell.text(calls[0])
        when = f"at the peak, on line {kept.line}" if trace.oom is None else "when memory ran out"
        advice = Advice(
            self.name,
            f"{format_bytes(kept.size)} of gradients were kept, filled with zeros by {what} on "
            f"line {calls[0].lineno}, and were there {when}.",
            "Let them go: zero_grad() without set_to_none=False, or p.grad = None.",
            line=calls[0].lineno,
            size=kept.size,
            saving=kept.saving,
            known=Known.ESTIMATED,
            price="The optimizer skips a parameter that a step gave no gradient; with zeros it "
            "applies momentum and weight decay to it.",
        )
        yield self.propose(cell, advice, partial(_let_go, cell, names, calls, kept.forward))


def _frees(cell: Code, kept: KeptGradients) -> str:
    """On what the cell itself calls the zero_grad() that frees these gradients; "" if not so."""
    found = {
        receiver(call, cell)
        for call in cell.calls(".zero_grad")
        if call.lineno in kept.freed_lines and kept.step is not None
        if cell.function(call) is cell.function(kept.step.call)
    }
    return found.pop() if len(found) == 1 else ""


def _clearers(trace: Trace, cell: Code, names: Names, kept: KeptGradients) -> Iterator[str]:
    """What to call zero_grad() on for gradients that are older than the cell."""
    calls = [call for call in cell.calls(".zero_grad") if call.lineno in kept.freed_lines]
    trains = bool(cell.calls(".backward", "torch.autograd.grad", ".step"))
    if trains:
        yield from dict.fromkeys(receiver(call, cell) for call in calls)
        return
    lives = trace.lives
    busy = bool((lives.born > Phase.FORWARD).any())
    graphs = any(tensor.has_graph for tensor in names.tensors.values())
    lists = any(names.containers.values())
    if busy or graphs or lists or trace.error is not None:
        return
    stepped = [name for name, optimizer in names.optimizers.items() if optimizer.tensors]
    if len(stepped) == 1:
        yield stepped[0]
    elif stepped:
        yield from (name for name in kept.owners if name in names.modules)


def _cleared_by(
    name: str, trace: Trace, cell: Code, names: Names, kept: KeptGradients
) -> KeptGradients:
    """Those of them that zero_grad() of this frees."""
    lives = trace.lives
    own = lives.rows(kept.rows) & gradients_of(name, lives, cell, names)
    return dataclasses.replace(kept, size=lives.bytes(own), saving=lives.saved_at_peak(own))


def _outermost(cell: Code, line: int) -> ast.stmt | None:
    """The statement of the cell itself, in no other one, that a line belongs to."""
    inside = (s for s in cell.tree.body if cell.first_line(s) <= line < lines_of(s).stop)
    return next(inside, None)


def _fillers(cell: Code) -> Iterator[ast.Call]:
    """Calls that fill gradients with zeros rather than free them."""
    for call in cell.calls(".zero_grad"):
        given = [k.value for k in call.keywords if k.arg == "set_to_none"] or call.args[:1]
        if given and isinstance(given[0], ast.Constant) and given[0].value is False:
            yield call
    for call in cell.calls(".zero_"):
        if _gradient(call) is not None:
            yield call


def _is_before_each(cell: Code, call: ast.Call) -> bool:
    """Whether gradients are cleared as often as a backward pass is made: nothing accumulates."""
    above = list(cell.ancestors(call))
    if any(isinstance(a, ast.If) and "grad" not in cell.text(a.test) for a in above):
        return False
    passes = [b for b in cell.calls(".backward") if cell.function(b) is cell.function(call)]
    loops = (a for b in passes for a in cell.ancestors(b) if isinstance(a, (ast.For, ast.While)))
    return bool(passes) and all(loop in above for loop in loops)


def _gradient(call: ast.Call) -> ast.Attribute | None:
    """`p.grad` of `p.grad.zero_()` or `p.grad.data.zero_()`."""
    held = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(held, ast.Attribute) and held.attr == "data":
        held = held.value
    return held if isinstance(held, ast.Attribute) and held.attr == "grad" else None


def _let_go(
    cell: Code, names: Names, calls: list[ast.Call], forward: frozenset[int]
) -> Iterator[Edit]:
    """Gradients freed where they were filled with zeros; right after the step, too, where that
    comes after a forward pass."""
    for call in calls:
        yield from _freeing(cell, call)
    for step in find_steps(cell, names):
        loop = cell.loop(step.call)
        for call in calls:
            late = loop is not None and any(loop.lineno < n < call.lineno for n in forward)
            if late and cell.loop(call) is loop and call.lineno < step.line:
                name = f"{receiver(call, cell)}.zero_grad()"
                yield from insert_after(cell, step.statement, name)
                break


def _freeing(cell: Code, call: ast.Call) -> Iterable[Edit]:
    """The call made to free gradients. Raises UnsafeError where code relies on their being."""
    gradient = _gradient(call)
    if gradient is None:
        if any(k.arg == "set_to_none" for k in call.keywords):
            return remove_keyword(cell, call, "set_to_none")
        return replace(cell, call.args[0], "True")
    statement = cell.statement(call)
    if not isinstance(statement, ast.Expr) or statement.value is not call:
        raise UnsafeError(f"the result of {cell.text(call)} is used")
    text = cell.text(gradient)
    later = cell.after(statement)
    if any(text in cell.text(other) for other in later):
        raise UnsafeError(f"{text} is read after it is cleared")
    return replace(cell, statement, f"{text} = None")
