"""Checkpoints that compute again in a cell that is measured."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import checkpoint

from gpumem_magic import measure

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("last", [nn.LayerNorm(256), nn.Dropout(0.1), nn.GELU()])
def test_a_checkpoint_ends_early_as_it_does_without_us(last):
    hook = checkpoint._recomputation_hook
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
    assert checkpoint._recomputation_hook is hook
