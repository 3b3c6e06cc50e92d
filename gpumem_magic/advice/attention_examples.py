"""Attention as people write it out."""

from __future__ import annotations

from gpumem_magic.advice.rule import Example

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
    Example(
        setup=_TENSORS,
        before="""\
def attend(query, key, value, bias):
    scores = torch.matmul(query, key.transpose(2, 3)) + bias
    weights = scores.softmax(-1)
    return torch.matmul(weights, value)

bias = torch.zeros(512, 512, device="cuda")
q.requires_grad_()
out = attend(q, k, v, bias)
out.sum().backward()
grad = q.grad""",
        after="""\
def attend(query, key, value, bias):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)

bias = torch.zeros(512, 512, device="cuda")
q.requires_grad_()
out = attend(q, k, v, bias)
out.sum().backward()
grad = q.grad""",
        results=("out", "grad"),
        within=1e-4,
    ),
)
