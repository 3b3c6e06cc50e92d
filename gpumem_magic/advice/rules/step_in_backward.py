"""Gradients of all parameters at once, where one at a time would do."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.evidence.training_code import (
    Built,
    Step,
    are_kept,
    find_built,
    find_steps,
    is_always_run_after,
    reads_gradients,
    trained_here,
)
from gpumem_magic.advice.rewrite import UnsafeError, insert_after, remove
from gpumem_magic.advice.rewrite import replace as put
from gpumem_magic.advice.rule import Rule
from gpumem_magic.trace.growth.ways import GRADIENTS
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Cost, Edit, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import BEFORE, Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_SHARE = 0.5
"""Of the peak that gradients and states have to make up together."""
_APART = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "SGD", "RMSprop", "Adagrad", "Adadelta",
          "Adafactor", "Rprop", "ASGD")  # fmt: skip
"""Optimizers that treat each parameter apart from all others."""
_NAMES = ("optimizer_of", "step_at_once", "handles", "handle")
_EXCLUDES = (
    "It excludes whatever looks at all gradients together or later: clipping by their norm, "
    "accumulation over several batches, a GradScaler, and a scheduler has to be made for each "
    "optimizer. A step takes longer for many small parameters."
)

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(768, 768) for _ in range(14)]).cuda()
batches = [torch.randn(64, 768, device="cuda") for _ in range(2)]
"""

_HOOKS = """\
{0}optimizer_of = {{
{0}    p: {1}
{0}    for p in model.parameters() if p.requires_grad
{0}}}

{0}def step_at_once(parameter):
{0}    optimizer_of[parameter].step()
{0}    optimizer_of[parameter].zero_grad()

{0}handles = [p.register_post_accumulate_grad_hook(step_at_once) for p in optimizer_of]
"""


_PER_WEIGHT = 2
"""Bytes of gradients for each byte of weights, at most: of a weight in half precision one may be in
single."""


