"""Dry runs on a machine with a CUDA device: from its memory, without touching it."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from gpumem_magic import measure, predict
from gpumem_magic.sources.cuda.memory import cuda_settings

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


GRAPH = "loss.backward()\noptimizer.step()\nhidden = None\nloss = None\n"


def with_graph():
    namespace = trained()
    net = namespace["net"]
    x = torch.randn(64, 784, device="cuda")
    namespace["hidden"] = net[1](net[0](x)).t()  # a view, in the middle of the graph
    namespace["loss"] = net[2](namespace["hidden"].t()).square().mean()
    return namespace


def test_graphs_of_earlier_cells_go_backward_in_the_child_and_stay_here():
    namespace = with_graph()
    net, names = namespace["net"], {name: id(value) for name, value in namespace.items()}
    predicted = predict(GRAPH, namespace)
    assert predicted.error is None
    assert [p.grad for p in net.parameters()] == [None] * 4
    assert {name: id(value) for name, value in namespace.items()} == names
    with measure() as measured:
        exec(GRAPH, namespace)
    assert predicted.peak.allocated == measured.report.peak.allocated
    # approximated: another order leaves another block of the cache in use, with up to 1 MiB unsplit
    assert abs(predicted.after.allocated - measured.report.after.allocated) < 1 << 20


def test_every_way_to_hold_a_tensor_has_a_stand_in():
    namespace = trained()
    whole = torch.zeros(1 << 20, device="cuda")
    with torch.inference_mode():
        frozen = torch.ones(1 << 18, device="cuda")
    namespace |= {
        "parts": [whole[: 1 << 18], {"rest": whole[1 << 18 :]}],
        "frozen": frozen,
        "held": lambda: whole,
    }
    code = (
        "assert parts[0].device.type == 'cuda' and held().is_cuda and frozen.is_cuda\n"
        "assert parts[0].untyped_storage()._cdata == parts[1]['rest'].untyped_storage()._cdata\n"
        "parts[0].add_(1)\nfrozen2 = frozen * 2\nnet.half()\nnet.cpu()\n"
    )
    predicted = predict(code, namespace)
    assert predicted.error is None
    assert {p.dtype for p in namespace["net"].parameters()} == {torch.float32}
    assert {p.device.type for p in namespace["net"].parameters()} == {"cuda"}
    assert whole.data_ptr() == namespace["parts"][0].data_ptr()


def test_predictions_beside_busy_threads_after_backward():
    namespace = trained()
    ended, counted = threading.Event(), [0]

    def work():
        while not ended.is_set():
            counted[0] += 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        reports = [predict(CELL, namespace) for _ in range(5)]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert [report.error for report in reports] == [None] * 5
    assert len({report.peak.allocated for report in reports}) == 1


def test_generators_of_the_card_draw_in_the_child_and_stay_as_they_are():
    made = torch.Generator("cuda").manual_seed(3)
    held = torch.Generator("cuda")
    source = """
