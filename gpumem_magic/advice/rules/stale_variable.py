"""Results that are kept by a name after their last use."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.last_uses import unread_at_peak
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.rewrite import insert_after
from gpumem_magic.advice.rule import Rule
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names

_SHARE = 0.02
"""Of the peak: below it one more `del` is not worth its line."""

_MODEL = """\
import torch
from torch import nn
torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(128, 1024), nn.ReLU()).cuda()
decoder = nn.Sequential(nn.Linear(256, 2048), nn.ReLU()).cuda()
x = torch.randn(4096, 128, device="cuda")
"""
_CHAIN = """\
@torch.no_grad()
def reconstruct(x):
    scores = encoder(x).softmax(1)
    total = scores.sum()
    wide = decoder(x.repeat(1, 2))  # the peak
    return wide.mean() + total

result = reconstruct(x)"""
_LOOP = """\
wide = nn.Linear(128, 4096).cuda()
total = 0.0
for part in x.split(1024):
    with torch.no_grad():
        y = wide(part)
        total += y.mean().item()"""


class StaleVariable(Rule):
    """A large result is still held by a name that nothing reads any more, when memory is highest.

    Python frees a tensor when no name means it: a variable of a function lives until the function
    returns, one of the notebook until it gets another value. In a loop the result of one iteration
    lives until the next one has made its own. `del name` after the last use frees it then. It has
    no effect where something else holds the tensor: a view, a list, or the graph of a later
    `backward()`.
    """

    name: ClassVar[str] = "stale-variable"
    problem: ClassVar[str] = "a name holds a large result that is not used any more"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_MODEL,
            before=_CHAIN,
            after=_CHAIN.replace(
                "    total = scores.sum()\n", "    total = scores.sum()\n    del scores\n"
            ),
            results=("result",),
        ),
        Example(
            setup=_MODEL,
            before=_LOOP,
            after=f"{_LOOP}\n    del y",
            results=("total",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        least = least_saving(trace, _SHARE)
        for unread in unread_at_peak(cell, lives):
            held = lives.bytes(unread.held)
            # their like are needed, too, while their own iteration runs
            saving = min(held, lives.saved_at_peak(unread.storages))
            if saving < least:
                continue
            dropped = ", ".join(unread.names)
            size = format_bytes(held)
            last = unread.below.end_lineno or unread.below.lineno
            when = f"is not read below line {last}, and is alive"
            if unread.loop is not None:
                when = "of one iteration is alive in the next one,"
            advice = Advice(
                self.name,
                problem=f"{dropped} {when} at the peak: {size}.",
                change=f"Write del {dropped} below line {last}.",
                line=last,
                name=unread.names[0],
                size=held,
                saving=saving,
                known=Known.ESTIMATED,
                price=f"no later line, nor cell, can use {dropped}",
            )
            edits = partial(insert_after, cell, unread.below, f"del {dropped}")
            yield self.propose(cell, advice, edits)
