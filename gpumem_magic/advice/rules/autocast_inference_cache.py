"""Weights in two precisions while a model predicts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

import numpy as np

from gpumem_magic.advice.changes.mixed_precision import AUTOCAST
from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.casts import casts_of_parameters
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.rewrite import set_keyword
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Cost, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_MODEL = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()) for _ in range(8)]).cuda()
x = torch.randn(64, 1024, device="cuda")
"""


class AutocastInferenceCache(Rule):
    """Autocast keeps a copy in half precision of every float32 weight that it met, until its block
    ends: in inference the model then takes one and a half times its memory.

    The cache is there for weights that are used many times in a block, and for training. With
    `cache_enabled=False` each copy is freed right after its use, and made again at the next. With
    `model.half()` or `model.bfloat16()` in place of autocast the float32 weights are gone
    altogether, which saves more; do that where the model is not trained further. Under
    `torch.inference_mode()` autocast keeps no copies.
    """

    name: ClassVar[str] = "autocast-inference-cache"
    problem: ClassVar[str] = "autocast keeps a second copy of the weights during inference"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_MODEL,
            before='with torch.no_grad(), torch.autocast("cuda"):\n    y = model(x)\nz = y.sum()',
            after='with torch.no_grad(), torch.autocast("cuda", cache_enabled=False):\n'
            "    y = model(x)\nz = y.sum()",
            results=("y",),
        ),
        mended(
            (
                "dtype=torch.bfloat16):",
                "dtype=torch.bfloat16, cache_enabled=False):",
            ),
            setup=_MODEL,
            card="A100-40GB",
            before="""\
@torch.no_grad()
def predict(model, batches):
    found = []
    with torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16):
        for batch in batches:
            found.append(model(batch).float().cpu())
    return torch.cat(found)

scores = predict(model.eval(), x.split(32))""",
            results=("scores",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        calls = list(cell.calls(*AUTOCAST))
        if not calls or cell.calls(".backward"):
            return
        if np.any(lives.born != Phase.FORWARD) or np.any(lives.of(Category.ACTIVATION)):
            return  # it trains, or a graph holds the copies
        copies = casts_of_parameters(lives)
        saving = lives.saved_at_peak(copies) - int(lives.size[copies].max(initial=0))
        if saving < least_saving(trace):
            return
        for call in calls:
            if any(k.arg == "cache_enabled" for k in call.keywords):
                continue
            size = lives.bytes(copies)
            advice = Advice(
                self.name,
                problem=f"Autocast on line {call.lineno} keeps {format_bytes(size)} of weights in "
                "half precision, beside the float32 ones.",
                change="Switch its cache off, or convert the model (.half(), .bfloat16()) and "
                "leave autocast out.",
                line=call.lineno,
                size=size,
                saving=saving,
                known=Known.ESTIMATED,
                price="Weights are cast at each use: a weight used n times in the block, n times.",
                cost=Cost.TIME,
            )
            yield self.propose(
                cell, advice, partial(set_keyword, cell, call, "cache_enabled", "False")
            )
            return
