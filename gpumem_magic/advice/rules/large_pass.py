"""One forward pass over everything."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import ClassVar, Final

import numpy as np

from gpumem_magic.advice.changes.frameworks import framework_of
from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.batches import born_on
from gpumem_magic.advice.evidence.passes import is_after_training
from gpumem_magic.advice.evidence.unused_graphs import find_unused_graphs
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.tree import lines_of
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Cost, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Phase

_LARGE: Final = 0.2
"""Of the card: what a batch makes is smaller."""

_MOST: Final = 0.5
"""Of what was held and asked for, that the line made: else it is not why memory ran out."""

_FEW: Final = 4
"""Samples that can be taken in no pieces worth a word."""

_PIECES: Final = (
    "Take it in pieces ({data}.split(n)), each moved where it is used, under torch.no_grad() if "
    "nothing is trained on it, and join the results; in training, make the batch smaller."
)
_PARTS: Final = (
    "Of one large sample, such as an image or a recording, take a part at a time (tiles, windows; "
    "overlapping by what a layer sees around a place), and join the results; torch.no_grad() where "
    "nothing is trained on it, activations in place, and half precision, which takes half."
)

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64)).cuda()
samples = torch.randn(32768, 64)
"""
_PREDICTED = """\
with torch.no_grad():
    labels = model({all}).argmax(1)
count = int(labels.sum())
"""
_RENDERED = """\
def colours(origins, directions, steps=32):
    depth = torch.linspace(2, 6, steps, device="cuda")
    points = origins[:, None] + directions[:, None] * depth[:, None]
    return model(points).mean(1)

rays = samples[:1024].cuda()
"""


class LargePass(Rule):
    """One forward pass takes everything, where it could be taken in pieces.

    Each layer's result is as long as what goes in, and a layer needs its input and its result
    together, with or without a graph. Prediction over pieces (`x.split(n)`), joined on the host,
    gives the same numbers with as little memory as is wanted. Where something is trained on the
    result, the batch has to be smaller, or the gradients of pieces added up.
    """

    name: ClassVar[str] = "large-pass"
    problem: ClassVar[str] = "one forward pass over everything takes more than there is"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_SETUP,
            before=_PREDICTED.format(all="samples.cuda()"),
            after="""\
with torch.no_grad():
    labels = torch.cat([model(part.cuda()).argmax(1) for part in samples.split(128)])
count = int(labels.sum())
""",
            card="180MiB",
            rewritten=False,
            results=("count",),
        ),
        mended(
            (
                "image = colours(rays, rays)",
                "with torch.no_grad():\n"
                "    image = torch.cat([colours(part, part) for part in rays.split(32)])",
            ),
            setup=_SETUP,
            before=_RENDERED + "image = colours(rays, rays)",
            card="180MiB",
            rewritten=False,
            results=("image",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        oom, lives = trace.oom, trace.lives
        statement = cell.statement_at(oom.line) if oom else None
        if oom is None or statement is None or trace.growth or _trains(trace, cell, statement):
            return
        framework = framework_of(lives)
        if find_unused_graphs(trace, cell, names) or (framework and framework.runs_loop):
            return  # that is to be seen first; or others cut the batches
        own = born_on(lives, lines_of(statement)) & lives.at_peak
        rows = np.flatnonzero(own)
        room, asked = trace.device.total if trace.device else 0, oom.requested or 0
        made = lives.bytes(own) + asked
        if not len(rows) or made < _MOST * ((trace.peak.allocated or 0) + asked):
            return
        largest = int(rows[np.argmax(lives.size[rows])])
        size = int(lives.size[largest])
        shape = lives.tensor(largest)[0] or ()
        few = shape[:1] < (_FEW,)
        enlarged = any(one.layer != "conv" for one in trace.enlarged)  # which is the cause, then
        heads = any(one.op == "bmm" and one.shape == shape for one in trace.enlarged)  # no samples
        if size < _LARGE * room or len(shape) < 2 + few or (few and enlarged) or heads:
            return
        data = _moved(cell, statement)
        read = f"all of {data}" if data else "the whole" if few else f"all {shape[0]} rows"
        yield Advice(
            self.name,
            problem=f"line {oom.line} computes {read} in one pass: {list(shape)} takes "
            f"{format_bytes(size)}, and {format_bytes(asked)} more were asked for.",
            change=_PARTS if few else _PIECES.format(data=data or "x"),
            line=oom.line,
            name=data or None,
            size=size,
            saving=lives.saved_at_peak(own) + asked,
            known=Known.ESTIMATED,
            price="a pass over pieces in place of one call",
            cost=Cost.TIME,
        )


def _trains(trace: Trace, cell: Code, statement: ast.stmt) -> bool:
    """Whether a training pass ran, or the statement may be part of one that was to come, or moves
    what it reads."""
    lives = trace.lives
    if is_after_training(cell, statement.lineno):
        return False
    if (lives.born == Phase.BACKWARD).any():
        return True
    moves = trace.oom is not None and trace.oom.op == "aten._to_copy"
    prepares = not moves and cell.loop(statement) is None and cell.function(statement) is None
    return any(cell.calls(".backward")) and not (prepares and not lives.recorded.any())


def _moved(cell: Code, statement: ast.stmt) -> str:
    """The name of what a call of the statement is given as a whole, and moved for it."""
    given = {a for call in cell.nodes(ast.Call, within=statement) for a in call.args}
    for call in cell.calls(".to", ".cuda", within=statement):
        data = call.func.value if isinstance(call.func, ast.Attribute) else None
        if call in given and isinstance(data, ast.Name):
            return data.id
    return ""
