"""Cells of many kinds, live and in a dry run: event for event the same."""

from __future__ import annotations

import ast
import gc
import io
from contextlib import redirect_stdout

import pytest

from gpumem_magic.dryrun import Scenario
from gpumem_magic.dryrun.inside import execute
from gpumem_magic.values.recording import Cell
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.source import VirtualSource
from tests.dry_runs import dry_run

FILE = "<cell>"
IMPORTS = "import copy, io\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
LAZY = """
net = nn.Sequential(nn.Conv1d(4, 32, 5), nn.BatchNorm1d(32), nn.Flatten(), nn.LazyLinear(10)).cuda()
net(torch.randn(2, 4, 100, device="cuda"))
average = copy.deepcopy(net).eval().requires_grad_(False)
opt = torch.optim.NAdam(net.parameters())
for step in range(3):
    net(torch.randn(16, 4, 100, device="cuda")).logsumexp(1).mean().backward()
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        for mine, other in zip(average.parameters(), net.parameters()):
            mine.lerp_(other, 0.01)
"""
ORTHOGONAL = """
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
layer = orthogonal(nn.Linear(64, 64)).cuda()
layer(torch.randn(5, 64, device="cuda")).sum().backward()
net = nn.Sequential(weight_norm(nn.Linear(100, 200)), spectral_norm(nn.Linear(200, 50))).cuda()
net(torch.randn(32, 100, device="cuda")).square().mean().backward()
"""
PACKED = """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
lengths = torch.tensor([90, 7, 50, 2])
x = pad_sequence([torch.randn(n, 200) for n in lengths], batch_first=True).cuda()
rnn = nn.LSTM(200, 40, 2, batch_first=True, bidirectional=True).cuda()
packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
out, lengths = pad_packed_sequence(rnn(packed)[0], batch_first=True)
out.sum().backward()
"""
STATE = """
net = nn.Sequential(nn.Linear(500, 500), nn.BatchNorm1d(500)).cuda()
opt = torch.optim.Adam(net.parameters(), amsgrad=True)
net(torch.randn(10, 500, device="cuda")).sum().backward()
opt.step()
best, other = copy.deepcopy(net.state_dict()), copy.deepcopy(net)
torch.optim.Adam(other.parameters()).load_state_dict(opt.state_dict())
buffer = io.BytesIO()
torch.save(net.state_dict(), buffer)
buffer.seek(0)
other.load_state_dict(torch.load(buffer))
"""
GAN = """
G = nn.Sequential(nn.ConvTranspose2d(64, 32, 4), nn.BatchNorm2d(32), nn.ReLU(True)).cuda()
D = nn.Sequential(nn.Conv2d(32, 8, 4), nn.LeakyReLU(0.2), nn.Flatten()).cuda()
og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
loss = nn.BCEWithLogitsLoss()
for step in range(3):
    fake = G(torch.randn(16, 64, 1, 1, device="cuda"))
    od.zero_grad()
    found = D(fake.detach())
    loss(found, torch.zeros_like(found)).backward()
    od.step()
    og.zero_grad()
    loss(D(fake), torch.ones_like(found)).backward()
    og.step()
"""
FUNCTIONAL = """
from torch.func import functional_call, grad, vmap
net = nn.Sequential(nn.Linear(10, 300), nn.Tanh(), nn.Linear(300, 2)).cuda()
weights = {name: p.detach() for name, p in net.named_parameters()}
def loss(weights, x):
    return functional_call(net, weights, (x.unsqueeze(0),)).square().sum()
vmap(grad(loss), in_dims=(None, 0))(weights, torch.randn(20, 10, device="cuda"))
"""
LEAK = """
net = nn.Linear(100, 100).cuda()
opt, kept = torch.optim.SGD(net.parameters(), 0.1), []
for step in range(50):
    out = net(torch.randn(40, 100, device="cuda")).sum()
    out.backward()
    opt.step()
    opt.zero_grad()
    kept.append(out.detach())
"""
CHECKS = """
net = nn.Linear(300, 400).cuda()
out = net(torch.randn(200, 300, device="cuda"))
assert torch.isfinite(out).all() and bool((out == out).all(-1).all().item())
dist = torch.distributions.Categorical(logits=out)
loss = -dist.log_prob(dist.sample()).mean()
loss.backward()
"""
MASKS = """
net = nn.Linear(300, 40).cuda()
mask = torch.arange(2000, device="cuda") < 270
answers = torch.randint(40, (2000,), device="cuda")
out = net(torch.randn(2000, 300, device="cuda"))
nn.functional.cross_entropy(out[mask], answers[mask]).backward()
"""
SPARSE = """
places = torch.stack([torch.arange(9999), torch.arange(9999).roll(1)])
graph = torch.sparse_coo_tensor(places, torch.ones(9999), (10000, 10000)).coalesce().cuda()
net, table = nn.Linear(40, 30).cuda(), nn.Embedding(70000, 40, sparse=True).cuda()
adam = torch.optim.Adam(net.parameters())
sparse_adam = torch.optim.SparseAdam(table.parameters())
ids = torch.arange(20000, 30000, device="cuda")
for step in range(3):
    out = torch.sparse.mm(graph, net(table(ids)))
    (graph.t() @ out).square().mean().backward()
    adam.step()
    sparse_adam.step()
    adam.zero_grad()
    sparse_adam.zero_grad()
"""
BAGS = """
table = nn.EmbeddingBag(70000, 40, mode="sum", sparse=True).cuda()
dense = nn.EmbeddingBag(7000, 40).cuda()
adam = torch.optim.SparseAdam(table.parameters())
ids, starts = torch.arange(20000, 24000, device="cuda"), torch.arange(0, 4000, 8, device="cuda")
weights = torch.ones(4000, device="cuda")
for step in range(2):
    table(ids, starts, weights).square().mean().backward()
    dense(ids // 4, starts).mean().backward()
    assert table.weight.grad.is_sparse and not dense.weight.grad.is_sparse
    adam.step()
    adam.zero_grad()
"""
ROWS = """
places = torch.stack([torch.arange(9999), torch.arange(9999).roll(1)])
graph = torch.sparse_coo_tensor(places, torch.rand(9999), (10000, 10000)).cuda().coalesce()
likely = torch.sparse.softmax(graph, dim=1)
degrees = torch.sparse.sum(graph.cpu(), 1).to_dense()
features = torch.sparse_coo_tensor(places, torch.rand(9999, 3), (10000, 10000, 3))
assert torch.sparse.sum(features, (0, 1)).shape == (3,) and degrees.shape == (10000,)
rows = likely.to_sparse_csr()
assert rows.layout is torch.sparse_csr
out = rows @ torch.randn(10000, 30, device="cuda")
"""
WAVES = """
x = torch.randn(8, 48000, device="cuda", requires_grad=True)
window = torch.hann_window(1024, device="cuda")
spectrum = torch.stft(x, 1024, window=window, return_complex=True)
torch.istft(spectrum, 1024, window=window, length=48000).square().mean().backward()
"""
JAGGED = """
rows = [torch.randn(n, 300) for n in (500, 900, 100)]
nested = torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda")
net = nn.Sequential(nn.Linear(300, 400), nn.LayerNorm(400), nn.ReLU(), nn.Linear(400, 20)).cuda()
out = net(nested)
assert out.is_cuda
out.values().square().mean().backward()
"""
FLEX = """
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
def causal(batch, head, query, key):
    return query >= key
mask = create_block_mask(causal, None, None, 256, 256, device="cuda")
q, k, v = (torch.randn(2, 4, 256, 32, device="cuda", requires_grad=True) for _ in range(3))
def nearer(score, batch, head, query, key):
    return score + (query - key)
out = flex_attention(q, k, v, score_mod=nearer, block_mask=mask)
out.square().mean().backward()
assert q.grad.shape == q.shape and v.grad.is_cuda
"""
DENSE = """
dense = torch.randn(300, 200, device="cuda")
matrix, rows = dense.to_sparse(), dense.to_sparse_csr()
out = matrix @ torch.randn(200, 10, device="cuda")
"""
CELLS = {
    "made sparse": DENSE,
    "sparse": SPARSE,
    "flex attention": FLEX,
    "bags": BAGS,
    "rows of a sparse matrix": ROWS,
    "waves": WAVES,
    "nested tensors": JAGGED,
    "known masks": MASKS,
    "checks of values": CHECKS,
    "lazy": LAZY,
    "orthogonal": ORTHOGONAL,
    "packed sequences": PACKED,
    "state": STATE,
    "gan": GAN,
    "functional": FUNCTIONAL,
    "a loop that keeps a little": LEAK,
}


