"""Errors under way in a backward pass that is measured: they arrive as they do without us."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils import checkpoint

from gpumem_magic import measure

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("last", [nn.LayerNorm(256), nn.Dropout(0.1), nn.GELU()])
def test_a_checkpoint_ends_early_as_it_does_without_us(last):
    inner = nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256)).cuda()
    net = nn.Sequential(nn.Linear(256, 256), last).cuda()

    def block(x):
        return net(checkpoint.checkpoint(inner, x, use_reentrant=False))

    with measure() as measured:
        x = torch.randn(512, 256, device="cuda", requires_grad=True)
        for _ in range(2):
            checkpoint.checkpoint(block, x, use_reentrant=False).square().mean().backward()
    assert measured.report.error is None
    assert not measured.report.notes
    assert measured.report.after.allocated == torch.cuda.memory_allocated()
    assert sum(line.net for line in measured.report.lines) == (
        measured.report.after.allocated - measured.report.before.allocated
    )
    assert x.grad is not None


_UNPACKING = """
import torch
from torch import nn
from gpumem_magic import measure
unpacked = []
def unpack(tensor):
    unpacked.append(tensor)
    if len(unpacked) == 2:
        raise ValueError("mine")
    return tensor
net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.1)).cuda()
with measure() as measured:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        y = net(torch.randn(32, 64, device="cuda"))
    try:
        y.sum().backward()
    except ValueError as error:
        print(error)
"""


def test_an_error_where_what_was_saved_is_unpacked_is_the_users():
    """In a process of its own: PyTorch leaves what the pass had on the device."""
    command = [sys.executable, "-c", _UNPACKING]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.stdout == "mine\n", run.stderr
