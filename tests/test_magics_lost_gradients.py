"""Gradients with graphs of their own, of models that nothing leads to: only what lets go of them is
offered."""

from __future__ import annotations

import pytest
from IPython.utils.capture import capture_output

torch = pytest.importorskip("torch")
MIB = 1 << 20
LOST = """\
import torch
from torch import nn
def step():
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)]).cuda()
    loss = model(torch.randn(1024, 512, device="cuda")).square().mean()
    loss.backward(create_graph=True)
step()
"""


@pytest.fixture
def run(shell):
    def run(cell):
        with capture_output() as shown:
            result = shell.run_cell(cell, store_history=True)
        assert result.success
        return shown.stdout + "".join(o.data["text/plain"] for o in shown.outputs)

    run("%load_ext gpumem_magic\n%gpumem --device T4")
    return run


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_cycle_through_gradients_is_offered_only_what_lets_go_of_it(run):
    run(LOST)
    assert torch.cuda.memory_allocated() > 24 * MIB
    assert "will free it" not in run("%gpucheck")
    run("%gpucheck --free --all")
    assert torch.cuda.memory_allocated() < 20 * MIB  # cuBLAS's workspaces
