"""Arrays that are computed with together become float32 together, or not at all."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

SETUP = """\
import numpy as np
import torch
points = np.random.default_rng(0).normal(size=(20_000, 64))
weights = np.ones((64, 64))"""
CELL = """\
x = torch.tensor(points).to("cuda")
w = torch.as_tensor(weights / 64, device="cuda")
mean = torch.tanh(x @ w).mean().item()"""


def found(report):
    return [one for one in report.advice if one.rule == "float64-by-accident"]


def test_arrays_that_meet_are_converted_together(notebook):
    with notebook() as one:
        one.run(SETUP)
        (advice,) = found(one.measure(CELL))
        assert advice.source.count("torch.float32") == 2
        assert "lines 2, 3" in advice.problem
        report = one.measure(advice.source.split("\n", 1)[1])
        assert report.error is None
        assert not found(report)


def test_an_older_tensor_that_stays_float64_forbids_the_change(notebook):
    with notebook() as one:
        one.run(f"{SETUP}\nw = torch.as_tensor(weights, device='cuda')")
        cell = 'x = torch.tensor(points).to("cuda")\nmean = (x @ w).mean().item()'
        (advice,) = found(one.measure(cell))
        assert advice.source is None
        assert "w, which was there before" in advice.change


def test_a_default_that_another_cell_set_is_named(notebook):
    with notebook() as one:
        try:
            one.run("import torch\ntorch.set_default_dtype(torch.float64)")
            one.run("scale = 3")
            model = (
                "model = torch.nn.Sequential(*map(torch.nn.Linear, [2048] * 2, [2048] * 2)).cuda()"
            )
            report = one.measure(
                f"{model}\nmodel(torch.rand(64, 2048, device='cuda')).sum().backward()"
            )
        finally:
            torch.set_default_dtype(torch.float32)
    (advice,) = found(report)
    assert advice.problem.endswith("as torch was told to make all tensors in In[2].")
    assert "set_default_dtype(torch.float32)" in advice.change


def test_autocast_is_not_told_of_what_it_leaves_as_it_is(notebook):
    cell = (
        "net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh()).double().cuda()\n"
        "step = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "rows = torch.randn(8000, 256, dtype=torch.float64, device='cuda')\n"
        "loss = net(rows).square().mean()\nloss.backward()\nstep.step()"
    )
    with notebook("80MiB") as one:
        one.run("import torch")
        report = one.measure(cell)
    told = [advice.change for advice in report.advice if advice.rule == "activations"]
    assert told
    assert not any("autocast" in change for change in told)
