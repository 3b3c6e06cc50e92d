"""Cells that are written in odd ways: each change that is written out runs, and leaves the rest of
the text as it is."""

from __future__ import annotations

import io
import tokenize

import pytest

torch = pytest.importorskip("torch")

SETUP = """\
import asyncio
import contextlib
import functools
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6)]).cuda()
opt = torch.optim.Adam(model.parameters())
data = torch.randn(5, 2048, 256)
"""

CELLS = {
    "class in cell": '''\
class Net(nn.Module):
    """A net.

    # not a comment
    """
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(256, 512); self.b = nn.Linear(512, 256)
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(8))
    def forward(self, x):
        x = self.b(F.relu(self.a(x)))
        for layer in self.layers:
            x = layer(x)
        return x
net = Net().cuda()
o = torch.optim.AdamW(net.parameters())
for x in data:
    x = x.cuda()
    loss = F.mse_loss(net(x), x)
    o.zero_grad(); loss.backward(); o.step()
''',
    "decorators": """\
def timed(f):
    @functools.wraps(f)
    def inner(*a, **k):
        return f(*a, **k)
    return inner

@timed
def evaluate(net, xs):
    outs = []
    for x in xs:
        outs.append(net(x.cuda()))
    return torch.cat(outs).mean().item()

score = evaluate(model, data)
""",
    "context": """\
@contextlib.contextmanager
def section(name):
    yield name

with section("a") as a, section("b") as b:
    total = 0
    for x in data:
        with section("inner"):
            x = x.cuda()
            total += F.mse_loss(model(x), x)
print(float(total))
""",
    "generator": """\
def batches():
    for x in data:
        yield x.cuda()

def losses(net):
    for x in batches():
        yield F.mse_loss(net(x), x)

kept = [loss for loss in losses(model)]
mean = sum(float(k) for k in kept) / len(kept)
""",
    "nested": """\
def outer():
    def inner(x):
        def most(y):
            return model(y)
        return most(x)
    found = []
    for x in data:
        found.append(inner(x.cuda()))
    return [f.sum().item() for f in found]

r = outer()
""",
    "comprehension": """\
outs = [model(x.cuda()) for x in data]
means = {i: o.mean().item() for i, o in enumerate(outs)}
""",
    "main": """\
def main():
    history = []
    for x in data:
        x = x.cuda()
        opt.zero_grad()
        loss = F.mse_loss(model(x), x)
        loss.backward()
        opt.step()
        history.append(loss)
    return [float(h) for h in history]

if __name__ == "__main__":
    main()
""",
    "semicolons": """\
total = 0; n = 0
for x in data: x = x.cuda(); total += F.mse_loss(model(x), x); n += 1
print(float(total) / n); del x
""",
    "comments": """\
# a training loop
total = 0  # the sum
for x in data:  # batches
    # move
    x = x.cuda()  # to the device
    total += F.mse_loss(model(x), x)  # adds up
# end
print(total)  # shown
""",
    "tabs": """\
outs = []
def run():
	for x in data:
		x = x.cuda()
		if x.ndim == 2:
			outs.append(model(x))
	return [o.mean().item() for o in outs]
run()
""",
    "f-strings": """\
total = 0
for i, x in enumerate(data):
    x = x.cuda()
    total += F.mse_loss(model(x), x)
    print(f"step {i}: {total:.3f} {model(x).mean().item()!r} {'{'}")
""",
    "continuations": """\
outs = []
for x in \\
        data:
    y = model(
        x.cuda(),
    )
    total = \\
        y.mean()
    outs \\
        .append(y)
s = [o.sum().item()
     for o in outs]
""",
    "multi-line string": '''\
note = """
for x in data:
    total += model(x)
"""
outs = []
for x in data:
    outs.append(model(x.cuda())); text = """a
  b"""
last = [float(o.mean()) for o in outs]
''',
    "try": """\
class Stop(Exception): pass
outs = []
try:
    for x in data:
        try:
            outs.append(model(x.cuda()))
        finally:
            pass
    raise Stop
except Stop as e:
    print("stopped")
else:
    print("no")
finally:
    result = [o.mean().item() for o in outs]
""",
    "walrus lambda": """\
f = lambda x: model(x.cuda())
outs = []
i = 0
while (i := i + 1) < 5:
    outs.append(f(data[i]))
m = max(o.mean().item() for o in outs)
""",
    "dataclass": """\
from dataclasses import dataclass, field
@dataclass
class Trainer:
    net: nn.Module
    seen: list = field(default_factory=list)
    def step(self, x: torch.Tensor) -> float:
        loss = F.mse_loss(self.net(x), x); self.seen.append(loss)
        opt.zero_grad(); loss.backward(); opt.step()
        return loss.item()
t = Trainer(model)
vals = [t.step(x.cuda()) for x in data]
""",
    "non-ascii crlf": """\
größe = 0
for x in data:
    x = x.cuda()
    größe += F.mse_loss(model(x), x)   # π ≈ 3.14, "é"
print("größe", float(größe))
""",
    "one line loop": """\
outs = []
for x in data: outs.append(model(x.cuda()))
if True: vals = [o.mean().item() for o in outs]
""",
    "comments and no indent at the end": """\
def run(  # a function
    xs,  # its data
):  # begins
    # first
    total = 0  # zero
    for x in xs:
# at the margin
        x = x.cuda()  # moved

        # added up
        total = total + F.mse_loss(model(x), x)  # with its graph
        # last
    return float(total)  # a number


run(data)  # called
# the end""",
    "a decorator that opens no_grad for one of two": '''\
@torch.no_grad()
def evaluate(x):
    return model(x).mean()

def measure(x, *, name="a"):
    """Measure."""
    y = model(x)
    return y.mean()

found = []
for x in data:
    found.append((evaluate(x.cuda()), measure(x.cuda())))
numbers = [float(b) for _, b in found]
''',
    "a loop with else and continue": """\
total, n = 0, 0
for i, x in enumerate(data):
    if i == 1:
        continue
    x = x.cuda()
    out = model(x); loss = F.mse_loss(out, x)
    total += loss
    n += len(x)
else:
    done = True
print(float(total) / n, done)
""",
    "a method chain over lines": """\
total = 0
for x in data:
    x = x.cuda()
    total += (
        model(x)
        .sub(x)  # the difference
        .square()
        .mean()
    )
mean = float(total)
""",
    "training in one line each": """\
history = []
for x in data:
    x = x.cuda(); opt.zero_grad(set_to_none=True)
    loss = F.mse_loss(model(x), x); loss.backward(); opt.step(); history.append(loss)
best = min(float(h) for h in history)
""",
    "a lambda and a default": """\
def train(net, *, loss_of=lambda a, b: ((a - b) ** 2).mean(), log=[]):
    for x in data:
        x = x.cuda()
        loss = loss_of(net(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss)
    return [value.item() for value in log]

train(model)
""",
    "a cell magic": """\
%%time
total = 0
for x in data:
    x = x.cuda()
    total += F.mse_loss(model(x), x)
print(float(total))
""",
    "line magics": """\
%config InlineBackend.close_figures = True
total = 0
for x in data:
    x = x.cuda()
    total += F.mse_loss(model(x), x)
%time mean = float(total) / len(data)
""",
    "double precision": """\
import numpy as np
weights = torch.from_numpy(np.random.rand(256, 256)).cuda()
means = torch.as_tensor(np.zeros((2048, 256)))  # of all
x = data[0].cuda().double() - means.cuda()
for _ in range(3): x = torch.tanh(x @ weights)
print(x.mean().item())
""",
    "async": """\
async def predict(x):
    return model(x.cuda())

async def main():
    total = 0
    async with contextlib.AsyncExitStack():
        for x in data:
            total += (await predict(x)).mean()
    return float(total)

await main()
""",
}


def comments(source):
    """All comments of a cell, in order."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_what_is_written_out_runs_and_leaves_the_rest(cell, notebook):
    with notebook("T4") as one:
        one.run(SETUP)
        found = one.assess(cell)
        plain = not cell.startswith("%")
        for change in filter(None, (*found.advice, *found.useless, found.together)):
            if change.source and plain:
                assert comments(change.source) == comments(cell)
        written = [change for change in found.advice if change.source]
        for change in written[:1]:
            result, said = one.run(change.source)
            assert result.success, said
    assert (found.report.error, found.failed) == (None, ())
