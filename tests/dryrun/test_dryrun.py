"""The same cells live and in a dry run: event for event the same, and nothing of the user's
changed."""

from __future__ import annotations

import ast
import gc
import io
from contextlib import redirect_stdout

import pytest
import torch

from gpumem_magic.dryrun import Scenario
from gpumem_magic.dryrun.inside import execute
from gpumem_magic.values.recording import Cell
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.source import VirtualSource
from tests.dry_runs import dry_run

FILE = "<cell>"
IMPORTS = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
STEPS = """
opt = OPTIMIZER
for step in range(3):
    x, y = batch()
    loss = LOSS
    loss.backward()
    opt.step()
    opt.zero_grad()
loss
"""
MLP = """
net = nn.Sequential(nn.Linear(300, 600), nn.ReLU(), nn.Dropout(0.2), nn.Linear(600, 10)).cuda()
def batch():
    return torch.randn(64, 300, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
"""
CNN = """
net = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, stride=2), nn.GroupNorm(8, 64), nn.GELU(), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(64, 10),
).cuda()
def batch():
    return torch.randn(4, 3, 64, 64, device="cuda"), torch.randint(0, 10, (4,), device="cuda")
"""
ENCODER = """
layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
net = nn.TransformerEncoder(layer, 2).cuda()
def batch():
    return torch.randn(8, 64, 128, device="cuda"), None
"""
RECURRENT = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(500, 64)
        self.layers = nn.KIND(64, 96, 2, batch_first=True, dropout=0.1, bidirectional=True)
        self.head = nn.Linear(192, 4)
    def forward(self, ids):
        return self.head(self.layers(self.token(ids))[0].mean(1))
net = Net().cuda()
def batch():
    return torch.randint(0, 500, (8, 30), device="cuda"), torch.randint(0, 4, (8,), device="cuda")
