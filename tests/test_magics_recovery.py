"""Memory comes back after out-of-memory errors in training code of any shape, without a restart,
and the same code with a smaller batch then runs."""

from __future__ import annotations

import gc
import weakref

import pytest
from IPython.utils.capture import capture_output

torch = pytest.importorskip("torch")

from gpumem_magic.virtual.workspaces.scratch import (  # noqa: E402 - needs torch
    cublas_workspace_size,
)

CARD = 160 << 20
LARGE, SMALL = 1 << 16, 64

NET = """\
import torch
from torch import nn
def make_net():
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).to("cuda")
def batch_of(n):
    x = torch.ones(n, 256, device="cuda")
    kept.append(weakref.ref(x.untyped_storage()))
    return x
"""
LOOP = """\
def train(batch):
    net = make_net()
    opt = torch.optim.AdamW(net.parameters())
    losses = []
    for step in range(3):
        loss = net(batch_of(batch)).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss)
    return losses
"""
TRAINER = """\
class Trainer:
    def __init__(self, net):
        self.net, self.opt, self.log = net, torch.optim.Adam(net.parameters()), []
    def training_step(self, x):
        return self.net(x).square().mean()
    def fit(self, batches):
        for x in batches:
            self.x = x
            self.loss = self.training_step(x)
            self.loss.backward()
            self.opt.step()
            self.opt.zero_grad()
            self.log.append(self.loss.detach())
"""
MODULE = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = make_net()
        self.seen = []
        self.register_forward_hook(lambda m, i, o: self.seen.append(o))
    def forward(self, x):
        self.last = self.inner(x)
        return self.last * 2
"""
LOADER = """\
from torch.utils.data import DataLoader
data = DataLoader([torch.zeros({batch}, 8)] * 2, batch_size=None)
it = iter(data)
def epoch():
    net = make_net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for rows in it:
        net(batch_of(len(rows))).square().mean().backward()
        opt.step()
epoch()
"""
CHAINED = """\
def robust(batch):
    try:
        return train(batch)
    except torch.OutOfMemoryError as error:
        raise RuntimeError("training failed") from error
"""
GENERATOR = """\
def steps(batch):
    net = make_net()
    while True:
        x = batch_of(batch)
        yield net(net(x).relu()).square().mean()
def run(batch):
    return [float(loss.detach()) for loss, _ in zip(steps(batch), range(2))]
"""
CHECKPOINT = """\
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, g):
        torch.empty(g.numel(), 4, device="cuda")
        return g * 2
def custom(batch):
    net = make_net()
    Scale.apply(net(batch_of(batch))).sum().backward()
"""

# cells before, the cell that fails with a large batch, whether the error leaves the cell
SCENARIOS = {
    "function": ([LOOP], "train({batch})", True),
    "top level": (
        [],
        "net = make_net()\nopt = torch.optim.AdamW(net.parameters())\nfor step in range(3):\n"
        "    x = batch_of({batch})\n    loss = net(x).square().mean()\n    loss.backward()\n"
        "    opt.step()\n    opt.zero_grad()",
        True,
    ),
    "class": ([TRAINER], "Trainer(make_net()).fit(map(batch_of, [{batch}] * 3))", True),
    "named trainer": (
        [TRAINER],
        "trainer = Trainer(make_net())\ntrainer.fit(map(batch_of, [{batch}] * 3))",
        True,
    ),
    "module that keeps": ([MODULE], "Net().to('cuda')(batch_of({batch})).sum().backward()", True),
    "caught and printed": (
        [LOOP],
        "try:\n    train({batch})\nexcept RuntimeError as error:\n    print(error)",
        False,
    ),
    "caught and shown": (
        [LOOP, "import traceback"],
        "try:\n    train({batch})\nexcept Exception:\n    traceback.print_exc()",
        False,
    ),
    "raised anew": ([LOOP, CHAINED], "robust({batch})", True),
    "loader": ([], LOADER, True),
    "generator": ([GENERATOR], "run({batch})", True),
    "backward of a custom function": ([CHECKPOINT], "custom({batch})", True),
    "lambda in a thread pool": (
        [LOOP, "from concurrent.futures import ThreadPoolExecutor"],
        "with ThreadPoolExecutor(1) as pool:\n    pool.submit(train, {batch}).result()",
        True,
    ),
    "measured": ([LOOP], "%%gpumem -q\ntrain({batch})", True),
}
TESTED = [("function", 1), ("top level", 1), *((case, 2) for case in SCENARIOS)]  # fails so often


class Session:
    """Cells of a notebook whose device has no more than `CARD` for PyTorch."""

    def __init__(self, shell):
        self.shell = shell
        shell.user_ns.update(kept=[], weakref=weakref)

    def run(self, cell):
        with capture_output() as shown:
            result = self.shell.run_cell(cell, store_history=True)
        self.text = shown.stdout + shown.stderr
        return result.error_in_exec

    def asked(self, line):
        assert self.run(f"%gpucheck {line} -o answer") is None, self.text
        return self.shell.user_ns.pop("answer")

    @property
    def batches(self):
        """How many batches are alive."""
        return sum(batch() is not None for batch in self.shell.user_ns["kept"])


def libraries():
    """Bytes, at most: workspaces that cuBLAS keeps, one for each thread."""
    return 3 * cublas_workspace_size(torch.cuda.get_device_capability())


def check_recovery(session, case, times):
    """The whole story; times: how often the cell fails first."""
    before, cell, leaves = SCENARIOS[case]
    for one in (NET, *before):
        assert session.run(one) is None, session.text
    found = session.asked("")
    held_before = found.level.allocated
    kinds_before = {holding.kind.value for holding in found.holdings}  # other tests leave some
    for _ in range(times):
        error = session.run(cell.format(batch=LARGE))
        assert (error is not None) == leaves
        assert "out of memory" in f"{error}{error and error.__cause__}{session.text}"
    del error
    # WHEN the one command is given
    recovery = session.asked("--free")
    # THEN only names hold what is left, and nothing of the failed cell where it left no names
    held = session.asked("").holdings
    kinds = {holding.kind.value for holding in held}
    allowed = {"variable", "optimizer", "library", "autograd graph"} | kinds_before
    assert kinds <= allowed, [holding for holding in held if holding.kind.value not in allowed]
    if not {"x", "trainer"} & session.shell.user_ns.keys():
        assert session.batches == 0
        assert recovery.after.allocated <= held_before + libraries()
        assert recovery.after.reserved <= held_before + 2 * libraries()
    # AND the cell with a smaller batch runs
    error = session.run(cell.format(batch=SMALL))
    assert error is None, (error, session.text)
    assert "out of memory" not in session.text


@pytest.mark.parametrize(("case", "times"), TESTED)
def test_memory_comes_back_and_a_smaller_batch_runs(shell, case, times):
    session = Session(shell)
    session.run("%load_ext gpumem_magic\n%gpumem --device 160MiB")
    gc.collect()
    gc.freeze()  # what other tests left is not looked through
    try:
        check_recovery(session, case, times)
    finally:
        session.asked("--free --all")
        shell.user_ns.clear()
