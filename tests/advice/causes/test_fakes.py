"""A GAN whose discriminator's step goes back through the generator, with its classes in earlier
cells."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 2048))
    def forward(self, z): return self.main(z)
class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 1))
    def forward(self, x): return self.main(x)
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(1024, 1, device="cuda"), torch.zeros(1024, 1, device="cuda")
batches = [torch.rand(1024, 2048) for _ in range(3)]
"""
PASSED = """\
class Trainer:
    def __init__(self, gen, disc, size=64):
        self.gen, self.disc, self.size = gen.cuda(), disc.cuda(), size
        self.opt_g = torch.optim.Adam(self.gen.parameters())
        self.opt_d = torch.optim.Adam(self.disc.parameters())
    def step_d(self, real, fake):
        self.opt_d.zero_grad()
        loss = bce(self.disc(real), ones) + bce(self.disc(fake), zeros)
        loss.backward(retain_graph=True)
        self.opt_d.step()
    def step_g(self, fake):
        self.opt_g.zero_grad()
        bce(self.disc(fake), ones).backward()
        self.opt_g.step()
    def fit(self):
        for real in batches:
            fake = self.gen(torch.randn(len(real), self.size, device="cuda"))
            self.step_d(real.cuda(), FAKE)
            self.step_g(fake)
"""
GIVEN = """\
G, D = Generator().cuda(), Discriminator().cuda()
opt_g, opt_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
def train_discriminator(optimizer, real, fake):
    optimizer.zero_grad()
    bce(D(real), ones).backward()
    bce(D(fake), zeros).backward()
    optimizer.step()
def train_generator(optimizer, fake):
    optimizer.zero_grad()
    bce(D(fake), ones).backward()
    optimizer.step()
"""
LOOP = """\
for real in batches:
    fake = G(torch.randn(1024, 64, device="cuda"))
    train_discriminator(opt_d, real.cuda(), FAKE)
    fake = G(torch.randn(1024, 64, device="cuda"))
    train_generator(opt_g, fake)
"""
TRAIN = "trainer = Trainer(Generator(), Discriminator())\ntrainer.fit()\n"


@pytest.mark.parametrize("card", ["T4", "90MiB"])
@pytest.mark.parametrize(
    ("earlier", "cell"),
    [(PASSED, TRAIN), ("", PASSED + TRAIN), (GIVEN, LOOP)],
    ids=["earlier", "one-cell", "functions"],
)
def test_the_generators_part_is_named_first(predicted, earlier, cell, card):
    texts = [text.replace("FAKE", "fake") for text in (SETUP, earlier, cell)]
    report = predicted(texts[2], card, texts[:2])
    assert (report.oom is None) == (card == "T4")
    assert report.advice[0].rule == "frozen-layers-record"
    assert "detach()" in report.advice[0].change


@pytest.mark.parametrize(("earlier", "cell"), [(PASSED, TRAIN), (GIVEN, LOOP)])
def test_a_detached_batch_is_no_mistake(predicted, earlier, cell):
    texts = [text.replace("FAKE", "fake.detach()") for text in (SETUP, earlier, cell)]
    report = predicted(texts[2], "T4", texts[:2])
    assert "frozen-layers-record" not in [one.rule for one in report.advice]
