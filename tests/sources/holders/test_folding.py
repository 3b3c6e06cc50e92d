"""Names for many."""

from __future__ import annotations

import pytest

from gpumem_magic.sources.holders.folding import folded, is_below, parent


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["x"], "x"),
        (["outputs[0]", "outputs[1]", "outputs[2]"], "outputs"),
        (["m.layers[0].weight", "m.layers[1].weight"], "m.layers[0..1].weight"),
        (["m.layers[0].a.weight", "m.layers[1].a.bias"], "m.layers[0..1].a"),
        (["m.layers[0].weight", "m.layers[7].weight"], "m.layers"),
        (["m.layers[0].weight", "m.head.weight"], "m"),
        (["o.state[m.fc.weight]['exp_avg']", "o.state[m.fc.bias]['exp_avg']"], "o.state"),
        (["y.grad_fn: Mul.self", "y.grad_fn: Exp.result"], "y.grad_fn"),
    ],
)
def test_folded(paths, name):
    assert folded(paths) == name


def test_the_module_of_a_parameter_and_its_gradient():
    assert parent("m.fc.weight") == parent("m.fc.weight.grad") == "m.fc"
    assert parent("x") == "x"


def test_below():
    assert is_below("model.fc", "model")
    assert is_below("list(model.state.values())[0]", "model")
    assert not is_below("model2.fc", "model")
