"""Weights that each forward pass computes of others, and that wait for the backward pass."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.computed_weights import computed_weights, like_weights
from gpumem_magic.advice.evidence.shortage import is_short, last_moment
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Phase

_SHARE = 0.25
_SHARE_IF_SHORT = 0.1
"""Of the peak, that they take together."""

_LAYERS = 2
"""Layers from which they are told of: one is at work at any time."""

_LOW_RANK = (
    "A product of two thin matrices need not be added to the weight: x @ A.T @ B.T beside what the "
    "layer computes with the weight alone gives the same, and makes nothing of the weight's size."
)
_AGAIN = (
    "Compute them again in the backward pass: with the layer under torch.utils.checkpoint only its "
    "input is kept."
)

_SETUP = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)

class Lora(nn.Module):
    def __init__(self, size, rank=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size) / 50, requires_grad=False)
        self.A = nn.Parameter(torch.randn(rank, size) / 50)
        self.B = nn.Parameter(torch.randn(size, rank) / 50)

    def forward(self, x):
        return {}

model = nn.Sequential(*[Lora(1024) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2)
x = torch.randn(8, 1024, device="cuda")
for _ in range(2):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
last = loss.item()"""


_MERGED = "F.linear(x, self.weight + self.B @ self.A)"
_SCALED = "x @ torch.add(self.weight, self.B @ self.A, alpha=0.5).T"


class ComputedWeights(Rule):
    """Each forward pass computes weights of other weights, and autograd keeps them.

    An adapter that adds `B @ A` to the weight of its layer, a quantized layer that unpacks its
    weight, a weight that is cast or normalized in `forward()`: the layer multiplies its input by a
    new matrix, and keeps that for the backward pass, so that all layers together hold the model a
    second time. Beside the weights the activations may be small: a smaller batch does not help.
    `x @ A.T @ B.T` beside the layer makes no such matrix; checkpointing makes it again.
    """

    name: ClassVar[str] = "computed-weights"
    problem: ClassVar[str] = "weights that each forward pass computes wait for the backward pass"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            (_MERGED, "F.linear(x, self.weight) + x @ self.A.T @ self.B.T"),
            before=_SETUP.format(_MERGED),
            rewritten=False,
            results=("last",),
            within=1e-3,
        ),
        mended(
            (_SCALED, "x @ self.weight.T + (x @ self.A.T) @ (self.B.T * 0.5)"),
            before=_SETUP.format(_SCALED),
            rewritten=False,
            results=("last",),
            within=1e-3,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        code, trace = cell.joined() or (cell, trace)
        lives = trace.lives
        if not lives.recorded.any():
            return
        share = _SHARE_IF_SHORT if is_short(trace) else _SHARE
        least = max(MIB, int(share * (trace.peak.allocated or 0)))
        for value, made in code.once(computed_weights, lives):
            own = np.flatnonzero(made & lives.alive(last_moment(trace)))
            if len(own) >= _LAYERS and int(lives.size[own].sum()) >= least:
                gradients = like_weights(lives) & (lives.born == Phase.BACKWARD)
                saving = lives.saved_at_peak(made | gradients)
                advice = self._advice(code, lives, value, own, saving)
                yield advice if code is cell else replace(advice, line=None)

    def _advice(
        self, code: Code, lives: Lifetimes, value: ast.expr, own: NDArray[np.int64], saving: int
    ) -> Advice:
        size = int(lives.size[own].sum())
        shapes = {lives.tensor(row)[0] or () for row in own.tolist()}
        shape = f" of {[*shapes.pop()]}" if len(shapes) == 1 else ""
        thin = any(
            isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult) for n in ast.walk(value)
        )
        return Advice(
            self.name,
            problem=f"Each forward pass computes weights on {code.place(value.lineno)}, "
            f"{code.text(value)}: {len(own)} results{shape}, {format_bytes(size)}, were kept for "
            "the backward pass.",
            change=_LOW_RANK if thin else _AGAIN,
            line=value.lineno,
            size=size,
            saving=saving,
            known=Known.ESTIMATED,
        )
