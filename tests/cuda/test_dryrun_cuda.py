"""Dry runs on a machine with a CUDA device: from its memory, without touching it."""

from __future__ import annotations

import torch
from torch import nn

from gpumem_magic import measure, predict

CELL = """
for i in range(2):
    x = torch.randn(64, 784, device="cuda")
    loss = nn.functional.cross_entropy(net(x), torch.randint(0, 10, (64,), device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
extra = torch.ones(1000, device="cuda")
"""


def trained():
    net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
    namespace = {"torch": torch, "nn": nn, "net": net}
    namespace["optimizer"] = torch.optim.Adam(net.parameters())
    exec(CELL, namespace)
    return namespace


def levels(report):
    found = (report.before, report.peak, report.after)
    return [(level.allocated, level.reserved) for level in found]


def test_the_prediction_is_what_the_cell_then_does():
    namespace = trained()
    predicted = predict(CELL, namespace)
    with measure() as measured:
        exec(CELL, namespace)
    assert predicted.predicted
    assert predicted.error is None
    assert levels(predicted) == levels(measured.report)


def test_the_device_is_left_alone():
    namespace = trained()
    net = namespace["net"]

    def state():
        tensors = [(id(p), p.data_ptr(), p._version, p.device) for p in net.parameters()]
        return torch.cuda.memory_stats(), torch.cuda.memory_snapshot(), tensors

    before, random = state(), torch.cuda.get_rng_state()
    for gpu in (None, "A100-80GB", "64MiB"):
        predict(CELL, namespace, gpu=gpu)
    assert state() == before
    assert torch.equal(torch.cuda.get_rng_state(), random)


def test_another_card_holds_what_is_alive_here():
    namespace = trained()
    report = predict(CELL, namespace, gpu="A100-80GB")
    assert report.error is None
    assert report.before.allocated >= sum(p.nbytes for p in namespace["net"].parameters())
    assert predict(CELL, namespace, gpu="40MiB").oom is not None
