"""What is kept in places that no name of the notebook leads to, until memory runs out."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

SETUP = """\
import atexit, sys, types, weakref
from contextlib import ExitStack
import torch
from torch import nn
net = nn.Linear(1024, 1024).cuda()
inputs = torch.randn(512, 1024, device="cuda")
def report(*told): pass
class Batch: pass
batches = []
log = types.ModuleType("batch_log")
log.records = {}
sys.modules["batch_log"] = log
del log
"""
KEPT = {
    "finalize": (
        "    batches.append(Batch())\n    weakref.finalize(batches[-1], report, n, output)\n",
        "weakref.finalize: arguments[*] holds",
    ),
    "atexit": ("    atexit.register(report, n, output)\n", "atexit: arguments[*] holds"),
    "module": ("    sys.modules['batch_log'].records[n] = output\n", "batch_log.records[*] holds"),
}
CLOSED = """\
def collect():
    with ExitStack() as stack, torch.no_grad():
        for n in range(100):
            output = net(inputs)
            stack.callback(report, output)
collect()
"""


@pytest.mark.parametrize("name", list(KEPT))
def test_it_is_named(notebook, name):
    kept, words = KEPT[name]
    cell = f"for n in range(100):\n    with torch.no_grad():\n        output = net(inputs)\n{kept}"
    with notebook("70MiB") as one:
        one.run(SETUP)
        _, said = one.run(f"%%gpumem -o _report\n{cell}")
        first = one.shell.user_ns["_report"].advice[0]
        one.run("atexit.unregister(report)")
    assert words in first.problem, said


def test_what_an_error_closed_is_named(predicted):
    first = predicted(CLOSED, "70MiB", (SETUP,)).advice[0]
    assert "stack, of the with in line 3, holds" in first.problem


TRAINER = """\
class Trainer:
    def __init__(self, model):
        self.model, self.optimizers = model, {}

    def run_epoch(self, epoch):
        self.optimizers[epoch] = torch.optim.AdamW(self.model.parameters())
        for _ in range(2):
            loss = self.model(inputs).square().mean()
            self.optimizers[epoch].zero_grad()
            loss.backward()
            self.optimizers[epoch].step()
"""
EPOCHS = "trainer = Trainer(net)\nfor epoch in range(20):\n    trainer.run_epoch(epoch)"


def test_optimizers_of_earlier_epochs_are_named(predicted):
    report = predicted(EPOCHS, "90MiB", (SETUP, TRAINER))
    assert report.oom
    assert report.advice[0].rule == "second-optimizer"
    assert report.advice[0].problem.startswith("trainer.optimizers[*] holds")
