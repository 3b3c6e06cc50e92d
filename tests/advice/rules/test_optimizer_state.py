"""What the rule says of a state that was not finished."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.predict import predict  # noqa: E402 - needs torch for what it is tested with

FIRST_STEP = """\
layers = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
adam = torch.optim.Adam(layers.parameters())
layers(torch.randn(64, 1024, device="cuda")).sum().backward()
adam.step()
"""


def test_the_bytes_at_the_peak_are_those_that_were_made():
    """Not those that the whole state would have had: its text tells them."""
    report = predict(FIRST_STEP, {"torch": torch}, gpu="110MiB")
    advice = report.advice[0]
    state = next(size for kind, size in report.at_peak.items() if kind.value == "optimizer state")
    assert advice.rule == "optimizer-state"
    assert advice.size == state
    assert "Each step needs 64.06 MiB of state" in advice.change
