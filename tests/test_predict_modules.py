"""Where the memory of a training run in a library went, by module: all of it, to the byte."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from gpumem_magic import predict

pytest.importorskip("torch")

NET = """
import torch
from torch import nn

class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)
    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(MLP() for _ in range(3))
    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x
"""

LIBRARY = """
import torch

class Trainer:
    def __init__(self, model):
        self.model = model.cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def train(self, batches):
        for batch in batches:
            self.optimizer.zero_grad()
            self.model(batch.cuda()).sum().backward()
            self.optimizer.step()
"""

TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
config = GPT2Config(n_layer=3, n_embd=64, n_head=2, vocab_size=100, n_positions=32)
model = GPT2LMHeadModel(config)
one = {"input_ids": torch.zeros(32, dtype=torch.long), "labels": torch.zeros(32, dtype=torch.long)}
args = TrainingArguments("out", max_steps=2, report_to=[], save_strategy="no", disable_tqdm=True)
trainer = Trainer(model=model, args=args, train_dataset=[one] * 16)
trainer.train()
"""

FIT = """
import lightning
class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def training_step(self, batch, index):
        return self.net(batch).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

lit = Lit()
trainer = lightning.Trainer(
    max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(lit, torch.utils.data.DataLoader([torch.zeros(256)] * 128, batch_size=64))
"""


def tree_of(source):
    """The tree of a prediction, every byte of which has its place."""
    report = predict(source, {}, gpu="T4")
    assert report.error is None
    roots = [node for node in report.call_tree if node.depth == 0]
    assert sum(node.at_peak for node in roots) == report.peak.allocated
    assert_whole(report.call_tree)
    return report.call_tree


def assert_whole(nodes):
    """What a node called is no more than what is told of it."""
    for i, node in enumerate(nodes):
        inside = []
        for later in nodes[i + 1 :]:
            if later.depth <= node.depth:
                break
            inside += [later] if later.depth == node.depth + 1 else []
        for size in ("at_peak", "allocated", "kept"):
            assert sum(getattr(one, size) for one in inside) <= getattr(node, size), node


def names_in(nodes, text):
    """Names of the nodes inside the first whose name has `text`, that one's own first."""
    start = next(i for i, node in enumerate(nodes) if text in node.name)
    inside = [nodes[start].name]
    for node in nodes[start + 1 :]:
        if node.depth <= nodes[start].depth:
            break
        inside.append(node.name)
    return " | ".join(inside)


def test_a_call_into_a_library_is_told_by_module(tmp_path, monkeypatch):
    (tmp_path / "some_trainer.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    batches = "[torch.zeros(64, 256)] * 2"
    tree = tree_of(
        f"{NET}\nimport some_trainer\ntrainer = some_trainer.Trainer(Net())\n"
        f"trainer.train({batches})\ndel some_trainer\n"
    )
    told = names_in(tree, "trainer.train(")
    assert "blocks[0..2]" in told
    assert "return F.linear(input, self.weight, self.bias)" in told
    assert "optimizer state" in told
    assert "> parameter" in names_in(tree, "some_trainer.Trainer(Net())")


def test_a_model_that_only_a_function_knows_is_told_by_module():
    tree = tree_of(
        f"{NET}\ndef train():\n    net = Net().cuda()\n"
        "    net(torch.zeros(64, 256, device='cuda')).sum().backward()\n\ntrain()\n"
    )
    told = names_in(tree, "train()")
    assert "net > blocks[0..2]" in told
    assert "up > return F.linear(" in told


def needs(*packages):
    """Skip where one is missing, without the import, which would change torch here."""
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)}: not installed")


@needs("transformers", "accelerate")
def test_a_trainer_of_transformers():
    told = names_in(tree_of(TRAINER), "trainer.train()")
    assert "model" in told
    assert "h[0..2]" in told
    assert "c_fc" in told


@needs("lightning")
def test_a_fit_of_lightning():
    told = names_in(tree_of(NET + FIT), "trainer.fit(")
    assert "blocks[0..2]" in told
    assert "up > return F.linear(" in told