class StepInBackward(Rule):
    """Gradients and optimizer states together set the peak.

    In the usual loop the gradients of all parameters wait for the step that comes after
    `backward()`. With one optimizer for each parameter, called in a hook
    (`register_post_accumulate_grad_hook`), each gradient is used and freed as soon as it is
    complete: one is alive at a time, and the temporaries of the step are those of one parameter.
    The updates are the same. It excludes what needs all gradients together: clipping by the norm,
    accumulation over batches, `GradScaler`; schedulers and checkpoints then have many optimizers
    to handle.
    """

    name: ClassVar[str] = "step-in-backward"
    problem: ClassVar[str] = "gradients and optimizer states together set the peak"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_SETUP,
            before="""\
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
for batch in batches:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
final = loss.item()""",
            after=_HOOKS.format("", "torch.optim.AdamW([p], lr=1e-4, weight_decay=0.05)")
            + """\
for batch in batches:
    loss = model(batch).square().mean()
    loss.backward()
for handle in handles:
    handle.remove()
final = loss.item()""",
            results=("final",),
        ),
        Example(
            setup=_SETUP,
            before="""\
def train(model, batches, epochs=2, lr=1e-3):
    model.train()
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    history = []
    for epoch in range(epochs):
        for batch in batches:
            loss = (model(batch) - batch).abs().mean()  # reconstruction
            sgd.zero_grad(set_to_none=True)
            loss.backward()
            sgd.step()
            history.append(loss.item())
    return history

history = train(model, batches)""",
            after="""\
def train(model, batches, epochs=2, lr=1e-3):
    model.train()
"""
            + _HOOKS.format("    ", "torch.optim.SGD([p], lr=lr, momentum=0.9)")
            + """\
    history = []
    for epoch in range(epochs):
        for batch in batches:
            loss = (model(batch) - batch).abs().mean()  # reconstruction
            loss.backward()
            history.append(loss.item())
    for handle in handles:
        handle.remove()
    return history

history = train(model, batches)""",
            results=("history",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        steps = list(find_steps(cell, names))
        if len(steps) != 1 or _is_excluded(cell, steps[0]):
            return
        lives = trained_here(cell, trace.lives)
        if any(growth.holder.endswith(GRADIENTS) for growth in trace.growth) or are_kept(trace):
            return  # it is their graph that is large, or they are those of many passes
        gradients = lives.of(Category.GRADIENT) & lives.at_peak
        states = lives.of(Category.OPTIMIZER_STATE) & lives.at_peak
        weights = lives.bytes(lives.of(Category.PARAMETER) & lives.at_peak)
        if lives.bytes(gradients) > _PER_WEIGHT * weights:
            return  # most of them are of something else, as of the input of a second derivative
        both = lives.bytes(gradients | states)
        saving = _saving(lives)
        if both < _SHARE * int(lives.levels().max()) or saving < least_saving(trace):
            return
        built = [b for b in find_built(cell) if b.target == steps[0].optimizer]
        if built and built[0].kind not in _APART:
            return
        advice = Advice(
            self.name,
            f"At the peak {format_bytes(lives.bytes(gradients))} are gradients and "
            f"{format_bytes(lives.bytes(states))} optimizer states: all gradients wait for the "
            f"step on line {steps[0].line}.",
            "Make the step of each parameter as soon as its gradient is there, in a hook "
            "(register_post_accumulate_grad_hook), with one optimizer for each parameter.",
            line=steps[0].line,
            name=steps[0].optimizer,
            size=lives.bytes(gradients),
            saving=saving,
            known=Known.ESTIMATED,
            price=_EXCLUDES,
            cost=Cost.TIME,
        )
        older = bool((lives.of(Category.GRADIENT) & (lives.line == BEFORE)).any())
        yield self.propose(cell, advice, partial(_rewritten, cell, steps[0], built, older))


def _is_excluded(cell: Code, step: Step) -> bool:
    """Whether the training needs all gradients together, or later than at once."""
    clips = cell.calls(".clip_grad_norm_", "torch.nn.utils.clip_grad_norm_")
    if step.scaled or clips or "clip_grad" in cell.source or reads_gradients(cell):
        return True
    backwards = list(cell.calls(".backward"))
    if len(backwards) != 1:
        return True
    return not is_always_run_after(step.statement, cell.statement(backwards[0]), cell)


def _saving(lives: Lifetimes) -> int:
    """Without gradients and the step's temporaries, but for those of the largest parameter."""
    own = lives.of(Category.GRADIENT)
    own |= (lives.born == Phase.OPTIMIZER) & lives.of(Category.TEMPORARY)
    largest = int(lives.size[own].max(initial=0))
    return max(lives.saved_at_peak(own) - 3 * largest, 0)


def _rewritten(cell: Code, step: Step, built: list[Built], older: bool) -> Iterator[Edit]:
    """The whole change. Raises UnsafeError where the loop is not plain."""
    if len(built) != 1:
        raise UnsafeError("the optimizer is not built in this cell")
    one, name = built[0], step.optimizer
    if older:
        raise UnsafeError("there were gradients before the cell")
    if any(word in cell.source for word in _NAMES[:3]):
        raise UnsafeError("the names that it needs are taken")
    clears = [c for c in cell.calls(".zero_grad") if cell.text(c.func) == f"{name}.zero_grad"]
    uses = list(cell.reads(name))
    if "." in name or len(clears) != 1 or len(uses) != 2:
        raise UnsafeError(f"{name} is used for more than its step")
    clear, loop = cell.statement(clears[0]), _outer_loop(cell, one.statement, step)
    if not isinstance(clear, ast.Expr) or cell.loop(clear) is not cell.loop(step.call):
        raise UnsafeError(f"{name}.zero_grad() is not in the loop of the step")
    if clear not in cell.block(step.statement):
        raise UnsafeError(f"{name}.zero_grad() is not called at every step")
    yield from put(cell, one.statement, _hooks(cell, one))
    indent = cell.indentation(loop.lineno)
    ending = f"for handle in handles:\n{indent}    handle.remove()"
    first, last = sorted((step.statement, clear), key=lambda statement: statement.lineno)
    yield from remove(cell, first)
    if last.end_lineno != loop.end_lineno:
        yield from remove(cell, last)
        yield from insert_after(cell, loop, ending)
        return
    start, end = cell.offset(last.lineno, 0), cell.end_of_line(last.end_lineno or last.lineno)
    yield Edit(start, end, f"{indent}{ending}")  # the last of the loop: its place is taken


def _outer_loop(cell: Code, constructor: ast.stmt, step: Step) -> ast.stmt:
    """The statement of the constructor's block that holds the step, which is a loop."""
    block = cell.block(constructor)
    around = next((s for s in block if any(n is step.call for n in ast.walk(s))), None)
    if not isinstance(around, (ast.For, ast.While)) or around.orelse:
        raise UnsafeError("the optimizer is not built right before the loop")
    return around


def _hooks(cell: Code, built: Built) -> str:
    """One optimizer for each parameter, and the hooks that make their steps."""
    call = built.call
    first = call.args[0] if call.args else None
    if (
        not isinstance(first, ast.Call)
        or first.args
        or first.keywords
        or not isinstance(first.func, ast.Attribute)
        or first.func.attr != "parameters"
    ):
        raise UnsafeError("the optimizer was not given model.parameters()")
    start, end = cell.span(first)
    begin, last = cell.span(call)
    if cell.source[begin:last].count("\n"):
        raise UnsafeError("the constructor takes more than one line")
    made = f"{cell.source[begin:start]}[p]{cell.source[end:last]}"
    indent = cell.indentation(built.statement.lineno)
    lines = (
        "optimizer_of = {",
        f"    p: {made}",
        f"    for p in {cell.text(first)} if p.requires_grad",
        "}",
        "",
        "def step_at_once(parameter):",
        "    optimizer_of[parameter].step()",
        "    optimizer_of[parameter].zero_grad()",
        "",
        "handles = [p.register_post_accumulate_grad_hook(step_at_once) for p in optimizer_of]",
    )
    return "\n".join(f"{indent}{text}" if text and i else text for i, text in enumerate(lines))
