"""Real cells: what they leave adds up to the byte, and next to nothing of it is unknown."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # the first optimizer would import it, which changes torch

from tests.benches import benchmark_module


@pytest.fixture(scope="module")
def inventory():
    """The benchmark, as a module."""
    with benchmark_module("inventory") as module:
        yield module


@pytest.mark.parametrize("cell", ["mlp", "accumulation", "conv_other"])
def test_hardly_anything_is_unknown(inventory, cell):
    (share,) = inventory.shares(cuda=False, only=[cell])

    assert share.adds_up
    assert share.allocated > 0
    assert share.unknown < 0.01 * share.allocated