"""
SCALED = """
scaler, opt = torch.amp.GradScaler(), torch.optim.AdamW(net.parameters())
for step in range(3):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = net(batch()[0]).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
"""
LOADER = """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(1000, 20), torch.randint(0, 3, (1000,)))
net = nn.Linear(20, 3).cuda()
opt = torch.optim.SGD(net.parameters(), 0.1)
losses = []
for x, y in DataLoader(data, 300, shuffle=True):
    x, y = x.cuda(), y.cuda()
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
print(sum(losses) / len(losses), (net(x).argmax(1) == y).float().mean().item())
"""
VALUES = """
x = torch.randn(500, 500, device="cuda")
chosen, places = x[x > 0], torch.nonzero(x < 9)
numbers = torch.arange(50, device="cuda")
few = numbers[numbers > 10]
best, order, sums = torch.topk(x, 5), torch.sort(x), torch.cumsum(x, 0)
print(x, few.max().item())
"""
FAILS = "kept = []\nfor i in range(100):\n    kept.append(torch.empty(2**28, device='cuda'))\n"
FAILS_IN_STEP = """
net = nn.Linear(20000, 45000, device="cuda", bias=False)
opt = torch.optim.Adam(net.parameters())
net(torch.randn(8, 20000, device="cuda")).sum().backward()
opt.step()
"""
CROSS_ENTROPY = "F.cross_entropy(net(x), y)"


def training(model, loss=CROSS_ENTROPY, optimizer="torch.optim.Adam(net.parameters())"):
    return IMPORTS + model + STEPS.replace("OPTIMIZER", optimizer).replace("LOSS", loss)


CELLS = {
    "mlp": training(MLP),
    "sgd": training(MLP, optimizer="torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)"),
    "adamw one by one": training(
        MLP, optimizer="torch.optim.AdamW(net.parameters(), foreach=False)"
    ),
    "fused adam": training(MLP, optimizer="torch.optim.Adam(net.parameters(), fused=True)"),
    "adafactor": training(MLP, optimizer="torch.optim.Adafactor(net.parameters())"),
    "built on the device": training(
        MLP.replace(".cuda()", "").replace("net =", "with torch.device('cuda'):\n    net =")
    ),
    "cnn": training(CNN),
    "channels last": training(
        CNN + "net.to(memory_format=torch.channels_last)\n",
        "F.cross_entropy(net(x.to(memory_format=torch.channels_last)), y)",
    ),
    "encoder": training(ENCODER, "net(x).square().mean()"),
    "checkpoint": training(
        "from torch.utils.checkpoint import checkpoint\n" + ENCODER,
        "checkpoint(net, x, use_reentrant=False).square().mean()",
    ),
    "float16": IMPORTS + ENCODER + SCALED,
    "inference": IMPORTS
    + ENCODER
    + "net.eval()\nwith torch.inference_mode():\n    out = net(batch()[0])\nout\n",
    "half": IMPORTS
    + CNN
    + "net.half().eval()\nwith torch.no_grad():\n    net(batch()[0].half())\n",
    "lstm": training(RECURRENT.replace("KIND", "LSTM")),
    "gru": training(RECURRENT.replace("KIND", "GRU")),
    "loader": IMPORTS + LOADER,
    "out of memory": IMPORTS + FAILS,
}


def live(code):
    """The recording of the cell, run for real on a virtual T4."""
    namespace = {}
    source = VirtualSource(lookup("T4"))
    source.enter()
    try:
        source.start(lambda: namespace)
        error = None
        try:
            with redirect_stdout(io.StringIO()):
                execute(ast.parse(code, FILE), FILE, namespace, shows_last=True)
        except torch.OutOfMemoryError as raised:
            error = raised
        return source.stop(Cell(code, FILE), {}, error)[0]
    finally:
        source.leave()
        source.close()


def dry(code, namespace=None, card="T4", origin=None, **options):
    namespace = {} if namespace is None else namespace
    return dry_run(Scenario(Cell(code, FILE), namespace, **options), lookup(card), origin)


def rows(recording):
    events = recording.events
    columns = (events.action, events.address, events.size, events.requested)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("code", CELLS.values(), ids=CELLS)
def test_a_dry_run_does_to_the_memory_what_the_cell_does(code):
    """GIVEN a cell whose flow no value decides THEN every event is the same, addresses included."""
    expected = live(code)
    gc.collect()
    found = dry(code)
    assert (found.error, found.predicted) == (expected.error, True)
    assert rows(found) == rows(expected)


def test_unknown_sizes_are_the_largest_possible_and_named():
    found = dry(IMPORTS + VALUES)
    assert found.error is None
    notes = " ".join(found.notes)
    assert "Line 6" in notes
    assert "how many elements" in notes
    # what is made of `numbers` is small, and so known
    assert "few.max" not in notes


def test_control_flow_by_a_value_is_marked_and_goes_one_way():
    code = IMPORTS + (
        "x = torch.randn(1000, 1000, device='cuda')\n"
        "if x.mean() > 3:\n    big = torch.empty(2**20, device='cuda')\n"
        "best = 9.0\n"
        "if x.std().item() < best:\n    best = 1\n"
    )
    found = dry(code)
    assert found.flow_guessed
    assert [note[:7] for note in found.notes] == ["Line 5 ", "Line 8 ", "Line 8 "]
    assert "Line 5 goes by values that a dry run does not know" in found.notes[0]


@pytest.mark.parametrize("number", ["", ".item()"])
@pytest.mark.parametrize("better", ["hits.double() / 9 > best", "x.mean() > best"])
def test_the_best_of_unknown_numbers_is_kept_once(better, number):
    one, other = better.split(" > ")
    code = IMPORTS + (
        "x, best, kept = torch.randn(2**16, device='cuda'), 0.0, []\n"
        "hits = (x > 1).sum()\n"
        "for _ in range(3):\n"
        f"    now = ({one}){number}\n"
        f"    if now > {other}:\n        best = now; kept.append(x.clone())\n"
    )
    assert [row[3] for row in rows(dry(code))].count(2**18) == 2  # x, and one clone


def test_a_loop_that_waits_for_a_value_ends():
    code = (
        IMPORTS + "x = torch.ones(99999, device='cuda')\nwhile not (x > 1).all():\n    x.add_(1)\n"
    )
    found = dry(code)
    assert (found.error, found.flow_guessed) == (None, True)


def test_known_small_values_decide_as_they_do_live():
    code = IMPORTS + (
        "n = torch.arange(10, device='cuda').sum().item()\n"
        "x = torch.empty(n * 512, dtype=torch.uint8, device='cuda')\n"
    )
    found = dry(code)
    assert found.events.size[-1] == 45 * 512
    assert not found.flow_guessed
    assert found.notes == ()


def test_out_of_memory_has_torchs_text_and_strikes_in_the_step():
    found = dry(IMPORTS + FAILS_IN_STEP)
    assert found.error == live_text(found)
    assert "Tried to allocate 3.35 GiB. GPU 0 has a total capacity of 14.74 GiB" in found.error
    assert found.error_line == 8


def live_text(found):
    return f"OutOfMemoryError: {found.failure.message}"


def test_what_other_errors_say_is_told_with_their_line():
    found = dry(IMPORTS + "net = nn.Linear(3, 4).cuda()\nnet(torch.ones(2, 5, device='cuda'))\n")
    assert found.error.startswith("RuntimeError")
    assert found.error_line == 5


def test_mixed_devices_are_refused_as_on_a_gpu():
    found = dry(IMPORTS + "torch.ones(3, device='cuda') + torch.ones(3)\n")
    assert "Expected all tensors to be on the same device" in found.error


HIGHEST = "import resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"


def test_large_host_tensors_cost_nothing():
    """GIVEN a model of 40 GB built on the host and moved THEN the process does not grow."""
    code = IMPORTS + "net = nn.Linear(10**5, 10**5)\nnet = net.to('cuda')\n" + HIGHEST
    found = dry(code, card="H100")
    assert found.error is None
    assert found.after.allocated >= 4 * 10**10
    assert int(found.output.split()[-1]) < 8e6  # KiB


def test_top_level_await_takes_no_time_and_ends_where_nothing_can_come():
    code = "import asyncio\nawait asyncio.sleep(3600)\ndone = 1\n"
    assert dry(code).error is None
    found = dry("import asyncio\nawait asyncio.get_running_loop().create_future()\n")
    assert "NotImplementedError" in found.error
    assert "await" in found.error


def test_values_are_set_in_the_cell_or_in_the_namespace():
    namespace = {"n": 100, "m": 1}
    code = IMPORTS + "m = 2\nx = torch.empty(n * m * 512, dtype=torch.uint8, device='cuda')\n"
    found = dry(code, namespace, values={"n": 3, "m": 5})
    assert found.events.size[-1] == 15 * 512
    assert namespace == {"n": 100, "m": 1}


@pytest.fixture
def source():
    """A virtual T4 on which a model was trained, and the namespace with it."""
    opened = VirtualSource(lookup("T4"))
    opened.enter()
    namespace = {}
    exec(compile(training(MLP), FILE, "exec"), namespace)
    opened.leave()
    yield opened, namespace
    opened.close()


NEXT = "x, y = batch()\nloss = F.cross_entropy(net(x), y)\nloss.backward()\nopt.step()\n"


def test_a_dry_run_begins_where_the_card_in_use_is(source):
    opened, namespace = source
    found = dry(NEXT, namespace, origin=opened)
    opened.enter()
    opened.start(lambda: namespace)
    exec(compile(NEXT, FILE, "exec"), namespace)
    expected = opened.stop(Cell(NEXT, FILE), {}, None)[0]
    opened.leave()
    assert rows(found) == rows(expected)
    assert (found.before, found.after) == (expected.before, expected.after)


def test_what_cudnn_keeps_is_there_already():
    opened = VirtualSource(lookup("T4"))
    opened.enter()
    namespace = {}
    exec(compile(training(RECURRENT.replace("KIND", "GRU")), FILE, "exec"), namespace)
    opened.leave()
    gc.collect()
    try:
        found = dry(NEXT, namespace, origin=opened)
        states = [at for key, at in opened.gpu.scratch.held.items() if "dropout" in key[0]]
        assert [opened.gpu.allocator.size_of(at) for at in states] == [1_966_080]
        assert found.error is None
        assert 1_966_080 not in found.events.requested
        names = {label.address: label.name for label in found.labels}
        assert names[states[0]] == "cuDNN dropout states"
    finally:
        opened.close()


def test_the_card_in_use_and_its_tensors_stay_as_they_are(source):
    opened, namespace = source
    allocator, net = opened.gpu.allocator, namespace["net"]

    def state():
        weights = [(p.data_ptr(), p._version, p.detach().clone()) for p in net.parameters()]
        return allocator.stats(), allocator.snapshot(), weights, torch.get_rng_state()

    before, random = state(), opened.gpu.random.generator.get_state()
    dry(NEXT, namespace, origin=opened)
    after = state()
    assert after[:2] == before[:2]
    assert torch.equal(after[3], before[3])
    assert torch.equal(opened.gpu.random.generator.get_state(), random)
    for (place, version, values), (other, count, same) in zip(before[2], after[2], strict=True):
        assert (place, version) == (other, count)
        assert torch.equal(values, same)
    opened.enter()
    assert net[0].weight.is_cuda
    opened.leave()


def test_another_card_holds_what_is_alive_packed_anew(source):
    opened, namespace = source
    found = dry(NEXT, namespace, card="A100-80GB", origin=opened)
    assert found.device.total == lookup("A100-80GB").total
    assert found.before.allocated == pytest.approx(opened.gpu.allocator.allocated, rel=0.05)
    assert found.error is None


def test_what_is_alive_may_not_fit_another_card():
    opened = VirtualSource(lookup("A100-80GB"))
    opened.enter()
    kept = torch.empty(1, device="cuda").expand(2)
    address = opened.gpu.storages.malloc(30 * 2**30)
    try:
        opened.leave()
        found = dry("x = 1\n", {"kept": kept}, origin=opened)
        assert found.failure is not None
        assert found.error_line is None
        assert "does not fit on a Tesla T4" in found.notes[0]
    finally:
        opened.gpu.storages.release(address)
        opened.close()


def test_threads_of_the_cell_compute_nothing_either():
    code = IMPORTS + (
        "import threading\nfound = []\n"
        "def work():\n    found.append(torch.empty(2**30, device='cuda').mul(2))\n"
        "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\n"
    )
    found = dry(code + HIGHEST, card="H100")
    assert found.after.allocated == 4 * 2**30
    assert int(found.output.split()[-1]) < 8e6  # KiB