a = torch.rand(1 << 18, device="cuda", generator=made)
made.manual_seed(5)
b = a.normal_(generator=made).bernoulli(0.5, generator=held[0])
c = torch.randperm(1000, device="cuda", generator=made)
made.set_state(made.get_state())
device = str(made.device)
"""
    namespace = {"torch": torch, "made": made, "held": [held]}
    before = made.get_state(), held.get_state()
    predicted = predict(source, namespace)
    assert predicted.error is None
    assert torch.equal(made.get_state(), before[0])
    assert torch.equal(held.get_state(), before[1])
    with measure() as measured:
        exec(source, namespace)
    assert levels(predicted) == levels(measured.report)


def test_sparse_gradients_of_earlier_cells_are_there_in_the_child():
    table = nn.Embedding(1000, 64, sparse=True).cuda()
    namespace = {"torch": torch, "table": table, "index": torch.arange(100).cuda()}
    source = "table(index).mul(2).sum().backward()"
    exec(source, namespace)
    predicted = predict(source, namespace)
    assert predicted.error is None
    with measure() as measured:
        exec(source, namespace)
    assert levels(predicted) == levels(measured.report)


def test_libraries_with_threads_of_their_own_compute_in_it():
    """GIVEN a product that the notebook has computed in threads, which a forked process lacks."""
    namespace = {**trained(), "numpy": pytest.importorskip("numpy")}
    exec("a = numpy.ones((600, 600)); b = a @ a", namespace)
    code = "total = torch.from_numpy(a @ a).cuda(); print(int((a @ a)[0, 0]))"
    report = predict(code, namespace, timeout=20)
    assert report.error is None
    assert report.output == "600\n"


def test_a_limit_that_an_earlier_cell_set_holds():
    namespace = {"torch": torch}
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((63 << 20) / total)
    try:
        predicted = predict("kept = torch.ones(16 << 20, device='cuda')", namespace)
        other = predict("kept = torch.ones(2 << 30, device='cuda')", namespace, gpu="A100-80GB")
        asked = predict("torch.cuda.get_per_process_memory_fraction()", namespace)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert predicted.oom is not None
    assert other.oom is not None
    assert asked.error is None


def test_settings_that_an_earlier_cell_changed_hold():
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:1")
    try:
        settings = cuda_settings(0)
        torch.cuda.memory._set_allocator_settings("garbage_collection_threshold:0.5")
        later = cuda_settings(0)
    finally:
        torch.cuda.memory._set_allocator_settings("")
    assert set(settings.roundup_power2_divisions) == {1}
    assert later.garbage_collection_threshold == 0.5


def test_a_stream_that_an_earlier_cell_left_on_goes_on():
    stream = torch.cuda.Stream()
    namespace = {"torch": torch, "nn": nn}
    code = (
        "again = torch.ones(5 << 20, device='cuda')\n"
        "product = torch.ones(64, 64, device='cuda') @ torch.ones(64, 64, device='cuda')"
    )
    with torch.cuda.stream(stream):
        exec(code, namespace)
        del namespace["again"]
        predicted = predict(code, namespace)
        with measure() as measured:
            exec(code, namespace)
    assert levels(predicted) == levels(measured.report)


@pytest.mark.parametrize(
    "left_on",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autograd.graph.saved_tensors_hooks(torch.Tensor.half, torch.Tensor.float),
        lambda: torch.autocast("cuda", torch.float16, cache_enabled=False),
    ],
)
def test_modes_that_an_earlier_cell_left_on_stay_on(left_on):
    namespace = trained()
    exec("waiting = net(torch.ones(64, 784, device='cuda')).sum()", namespace)
    code = "y = net(torch.ones(64, 784, device='cuda'))"
    with left_on():
        assert predict("waiting.backward()", namespace).error is None
        predicted = predict(code, namespace)
        with measure() as measured:
            exec(code, namespace)
    assert predicted.error is None
    assert levels(predicted) == levels(measured.report)


def test_workspaces_of_earlier_cells_are_found_whatever_the_environment_says_now(monkeypatch):
    namespace = trained()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    predicted = predict(CELL, namespace)
    with measure() as measured:
        exec(CELL, namespace)
    assert levels(predicted) == levels(measured.report)


_CAPTURE = "with torch.cuda.graph(torch.cuda.CUDAGraph()):\n    y = net(x)\ndel y\n"


def test_a_capture_goes_on_with_the_stream_of_the_last_one():
    namespace = trained() | {"x": torch.ones(64, 784, device="cuda")}
    exec(_CAPTURE, namespace)
    predicted = predict(_CAPTURE, namespace)
    with measure() as measured:
        exec(_CAPTURE, namespace)
    torch._C._cuda_clearCublasWorkspaces()  # those of the capture's stream
    assert predicted.peak.allocated == measured.report.peak.allocated


def test_a_proxy_of_what_is_no_more_does_not_end_the_prediction():
    namespace = trained()
    proxy = weakref.proxy(nn.Linear(1, 1))
    assert predict(CELL, namespace).error is None
    with pytest.raises(ReferenceError):
        bool(proxy.weight)


def test_lazy_modules_of_earlier_cells_get_their_sizes():
    namespace = trained() | {"lazy": nn.LazyLinear(32).cuda()}
    code = "lazy(torch.ones(8, 64, device='cuda')).sum().backward()"
    predicted = predict(code, namespace)
    with measure() as measured:
        exec(code, namespace)
    assert predicted.error is None
    assert levels(predicted) == levels(measured.report)


def test_fake_tensors_of_the_device_do_not_end_the_prediction():
    namespace = trained()
    with FakeTensorMode():
        fake = torch.ones(4, device="cuda")
    assert predict(CELL, namespace).error is None
    assert fake.is_cuda


_WITH_A_FUNCTION = """
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint
class Double(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2
loss = Double.apply(net(torch.ones(64, 784, device="cuda"))).sum()
other = checkpoint(net, torch.ones(64, 784, device="cuda"), use_reentrant=True).sum()
(loss + other).backward()
"""


def test_a_result_of_functions_whose_graph_was_freed_is_followed():
    namespace = trained()
    exec(_WITH_A_FUNCTION, namespace)
    predicted = predict(CELL, namespace)
    with measure() as measured:
        exec(CELL, namespace)
    assert predicted.error is None
    assert levels(predicted) == levels(measured.report)
    again = predict("loss.backward()", namespace)
    assert again.error is not None
    assert "second time" in str(again.error)
