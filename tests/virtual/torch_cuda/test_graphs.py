"""CUDA graphs in predictions, in the bytes that PyTorch's own allocator (torch 2.11) counted on a
device without kernels."""

from __future__ import annotations

import pytest

from gpumem_magic import predict

_HEAD = """import torch
from torch import nn
def say():
    cuda = torch.cuda
    print(cuda.memory_allocated(), cuda.max_memory_allocated(), cuda.memory_reserved())
"""

_TRAINING = """
m = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
o = torch.optim.Adam(m.parameters(), capturable=True)
x = torch.randn(512, 1024, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        o.zero_grad(set_to_none=True)
        l = m(x).square().mean()
        l.backward()
        o.step()
say()
graph = torch.cuda.CUDAGraph()
o.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    l = m(x).square().mean()
    l.backward()
    o.step()
    assert torch.cuda.is_current_stream_capturing()
say()
for _ in range(5):
    graph.replay()
say()
"""

_GRAPHED = """
m = nn.Sequential(nn.Linear(1024, 4096), nn.Dropout(0.1), nn.Linear(4096, 1024)).cuda()
x = torch.randn(512, 1024, device="cuda")
graphed = torch.cuda.make_graphed_callables(m, (x,))
say()
o = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
for _ in range(3):
    o.zero_grad()
    graphed(x).sum().backward()
    o.step()
say()
"""

_SHARED = """
m = nn.Linear(4096, 4096).cuda().eval()
graphs, pool = [], None
with torch.no_grad():
    for b in (1024, 512, 128):
        x = torch.randn(b, 4096, device="cuda")
        m(x)
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, pool=pool):
            y = m(x).relu()
        pool = pool or g.pool()
        graphs.append((g, x, y))
say()
del graphs[0]
torch.cuda.empty_cache()
say()
del graphs, g, x, y
torch.cuda.empty_cache()
say()
"""


@pytest.mark.parametrize(
    ("code", "levels"),
    [
        (
            _TRAINING,
            "154487296 188066304 239075328\n"
            "172576256 206155264 285212672\n"
            "172576256 206155264 285212672\n",
        ),
        (_GRAPHED, "109618176 133492736 201326592\n143193088 143194624 218103808\n"),
        (
            _SHARED,
            "140788736 144983040 165675008\n"
            "107234304 144983040 148897792\n"
            "86261760 144983040 113246208\n",
        ),
    ],
)
def test_what_is_captured_stays_in_a_pool_of_its_own(code, levels):
    report = predict(_HEAD + code, {"__name__": "__main__"}, "A100-40GB")
    assert (report.error, report.output) == (None, levels)


def test_a_graph_captures_once():
    code = "g = torch.cuda.CUDAGraph()\nfor _ in range(2):\n    with torch.cuda.graph(g): pass\n"
    report = predict(_HEAD + code, {}, "T4")
    assert report.error_line == _HEAD.count("\n") + 3
    code = code.replace("with", "g.reset()\n    with")
    assert predict(_HEAD + code, {}, "T4").error is None
