"""Tensors that the notebook keeps because a cell showed them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

import numpy as np

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.rewrite import enclose
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.oom_text.cures import FREE_OUTPUTS
from gpumem_magic.trace.remedies import OUTPUT_HISTORY
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Known, Saves
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import BEFORE, Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category

_MODEL = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
x = torch.randn(4096, 256, device="cuda")
"""


class StaleOutput(Rule):
    """A cell's last expression is shown, and what is shown is kept: in `Out[n]`, `_`, `__`, `___`.

    A tensor that was only looked at stays on the device until the notebook is restarted, also when
    the cell is run again, and with a graph it keeps all activations of its forward pass. Assign it
    to a name, end the line with `;`, which shows and keeps nothing, or print it, which shows it and
    keeps nothing. What earlier cells left goes with `%gpucheck --free --outputs`.
    """

    name: ClassVar[str] = "stale-output"
    problem: ClassVar[str] = "the output history keeps a large tensor that was only shown"
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_MODEL,
            before="with torch.no_grad():\n    y = model(x)\ny.softmax(1)  # a look at it",
            after="with torch.no_grad():\n    y = model(x)\nprint(y.softmax(1))  # a look at it",
            results=("y",),
        ),
        mended(
            setup=_MODEL,
            earlier=("with torch.no_grad():\n    scores = model(x) * 2\nscores.softmax(1)",),
            before="loss = model(x).square().mean()\nloss.backward()",
            first=FREE_OUTPUTS,
            results=("loss",),
            rewritten=False,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        yield from self._shown_now(trace, lives, cell)
        yield from self._shown_before(trace, lives, cell)

    def _shown_now(self, trace: Trace, lives: Lifetimes, cell: Code) -> Iterator[Advice]:
        shown = _shown(cell)
        if shown is None or trace.error is not None:
            return
        here = cell.born_in(shown, lives) & lives.at_end
        here &= lives.of(Category.ACTIVATION, Category.INPUT, Category.OTHER)
        output = here & lives.named("Out[")
        size = lives.bytes(output)
        if size < least_saving(trace):
            return
        graph = here & lives.graph & ~lives.named()
        kept = lives.bytes(output | graph)
        besides = f", and its graph {format_bytes(kept - size)} more" if kept > size else ""
        advice = Advice(
            self.name,
            problem=(
                f"line {shown.lineno} shows a tensor of {format_bytes(size)}, which Out[...] and _ "
                f"keep on the device{besides}."
            ),
            change=(
                f"Print the value of line {shown.lineno}, which keeps nothing; or assign it; or "
                "end the line with ;."
            ),
            line=shown.lineno,
            size=kept,
            saving=kept,
            known=Known.EXACT if kept == size else Known.ESTIMATED,
            saves=Saves.AFTER,
            price="_ and Out[...] do not have it",
        )
        yield self.propose(cell, advice, partial(enclose, cell, shown, "print(", ")"))

    def _shown_before(self, trace: Trace, lives: Lifetimes, cell: Code) -> Iterator[Advice]:
        old = (lives.line == BEFORE) & lives.at_peak & lives.named("Out[")
        saving = lives.saved_at_peak(old)
        if saving < least_saving(trace) or _uses_history(cell):
            return
        names = sorted(
            {(lives.name(i) or "").split("]")[0] + "]" for i in np.flatnonzero(old).tolist()}
        )
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield Advice(
            self.name,
            problem=(
                f"{listed}, shown by earlier cells, held {format_bytes(lives.bytes(old))} at this "
                "cell's peak; nothing else keeps them."
            ),
            change=f"Run {FREE_OUTPUTS} before this cell.",
            name=names[0],
            size=lives.bytes(old),
            saving=saving,
            known=Known.EXACT,
            price="_ and Out[...] are empty then",
        )


def _shown(cell: Code) -> ast.expr | None:
    """The expression whose value the notebook shows."""
    last = cell.tree.body[-1] if cell.tree.body else None
    if not isinstance(last, ast.Expr):
        return None
    rest = cell.source[cell.span(last)[1] :].split("\n", 1)[0]
    return None if rest.lstrip().startswith(";") else last.value


def _uses_history(cell: Code) -> bool:
    """Whether the cell reads what was shown: `_` may also be a name of its own, as in a loop."""
    read = {node.id for node in cell.nodes(ast.Name) if isinstance(node.ctx, ast.Load)}
    return any(OUTPUT_HISTORY.match(name) and not any(cell.assigned(name)) for name in read)