def live(code):
    namespace = {}
    source = VirtualSource(lookup("T4"))
    source.enter()
    try:
        source.start(lambda: namespace)
        with redirect_stdout(io.StringIO()):
            execute(ast.parse(code, FILE), FILE, namespace, shows_last=True)
        return source.stop(Cell(code, FILE), {}, None)[0]
    finally:
        source.leave()
        source.close()


def dry(code):
    return dry_run(Scenario(Cell(code, FILE), {}), lookup("T4"))


def rows(recording):
    events = recording.events
    columns = (events.action, events.address, events.size, events.requested)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("code", CELLS.values(), ids=CELLS)
def test_a_dry_run_does_to_the_memory_what_the_cell_does(code):
    expected = live(IMPORTS + code)
    gc.collect()
    found = dry(IMPORTS + code)
    assert found.error is None
    assert rows(found) == rows(expected)


def test_lengths_that_nobody_knows_are_the_longest():
    code = (
        "x = torch.randn(4, 50, 400, device='cuda')\n"
        "lengths = (torch.rand(4, 99999, device='cuda') > 0).sum(1).clamp(1, 50).cpu()\n"
        "packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)\n"
        "rows = packed.data.shape[0]\n"
        "marker = torch.empty(rows * 512, dtype=torch.uint8, device='cuda')\n"
    )
    found = dry(IMPORTS + code)
    assert found.error is None
    assert found.events.size[-1] == 4 * 50 * 512
    assert any("the lengths of sequences" in note for note in found.notes)


