"""A model copied where it lies: the best one so far, the policy of before, one for each fold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar, Final

import numpy as np

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.passes import copied, loaded
from gpumem_magic.advice.evidence.shortage import is_short
from gpumem_magic.advice.evidence.training_code import states_by_hand
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.trace.growth.copies import copies_of_weights
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names

_SHARE: Final = 0.1
"""Of the peak: a smaller copy is not why memory is short."""

_CHAIN: Final = re.compile(r"\.([^\W\d]\w*)\.\1\b")
_COPIED_AGAIN: Final = (
    "What is copied has the copy before it inside, as .{0}, so each copy holds all the earlier "
    "ones: set .{0} to None before deepcopy(), or keep copies outside of the model."
)
_SETUP = """\
import copy
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
x = torch.randn(64, 1024, device="cuda")
"""
_BEST = """\
best = copy.deepcopy(model)
loss = model(x).pow(2).mean()
loss.backward()
score = loss.item()
"""
_STOPPING = """\
class Stopping:
    best = None

    def keep(self, model):
        self.best = copy.deepcopy(model.state_dict())

stopping = Stopping()
stopping.keep(model)
loss = model(x).pow(2).mean()
loss.backward()
score = loss.item()
"""
_HOST = "{name: tensor.cpu() for name, tensor in model.state_dict().items()}"
_ON_HOST: Final = (
    "Where the copy is only kept to be loaded or returned later, keep its "
    f"weights on the host: {_HOST}, or torch.save() them."
)
_EACH_ON_HOST: Final = (
    "Where they are only kept to be compared, loaded or returned later, keep them on the host: "
    ".cpu() of each, or torch.save() them. Where each step updates them, such as a momentum, they "
    "have to be there: fewer such numbers to a weight, or bfloat16, take less."
)


class CopiedModel(Rule):
    """`copy.deepcopy(model)` makes its copy where the model is: on the device.

    The best weights so far are only wanted when training is over, a state of before only to go back
    to it: they may wait on the host, as `{name: tensor.cpu() for ...}` of a `state_dict()`, or in a
    file. A copy that computes, such as a target network, has to be where it is. The rule speaks
    when memory is short.
    """

    name: ClassVar[str] = "copied-model"
    problem: ClassVar[str] = "a copy of a model lies beside it on the device"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            ("copy.deepcopy(model)", _HOST),
            setup=_SETUP,
            before=_BEST,
            card="110MiB",
            rewritten=False,
            results=("score",),
        ),
        mended(
            ("copy.deepcopy(model.state_dict())", _HOST),
            setup=_SETUP,
            before=_STOPPING,
            card="110MiB",
            rewritten=False,
            results=("score",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        if not is_short(trace):
            return
        grown = [row for growth in trace.growth for row in growth.rows]
        deep = copied(lives)
        made = deep | copies_of_weights(lives, lives.peak_event) & ~loaded(lives)
        collected = {*lives.line[grown][made[grown]].tolist()}  # told as what grew
        made[grown] = False
        made &= ~states_by_hand(cell, lives)
        alive = made & lives.at_peak
        for line in sorted({*lives.line[alive].tolist()} - collected):
            own = alive & (lives.line == line)
            size = lives.bytes(own)
            if size < _SHARE * (trace.peak.allocated or 0):
                continue
            names_of = [n for i in np.flatnonzero(own) if (n := lives.name(int(i)))]
            chain = next((match for n in names_of if (match := _CHAIN.search(n))), None)
            where = f"line {line} copies {format_bytes(size)} of the peak by deepcopy()."
            change = _COPIED_AGAIN.format(chain[1]) if chain else _ON_HOST
            if not deep[own].any():
                where = f"line {line} makes {format_bytes(size)} on the device, one to a weight."
                change = _EACH_ON_HOST
            yield Advice(
                self.name,
                problem=where,
                change=change,
                line=line or None,
                name=names_of[0] if names_of else None,
                size=size,
                saving=lives.saved_at_peak(made & (lives.line == line)),
                known=Known.ESTIMATED,
            )
