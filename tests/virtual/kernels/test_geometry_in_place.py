"""Shapes that operators refuse to write to: refused where it happens, not by what comes after."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic import predict

X = "x = torch.randn(300, 400, device='cuda')\n"


@pytest.mark.parametrize(
    "line",
    [
        "x += torch.randn(200, 400, device='cuda')",
        "x.mul_(torch.randn(2, 300, 400, device='cuda'))",
        "x.copy_(torch.randn(300, 200, device='cuda'))",
        "x.addmm_(x, x)",
    ],
)
def test_what_does_not_fit_is_refused_at_its_line(line):
    report = predict(f"{X}{line}\nafter = x.relu()", {"torch": torch}, gpu="T4")
    assert report.error is not None
    assert report.error.startswith("RuntimeError")
    assert report.error_line == 2


@pytest.mark.parametrize(
    "line",
    [
        "x += torch.randn(400, device='cuda')",
        "x.addmm_(torch.randn(300, 9, device='cuda'), torch.randn(9, 400, device='cuda'))",
        "x[x > 0] = 1.0",
        "x[torch.randint(0, 300, (5,), device='cuda')] = torch.randn(400, device='cuda')",
    ],
)
def test_what_fits_is_not(line):
    assert predict(X + line, {"torch": torch}, gpu="T4").error is None