def test_what_is_selected_from_known_values_is_computed():
    """GIVEN an operator whose meta kernel refuses to tell a size WHEN its operands have values."""
    code = """
library = torch.library.Library("torchvision", "FRAGMENT")
library.define("nms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
library.impl("nms", lambda boxes, scores, threshold: scores.argsort()[:2], "CPU")
@torch.library.register_fake("torchvision::nms")
def nms(boxes, scores, threshold):
    raise RuntimeError("data-dependent")
scores = torch.tensor([1.0, 3.0, 2.0], device="cuda")
kept = torch.ops.torchvision.nms(torch.ones(3, 4, device="cuda"), scores, 0.5)
assert kept.tolist() == [0, 2]
"""
    assert dry(IMPORTS + code).error is None


def test_tensors_of_other_shapes_are_not_equal():
    code = "x = torch.rand(2, 999999, device='cuda')\nassert not torch.equal(x, x[0])\n"
    assert dry(IMPORTS + code).error is None


@pytest.mark.parametrize("question", ["torch.equal(x, y)", "torch.allclose(x, y)"])
def test_whether_tensors_are_equal_decides(question):
    code = f"x, y = torch.rand(2, 999999, device='cuda')\nif {question}:\n    pass\n"
    found = dry(IMPORTS + code)
    assert (found.error, found.flow_guessed) == (None, True)


def test_saving_from_the_device_takes_no_memory_on_it():
    """GIVEN a storage copied to the host THEN the host's copy has no block (as on a GPU)."""
    code = (
        "x = torch.randn(1000, device='cuda')\nfor i in range(5):\n    x.untyped_storage().cpu()\n"
    )
    assert rows(live(IMPORTS + code))[2:] == []
