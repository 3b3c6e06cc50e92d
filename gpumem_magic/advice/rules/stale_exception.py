"""Memory that the traceback of an earlier error keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.oom_text.cures import FREE
from gpumem_magic.sources.objects.last_error import ERROR
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import BEFORE, Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(6)]).cuda()
x = torch.randn(8192, 512, device="cuda")

def embed(model, x):
    with torch.no_grad():
        hidden = model(x)
        doubled = hidden * 2
        return doubled @ torch.ones(3, 3, device="cuda")  # of another size

def train_step(model, x, target):
    y = model(x)
    return nn.functional.mse_loss(y.view(-1, 512), target.view(7))
"""
_STEP = """\
y = torch.cat([part * 2 for part in x.split(1024)])
z = y.tanh()
total = z.sum()"""


class _Told(NamedTuple):
    """What is said of an error: which it is, what lets go of it, and at which price."""

    error: str
    change: str
    price: str = ""


_EARLIER = _Told(
    "the traceback of an earlier error",
    f"Run {FREE} before this cell.",
    "%debug has nothing to show of that error then",
)
_HANDLED = _Told(
    "an error that was still being handled when memory ran out",
    "Leave the except block before trying again: note in it that it failed, and go on below it, "
    "where the error is gone with its traceback.",
)


class StaleException(Rule):
    """An error that is over still holds memory: its traceback keeps the variables of every
    function that it went through.

    Python and the notebook keep the last error for `%debug`. After an error in a training step, or
    after running out of memory, these are the inputs, outputs and the graph of the step: the cell
    that is run next begins on a device that is nearly full, and fails for that reason alone.
    `%gpucheck --free` lets go of them; so does an error that comes later. `empty_cache()` does
    not, for they are not free. The same holds inside of `except`: what is tried again there has the
    variables of the first try beside it, which go when the block is left.
    """

    name: ClassVar[str] = "stale-exception"
    problem: ClassVar[str] = "the traceback of an earlier error keeps tensors alive"
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            setup=_SETUP,
            earlier=("embed(model, x)",),
            before=_STEP,
            first=FREE,
            results=("total",),
            rewritten=False,
        ),
        mended(
            setup=_SETUP,
            earlier=("loss = train_step(model, x, x)",),
            before="loss = model(x).square().mean()\nloss.backward()",
            first=FREE,
            results=("loss",),
            rewritten=False,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        named, old = lives.named(ERROR), lives.line == BEFORE
        yield from self._of(trace, named & old, _its_graph(lives, named & old), _EARLIER)
        handled = named & ~old & lives.at_peak
        births = lives.birth[handled]
        within = (lives.birth > births.min(initial=0)) & (lives.birth < births.max(initial=0))
        yield from self._of(trace, handled, lives.recorded & ~lives.named() & within, _HANDLED)

    def _of(
        self, trace: Trace, named: NDArray[np.bool_], graph: NDArray[np.bool_], told: _Told
    ) -> Iterator[Advice]:
        lives = trace.lives
        kept = (named | graph) & lives.at_peak
        saving = lives.saved_at_peak(kept)
        if not named.any() or saving < least_saving(trace):
            return
        there = named & lives.at_peak
        largest = int(np.argmax(np.where(there, lives.size, 0)))
        name = lives.name(largest) or ""
        function, _, variable = name.removeprefix(ERROR).partition(".")
        which = f"{variable} of {function}" if variable else f"those of {function}"
        alike = there & (lives.named(name) if not variable else lives.rows([largest]))
        size = lives.bytes(kept)
        with_graph = " and their graph" if graph.any() else ""
        yield Advice(
            self.name,
            problem=(
                f"{format_bytes(size)} were held by {told.error}: the "
                f"variables of functions that had not ended ({which}, "
                f"{format_bytes(lives.bytes(alike))}){with_graph}."
            ),
            change=told.change,
            name=variable or function,
            size=size,
            saving=saving,
            known=Known.ESTIMATED if graph.any() else Known.EXACT,
            price=told.price,
        )


def _its_graph(lives: Lifetimes, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What nothing names, where of all that was there only the error's variables have a graph."""
    nothing = np.zeros(len(lives), bool)
    old = lives.line == BEFORE
    nameless = ~lives.named()
    with_graph = old & ~nameless & (lives.graph | lives.of(Category.ACTIVATION))
    if not (kept & with_graph).any() or (with_graph & ~kept).any():
        return nothing
    graph: NDArray[np.bool_] = old & nameless & ~lives.of(Category.WORKSPACE, Category.PARAMETER)
    return graph
