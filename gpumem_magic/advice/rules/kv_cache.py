"""Keys and values that a generation keeps of every token."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.rule import Rule
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Phase

_STEPS = 8
"""Tokens from which on growth is no accident."""

_LEAST = 0.02
_WORDS = ("cache", "past", "kv")
_FRAMES = ("cache_utils.py",)
_Rows = NDArray[np.int64]
_MODEL = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(512, 1536), nn.Linear(512, 512)
layers = nn.ModuleList(Layer() for _ in range(8)).cuda()
x = torch.randn(4, 1, 512, device="cuda")
"""
_GROWING = """\
cache = [(x[:, :0], x[:, :0]) for _ in layers]
with torch.no_grad():
    for position in range(12):
        for i, layer in enumerate(layers):
            q, k, v = layer.qkv(x).chunk(3, -1)
            k, v = torch.cat([cache[i][0], k], 1), torch.cat([cache[i][1], v], 1)
            cache[i] = k, v
            x = layer.out(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0])
total = x.sum().item()"""
_STATIC = """\
cache = [(x.new_zeros(4, 12, 512), x.new_zeros(4, 12, 512)) for _ in layers]
with torch.no_grad():
    for position in range(12):
        for i, layer in enumerate(layers):
            q, k, v = layer.qkv(x).chunk(3, -1)
            keys, values = cache[i]
            keys[:, position], values[:, position] = k[:, 0], v[:, 0]
            k, v = keys[:, None, : position + 1], values[:, None, : position + 1]
            x = layer.out(F.scaled_dot_product_attention(q[:, None], k, v)[:, 0])
total = x.sum().item()"""


class KvCache(Rule):
    """Generation with a cache keeps the keys and values of every token, in every layer: memory
    that grows by the same amount with each token, for each sequence of the batch.

    A static cache, made once for the longest output, does not grow, is never copied and leaves no
    holes in the allocator's memory; it takes from the beginning what the other takes in the end. In
    transformers it is `cache_implementation="static"`. A quantized cache ("quantized") takes a
    quarter or less and is a little slower; a smaller batch, grouped heads or a shorter window
    shrink it as well.
    """

    name: ClassVar[str] = "kv-cache"
    problem: ClassVar[str] = "generation grows by the keys and values of each token"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_MODEL, before=_GROWING, after=_STATIC, results=("total",), within=1e-4,
            rewritten=False,
        ),
        Example(
            setup=_MODEL
            + """
class Decoder(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers
    def forward(self, x, past):
        for i, layer in enumerate(self.layers):
            q, k, v = layer.qkv(x).view(4, 1, 3, 8, 64).permute(2, 0, 3, 1, 4)
            if past[i] is not None:
                k = torch.cat((past[i][0], k), dim=2)
                v = torch.cat((past[i][1], v), dim=2)
            past[i] = (k, v)
            y = F.scaled_dot_product_attention(q, k, v)
            x = layer.out(y.transpose(1, 2).reshape(4, 1, 512))
        return x
""",
            before="""\
model = Decoder(layers)

@torch.inference_mode()
def generate(model, x, tokens):
    past = [None] * len(model.layers)
    for _ in range(tokens):
        x = model(x, past)
    return x

total = generate(model, x, 12).sum().item()""",
            after="""\
model = Decoder(layers)

@torch.inference_mode()
def generate(model, x, tokens):
    kept = [x.new_zeros(2, 4, 8, tokens, 64) for _ in layers]
    for n in range(tokens):
        for layer, (keys, values) in zip(layers, kept):
            q, k, v = layer.qkv(x).view(4, 1, 3, 8, 64).permute(2, 0, 3, 1, 4)
            keys[:, :, n], values[:, :, n] = k[:, :, 0], v[:, :, 0]
            y = F.scaled_dot_product_attention(q, keys[:, :, : n + 1], values[:, :, : n + 1])
            x = layer.out(y.transpose(1, 2).reshape(4, 1, 512))
    return x

total = generate(model, x, 12).sum().item()""",
            results=("total",),
            within=1e-4,
            rewritten=False,
        ),
    )  # fmt: skip

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        if np.any(lives.born != Phase.FORWARD):
            return
        if np.any(lives.recorded):
            return  # a graph: no generation
        series = list(_series(lives))
        largest = max((s.size for s in series), default=0)
        series = [s for s in series if s.size >= _LEAST * largest]  # no lengths, no masks
        token, size = sum(s.growth for s in series), sum(s.size for s in series)
        if sum(s.tensors for s in series) < 2 or size < least_saving(trace, _LEAST):
            return
        if not _is_generation(lives, cell, series):
            return
        tokens = size // token
        held = lives.bytes(np.isin(lives.stack, [s.stack for s in series]) & lives.at_peak)
        twice = (
            f", {format_bytes(held)} at the peak with those replaced" if held > 1.5 * size else ""
        )
        yield Advice(
            self.name,
            problem=f"The keys and values of {tokens:,} tokens take {format_bytes(size)}{twice}, "
            f"{format_bytes(token)} more with each token of the batch."
            f"{_limit(trace, token, size)}",
            change="Fewer sequences at a time, or fewer tokens, take less of it. A cache made "
            "once, in its full size, takes the same without copies; a quantized or an offloaded "
            "one (transformers: cache_implementation=) takes less of the card.",
            line=series[0].line or None,
            size=max(size, held),
        )


