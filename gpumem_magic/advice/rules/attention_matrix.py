"""Attention that is written out, with its matrix of all pairs of positions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.attention_formula import Formula, find_formulas
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.rewrite import UnsafeError, remove, replace
from gpumem_magic.advice.rule import Rule
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Edit, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_TENSORS = """\
import math
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
q, k, v = torch.randn(3, 2, 4, 512, 32, device="cuda")
x = torch.randn(2, 512, 64, device="cuda")
"""

_LAYER = """\
class Attention(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.0)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.inputs(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        # causal attention
"""

_BEFORE = """\
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
        weights = self.dropout(F.softmax(scores, dim=-1))
        y = weights @ v  # the values
"""

_AFTER = """\
        y = F.scaled_dot_product_attention(q, k, v, \
dropout_p=self.dropout.p if self.dropout.training else 0.0, is_causal=True, \
scale=1 / (math.sqrt(q.size(-1))))  # the values
"""

_REST = """\
        return self.output(y.transpose(1, 2).reshape(B, T, C))

layer = Attention(64, 4, 512).cuda()
loss = layer(x).square().mean()
loss.backward()
grad = layer.inputs.weight.grad"""

EXAMPLES = (
    Example(
        setup=_TENSORS,
        before="with torch.no_grad():\n"
        "    y = torch.softmax(q @ k.transpose(-2, -1) * 32 ** -0.5, dim=-1) @ v\ny.shape",
        after="with torch.no_grad():\n"
        "    y = F.scaled_dot_product_attention(q, k, v, scale=32 ** -0.5)\ny.shape",
        results=("y",),
        within=1e-4,
    ),
    Example(
        setup=_TENSORS,
        before=_LAYER + _BEFORE + _REST,
        after=_LAYER + _AFTER + _REST,
        results=("loss", "grad"),
        within=1e-4,
    ),
)

_SHARE = 0.1
"""Of the peak: with less, the matrix is not what sets it."""


class AttentionMatrix(Rule):
    """Attention compares every position with every other: a matrix of N x N for each head.

    Written as softmax(q @ k^T) @ v the matrix is made several times over (scores, masked scores,
    weights) and kept for the backward pass; twice the length takes four times the memory.
    `scaled_dot_product_attention` computes the same without ever holding the matrix, and is faster.
    It does not give the weights themselves, for those who want to look at them.
    """

    name: ClassVar[str] = "attention-matrix"
    problem: ClassVar[str] = "matrices of all pairs of positions set the peak"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = EXAMPLES

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        for formula in find_formulas(cell):
            matrices = _matrices(cell, lives, formula)
            size, saving = lives.bytes(matrices & lives.at_peak), lives.saved_at_peak(matrices)
            if size < least_saving(trace, _SHARE):
                continue
            one = int(lives.size[matrices].max())
            advice = Advice(
                self.name,
                problem=f"The attention on line {formula.product.lineno} holds "
                f"{format_bytes(size)} of matrices of all pairs of positions at the peak, "
                f"{format_bytes(one)} each.",
                change="Compute it by scaled_dot_product_attention, which never holds them.",
                line=formula.product.lineno,
                size=size,
                saving=saving,
                known=Known.ESTIMATED,
                price="The weights cannot be looked at; results differ in the last digits.",
            )
            yield self.propose(cell, advice, partial(_fused, cell, formula))


def _matrices(cell: Code, lives: Lifetimes, formula: Formula) -> NDArray[np.bool_]:
    """Storages of the matrix's size, or half of it, that the formula's lines made, in the forward
    pass or as their gradients."""
    here = np.logical_or.reduce([cell.born_in(s, lives) for s in formula.statements])
    here &= (lives.birth >= 0) & ~lives.of(Category.WORKSPACE)
    last = formula.product.lineno
    of_result = lives.size[(lives.line == last) & here]
    scores = lives.size[(lives.line == formula.scores.lineno) & here]
    if not len(scores):
        return np.zeros(len(lives), bool)
    largest = int(scores.max())
    if len(of_result) and largest <= int(np.median(of_result)) and formula.scores.lineno != last:
        return np.zeros(len(lives), bool)
    gradients = (lives.born == Phase.BACKWARD) & lives.of(Category.TEMPORARY)
    found: NDArray[np.bool_] = (here | gradients) & np.isin(lives.size, [largest, largest // 2])
    return found


def _fused(cell: Code, formula: Formula) -> Iterator[Edit]:
    if formula.refusal:
        raise UnsafeError(formula.refusal)
    function = cell.spelling("torch.nn.functional")
    if not function:
        if not (torch := cell.spelling("torch")):
            raise UnsafeError("torch is not imported by its name")
        function = f"{torch}.nn.functional"
    arguments = ", ".join(formula.arguments(cell))
    text = f"{function}.scaled_dot_product_attention({arguments})"
    for statement in formula.statements:
        if not _holds(statement, formula.product):
            yield from remove(cell, statement)
    yield from replace(cell, formula.product, text)


def _holds(statement: ast.stmt, node: ast.AST) -> bool:
    return any(inside is node for inside in ast.walk(statement))
