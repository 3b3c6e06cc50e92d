"""Arguments of training frameworks, wherever they are passed: of one that stands in for Lightning,
and of transformers' Trainer where it is installed."""

from __future__ import annotations

import sys
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")

with suppress(ImportError):
    import transformers  # noqa: F401 - here, as it changes torch for good

RULE = "framework-arguments"

STAND_IN = """
import torch

class Trainer:
    def __init__(self, precision="32", accumulate_grad_batches=1):
        self.precision = precision
        self.accumulate_grad_batches = accumulate_grad_batches

    def fit(self, model, loader):
        half = torch.float16 if "16" in self.precision else None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, batch in enumerate(loader):
            with torch.autocast("cuda", dtype=half, enabled=half is not None):
                loss = model(batch.cuda()).pow(2).mean() / self.accumulate_grad_batches
            loss.backward()
            if (i + 1) % self.accumulate_grad_batches == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
NET = """\
import torch
from torch import nn
from pytorch_lightning.trainer.trainer import Trainer
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)]).cuda()
"""
LOADER = "loader = torch.utils.data.DataLoader(torch.zeros(8192, 256), batch_size=4096)\n"
FIT = "Trainer().fit(model, loader)\n"

BIG = "import torch\nfrom transformers import GPT2Config, GPT2LMHeadModel, Trainer\n"
IMPORTS = f"""\
{BIG}from transformers import TrainingArguments
config = GPT2Config(n_layer=6, n_embd=128, n_head=2, vocab_size=100)
one = {{"input_ids": torch.zeros(512).long(), "labels": torch.zeros(512).long()}}
data = [one] * 64
model = GPT2LMHeadModel(config)
given = dict(output_dir="out", max_steps=2, report_to=[], save_strategy="no")
"""
MADE = "args = TrainingArguments(**given)\n"
TRAINS = "Trainer(model=model, args=args, train_dataset=data).train()\n"

SHAPES = {
    "a dictionary": ("", MADE + TRAINS),
    "arguments before": (MADE, TRAINS),
    "trainer before": (
        MADE + "trainer = Trainer(model=model, args=args, train_dataset=data)\n",
        "trainer.train()\n",
    ),
    "function before": ("def train():\n    " + MADE + "    " + TRAINS, "train()\n"),
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass Mine(TrainingArguments):\n"
        "    more: int = 3\n",
        "args = Mine(**given)\n" + TRAINS,
    ),
}


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A framework whose frames are those of Lightning."""
    folder = tmp_path / "pytorch_lightning" / "trainer"
    folder.mkdir(parents=True)
    for place in (folder.parent, folder):
        (place / "__init__.py").write_text("")
    (folder / "trainer.py").write_text(STAND_IN)
    for name in [name for name in sys.modules if name.split(".")[0] == "pytorch_lightning"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "pytorch_lightning"]:
        del sys.modules[name]


def assessed(notebook, *cells):
    *before, cell = cells
    with notebook() as one:
        for setup in before:
            result, text = one.run(setup)
            assert result.success, text
        found = one.assess(cell)
    assert found.report.error is None
    assert found.failed == ()
    assert "activations" not in [advice.rule for advice in found.advice]
    return [advice for advice in found.advice if advice.rule == RULE]


def test_arguments_are_written_into_the_cell(notebook, stand_in):
    told = assessed(notebook, NET, LOADER + FIT)
    changed = {advice.source for advice in told}
    assert changed == {
        LOADER + FIT.replace("Trainer()", "Trainer(precision='16-mixed')"),
        LOADER.replace("4096", "1024") + FIT.replace("()", "(accumulate_grad_batches=4)", 1),
    }
    assert all(advice.saving > 0 and not advice.arguments for advice in told)


@pytest.mark.parametrize(
    "cells",
    [
        (LOADER, FIT),
        (LOADER + "trainer = Trainer()\n", "trainer.accumulate_grad_batches\n" + FIT),
        ("def train():\n    " + LOADER + "    " + FIT, "train()\n"),
    ],
    ids=["loader before", "another trainer before", "function before"],
)
def test_what_is_made_elsewhere_is_passed_there_by_the_dry_run(cells, notebook, stand_in):
    told = assessed(notebook, NET, *cells)
    passed = {one.name: one.value for advice in told for one in advice.arguments}
    written = "accumulate_grad_batches=4" in str([advice.source for advice in told])
    assert written or passed["accumulate_grad_batches"] == 4
    assert passed["batch_size"] == 1024
    assert all(advice.saving > 0 for advice in told)
    assert any("the dry run passes it there" in advice.change for advice in told)


def test_a_live_report_tells_them_without_numbers(notebook, stand_in):
    with notebook("128MiB") as one:
        one.run(NET)
        report = one.measure(LOADER.replace("4096", "8192") + FIT)
    told = [advice for advice in report.advice if advice.rule == RULE]
    assert told
    assert all(not advice.arguments and advice.source is None for advice in told)


@pytest.mark.skipif("transformers" not in sys.modules, reason="needs transformers")
@pytest.mark.parametrize("shape", SHAPES)
def test_each_argument_is_measured_wherever_it_is_passed(shape, notebook):
    told = {
        passed.name: advice
        for advice in assessed(notebook, IMPORTS, *SHAPES[shape])
        for passed in advice.arguments
    }
    assert {"fp16", "gradient_checkpointing", "per_device_train_batch_size"} <= set(told)
    assert all(advice.saving > 0 for advice in told.values())
    assert told["per_device_train_batch_size"].fits


def test_a_smaller_batch_is_cheaper_than_a_lower_precision():
    from gpumem_magic.advice.changes.frameworks import BATCH, FRAMEWORKS
    from gpumem_magic.values.advice import Cost

    lower = [knob.cost for one in FRAMEWORKS for knob in one.knobs if knob.half]
    costs = list(Cost)
    assert all(costs.index(BATCH.cost) < costs.index(cost) for cost in lower)