@dataclass(frozen=True, slots=True)
class _Series:
    """Tensors made at one place, `tensors` at a time, each by `growth / tensors` bytes larger than
    the one that it replaces; `size` bytes in the end."""

    stack: int
    line: int
    tensors: int
    growth: int
    size: int


def _series(lives: Lifetimes) -> Iterator[_Series]:
    """Places of the program whose tensors grow step by step, each dying when the next is there."""
    large = (lives.birth >= 0) & (lives.stack >= 0)
    rows = np.flatnonzero(large)
    rows = rows[np.argsort(lives.stack[rows], kind="stable")]
    stacks, first, many = np.unique(lives.stack[rows], return_index=True, return_counts=True)
    for place in np.flatnonzero(many >= _STEPS).tolist():
        stack, here = int(stacks[place]), rows[first[place] :][: many[place]]
        amounts = _elements(lives, here)
        steps, counts = np.unique(amounts, return_counts=True)
        if len(steps) < _STEPS:
            continue
        growth, counts = np.diff(steps[1:]), counts[1:]
        alike = (growth == np.median(growth)).mean() > 0.9
        tensors = int(np.median(counts))
        ordered = np.all(np.diff(amounts) >= 0)
        same = (counts == tensors).mean() > 0.9
        if alike and ordered and same and _handed_on(lives, here, amounts):
            each = int(lives.size[here[-1]] // amounts[-1]) * tensors
            token, size = int(np.median(growth)) * each, int(amounts[-1]) * each
            yield _Series(stack, int(lives.line[here[0]]), tensors, token, size)


def _elements(lives: Lifetimes, here: _Rows) -> NDArray[np.float64]:
    """What storages were made for, in elements; in bytes where that is not known: a block may be
    larger than what was asked for."""
    made = lives.made[here]
    if (made < 0).any():
        return lives.size[here].astype(float)
    return np.array([float(np.prod(lives.results[n][0] or ())) for n in made.tolist()])


def _handed_on(lives: Lifetimes, here: _Rows, amounts: NDArray[np.float64]) -> bool:
    """Whether each lives until a larger one was made."""
    steps = np.unique(amounts)
    first = {one: lives.birth[here[amounts == one]] for one in steps.tolist()}
    kept = [
        bool(lives.death[here[amounts == one]].min() > first[other].min())
        for one, other in pairwise(steps.tolist())
    ]
    return float(np.mean(kept)) > 0.9


def _is_generation(lives: Lifetimes, cell: Code, series: list[_Series]) -> bool:
    """Whether the program calls it a cache: in the cell, or in what it called."""
    frames = [frame for one in series for frame in lives.stacks[one.stack]]
    if any(f.filename.endswith(_FRAMES) or f.function == "generate" for f in frames):
        return True
    words = cell.spoken()
    words |= {n.attr for n in cell.walk() if isinstance(n, ast.Attribute)}
    words |= {n.arg for n in cell.walk() if isinstance(n, (ast.keyword, ast.arg)) if n.arg}
    return any(part in word.lower() for word in words for part in _WORDS)


def _limit(trace: Trace, token: int, size: int) -> str:
    """At what length the card is full."""
    if trace.device is None or trace.device.total > 2**45:
        return ""
    other = (trace.peak.device_used or trace.peak.reserved or 0) - size
    most = (trace.device.total - other) // token
    return f" {trace.device.name} is full at about {most:,} tokens." if most > 0 else ""
