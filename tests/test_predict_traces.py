"""Predictions of cells that trace modules (torch.jit.trace)."""

from __future__ import annotations

import pytest

from gpumem_magic import predict

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("code", "peak"),  # as torch 2.11's own allocator counted them, on a device without kernels
    [
        (
            "m = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()\n"
            "x = torch.randn(512, 1024, device='cuda')\n"
            "t = torch.jit.trace(m, (x,), check_trace=False)\n"
            "for _ in range(4):\n"
            "    t(x).square().sum().backward()\n",
            139_785_216,
        ),
        (
            "m = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),\n"
            "    nn.Conv2d(64, 64, 3, padding=1)).cuda().eval()\n"
            "x = torch.randn(8, 3, 128, 128, device='cuda')\n"
            "with torch.no_grad():\n"
            "    y = torch.jit.freeze(torch.jit.trace(m, x, check_trace=False))(x)\n",
            68_847_616,
        ),
    ],
)
def test_traced_modules_run_as_torchscript_does(code, peak):
    report = predict(f"import torch\nfrom torch import nn\n{code}", {}, "A100-40GB")
    assert (report.error, report.peak.allocated) == (None, peak)


def test_the_check_of_a_trace_is_no_guess():
    report = predict(
        "import torch\n"
        "l = torch.nn.LSTM(32, 64).cuda()\n"
        "t = torch.jit.trace(l, torch.rand(2, 8, 32, device='cuda'))\n"
        "print(t(torch.rand(2, 8, 32, device='cuda'))[0].shape)\n",
        {},
    )
    assert (report.error, report.flow_guessed) == (None, False)
    assert report.output.endswith("torch.Size([2, 8, 64])\n")
