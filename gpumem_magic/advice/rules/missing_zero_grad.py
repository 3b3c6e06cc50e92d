"""A training loop that never clears its gradients."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.evidence.training_code import (
    Step,
    find_built,
    find_steps,
    is_always_run_after,
    optimizer_class,
    reads_gradients,
)
from gpumem_magic.advice.rewrite import insert_after
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.tree import lines_of
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
criterion = nn.MSELoss()
loader = [(torch.randn(256, 1024, device="cuda"), torch.randn(256, 1024, device="cuda"))] * 3
"""


class MissingZeroGrad(Rule):
    """A training loop that makes a step after every backward pass and never clears the gradients.

    `backward()` adds to `.grad`. Without `optimizer.zero_grad()` every step follows the sum of all
    gradients since the beginning, not those of its batch. It is first of all a mistake in the
    training: the gradients take the same bytes whatever their values. Call `optimizer.zero_grad()`
    right after the step; the results will then be others, and right. It also frees the gradients
    until the next backward pass, which lowers the peak where a forward pass or the sum of old and
    new gradients reaches it. Code that accumulates on purpose (a step every few batches) is left
    alone.
    """

    name: ClassVar[str] = "missing-zero-grad"
    problem: ClassVar[str] = "gradients are added up over all steps and never cleared"
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            ("print(loss.item())", "    optimizer.zero_grad()\nprint(loss.item())"),
            setup=_SETUP,
            before="""\
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x, y in loader:
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
print(loss.item())""",
        ),
        mended(
            (
                "            running += loss.item()\n",
                "            opt.zero_grad()\n            running += loss.item()\n",
            ),
            setup=_SETUP,
            before="""\
def train(model, loader, epochs=2):
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model.train()
    for epoch in range(epochs):
        running = 0.0
        for inputs, targets in loader:
            outputs = model(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()  # update
            running += loss.item()
        print(epoch, running / len(loader))

train(model, loader)""",
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        if _is_cleared(cell):
            return
        for step in find_steps(cell, names):
            again = cell.loop(step.call) or cell.function(step.call)
            backward = _backward(cell, step)
            if backward is None or again is None or not _is_plain(cell, names, step, again):
                continue
            times, old = _added_up(lives, backward)
            if times > 1:
                waiting = range(backward.lineno, step.line + 1)
                saving = _saved_by_clearing(lives, old, cell.calling_lines(lives), waiting)
                saving = saving if saving >= least_saving(trace) else 0
                yield self._advice(cell, step, backward, times, lives.bytes(old), saving)

    def _advice(
        self, cell: Code, step: Step, backward: ast.Call, times: int, size: int, saving: int
    ) -> Advice:
        memory = "Cleared after the step, they would also be gone during the next forward pass."
        advice = Advice(
            self.name,
            f"{times} backward passes on line {backward.lineno} added to the same "
            f"{format_bytes(size)} of gradients, and nothing cleared them: the step on line "
            f"{step.line} follows their sum. This is a mistake in the training. "
            + (memory if saving else "It costs no memory of its own."),
            f"Call {step.optimizer}.zero_grad() right after the step on line {step.line}.",
            line=step.line,
            name=step.optimizer,
            size=size,
            saving=saving,
            known=Known.ESTIMATED,
            price="The training takes another course: the one that was meant.",
        )
        text = f"{step.optimizer}.zero_grad()"
        return self.propose(cell, advice, partial(insert_after, cell, step.statement, text))


def _is_cleared(cell: Code) -> bool:
    """Whether the cell clears, reads or sets gradients, or hands that to a hook."""
    hooks = ("register_step_post_hook", "register_step_pre_hook", "register_post_accumulate")
    return (
        bool(cell.calls(".zero_grad"))
        or reads_gradients(cell)
        or any(hook in cell.source for hook in hooks)
    )


def _backward(cell: Code, step: Step) -> ast.Call | None:
    """The `backward()` that always comes before the step, in the same block."""
    found = None
    for call in cell.calls(".backward"):
        if is_always_run_after(step.statement, cell.statement(call), cell):
            found = call
    return found


def _is_plain(cell: Code, names: Names, step: Step, loop: ast.AST) -> bool:
    """Whether the optimizer is one of torch's, is not built anew in the loop, and nothing that the
    loop calls could clear gradients out of our sight."""
    built = [b for b in find_built(cell) if b.target == step.optimizer]
    if any(node is b.statement for b in built for node in ast.walk(loop)):
        return False
    facts = names.optimizers.get(step.optimizer)
    if not built and (facts is None or not optimizer_class(facts.type)):
        return False
    return not any(True for _ in _strangers(cell, names, step, loop))


def _strangers(cell: Code, names: Names, step: Step, loop: ast.AST) -> Iterator[ast.Call]:
    """Calls of functions of other cells or modules of the user's that get hold of the model."""
    own = {n.name for n in cell.walk() if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    for node in ast.walk(loop):
        if not isinstance(node, ast.Call):
            continue
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        about = {
            cell.text(g).partition(".")[0]
            for g in given
            if isinstance(g, (ast.Name, ast.Attribute, ast.Call))
        }
        root = cell.dotted(node.func).partition(".")[0]
        held = step.optimizer.partition(".")[0] in about or about & names.modules.keys()
        is_known = root in own or hasattr(builtins, root) or root in ("torch", "self")
        if held and not is_known and root not in names.modules:
            yield node


def _added_up(lives: Lifetimes, backward: ast.Call) -> tuple[int, NDArray[np.bool_]]:
    """How many backward passes the gradients of a line lived through, its own included, and
    which these are."""
    here = np.isin(lives.line, lines_of(backward))
    made = np.flatnonzero(here & (lives.born == Phase.BACKWARD))
    passes, firsts = np.unique(lives.step[made], return_index=True)  # in the order of birth
    gradients = here & lives.of(Category.GRADIENT)
    if len(passes) < 2 or not gradients.any():
        return 0, gradients
    oldest = gradients & (lives.step == lives.step[gradients].min())
    ends = int(lives.death[oldest].min())
    return int((lives.birth[made[firsts]] < ends).sum()), oldest


def _saved_by_clearing(
    lives: Lifetimes, old: NDArray[np.bool_], lines: NDArray[np.int32], waiting: range
) -> int:
    """How much lower the peak would be if these gradients went after each step, about.

    lines: of the births. waiting: the lines from `backward()` to the step, where gradients are
    still to be read. A later backward pass rises as far as the first, which had nothing to add to.
    """
    levels, rest = lives.levels(), lives.levels(old)
    after, phase, stretch = levels.copy(), *_phases(lives)
    here, busy = np.zeros(lives.events, np.int32), list(waiting)
    here[lives.birth[lives.birth >= 0]] = lines[lives.birth >= 0]
    here[lives.death[lives.death < lives.events]] = lives.freed_line[lives.death < lives.events]
    idle = np.flatnonzero((phase == Phase.FORWARD) & ~np.isin(here, busy)) + 1
    after[idle] = rest[idle]
    passes = [np.flatnonzero(stretch == n) for n in np.unique(stretch[phase == Phase.BACKWARD])]
    lasting = lives.of(Category.WORKSPACE) & lives.at_end  # made once, in the first pass
    first = lives.levels(lasting)[[passes[0][0], *(passes[0] + 1)]]
    rise = int(first.max() - first[0])
    for events in passes[1:]:
        after[events + 1] = np.minimum(levels[events + 1], rest[events[0]] + rise)
    return int(levels.max() - after.max())


def _phases(lives: Lifetimes) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """The phase of each event, and the number of the stretch of that phase."""
    phase = np.full(lives.events, -1, np.int8)
    stretch = np.full(lives.events, -1, np.int64)
    born, freed = lives.birth >= 0, lives.death < lives.events
    phase[lives.birth[born]], stretch[lives.birth[born]] = lives.born[born], lives.step[born]
    phase[lives.death[freed]] = lives.freed[freed]
    stretch[lives.death[freed]] = lives.freed_step[freed]
    return phase, stretch
