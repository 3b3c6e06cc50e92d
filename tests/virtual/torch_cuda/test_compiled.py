"""Code that never meets the device is compiled and exported as ever."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU


@pytest.fixture(scope="module", autouse=True)
def _compiler_is_loaded():
    torch.compile(torch.sin, backend="eager")(torch.ones(1))


@pytest.fixture
def gpu():
    with VirtualGPU(lookup("T4")) as gpu:
        yield gpu


@pytest.fixture
def backend():
    """A backend that counts the graphs that it is given: `calls`."""

    def backend(graph, inputs):
        backend.calls += 1
        return graph.forward

    backend.calls = 0
    yield backend
    torch._dynamo.reset()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.scale


@pytest.mark.usefixtures("gpu")
def test_models_and_functions_of_the_host_are_compiled(backend, torch_modes):
    modes = torch_modes()
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.ReLU())
    x = torch.ones(2, 3)
    compiled = torch.compile(net, backend=backend)
    assert isinstance(compiled, nn.Module)
    assert torch.equal(compiled(x), net(x))
    assert backend.calls == 1

    @torch.compile(backend=backend)
    def double(x):
        """Twice as much."""
        return x * 2 if x.device.type == "cpu" else x

    assert torch.equal(double(x), x * 2)
    assert (backend.calls, double.__doc__) == (2, "Twice as much.")
    own = Scaled()
    own.compile(backend=backend)
    own(x).sum().backward()
    assert backend.calls == 3
    assert torch_modes() == modes


@pytest.mark.usefixtures("gpu")
def test_what_was_compiled_runs_as_written_once_something_is_on_the_device(backend):
    net = torch.compile(nn.Linear(3, 3), backend=backend)
    x = torch.ones(2, 3)
    expected = net(x)
    net.cuda()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        out = net(x.cuda())
    assert out.is_cuda
    assert torch.equal(out.cpu(), expected)
    assert backend.calls == 1
    assert ["eagerly" in str(each.message) for each in told] == [True]


def test_a_model_of_the_host_is_exported(gpu):
    kept = torch.ones(2, device="cuda")
    net, x = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval(), torch.ones(2, 3)
    exported = torch.export.export(net, (x,))
    assert torch.equal(exported.module()(x), net(x))
    # AND torch answers for the card again
    assert kept.is_cuda
    assert torch.zeros(1, device="cuda").is_cuda
    with pytest.raises(NotImplementedError, match=r"torch\.export\.export is not covered"):
        torch.export.export(net.cuda(), (x.cuda(),))
    assert gpu.allocator.allocated > 0


@pytest.mark.usefixtures("gpu")
def test_the_users_own_modes_stay_where_they_are(backend, torch_modes):
    with torch.device("cpu"):
        modes = torch_modes()
        torch.compile(torch.sin, backend=backend)(torch.ones(1))
        assert torch_modes() == modes


@pytest.mark.usefixtures("gpu")
def test_what_asks_the_compiler_itself_finds_torch_as_it_is(backend):
    dynamo, x = torch._dynamo, torch.ones(2)
    assert torch.equal(dynamo.optimize(backend)(lambda x: x.sin() + 1)(x), x.sin() + 1)
    assert backend.calls == 1
    dynamo.reset()
    explained = dynamo.explain(lambda x: x.sin() + x.sum().item())(x)
    assert (explained.graph_count, explained.graph_break_count) == (2, 1)
    graph, _ = dynamo.export(lambda x: x.sin() + 1)(x)
    assert torch.equal(graph(x), x.sin() + 1)


@pytest.mark.usefixtures("gpu")
def test_a_trace_of_the_host_may_choose_by_its_values():
    with pytest.warns(torch.jit.TracerWarning, match="Python boolean"):
        traced = torch.jit.trace(lambda x: x * 2 if x.sum() > 0 else x, torch.ones(2))
    assert traced(torch.ones(2)).tolist() == [2, 2]
