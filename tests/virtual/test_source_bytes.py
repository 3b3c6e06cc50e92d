"""Exact bytes, worked out by hand: parameters, gradients, optimizer states, saved activations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpumem_magic.measure import finish
from gpumem_magic.values.recording import Category, Cell
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.source import VirtualSource

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
CUBLAS, CUBLASLT = 8_519_680, 1_048_576  # one workspace per handle on a T4; Lt for fused biases


def blocks(*numels, itemsize):
    """Bytes of small tensors on the card: each is rounded up to 512."""
    return sum(-(-numel * itemsize // 512) * 512 for numel in numels)


@pytest.fixture
def measured():
    """A function that runs code as one cell on a T4 and returns its report."""
    source = VirtualSource(lookup("T4"))
    source.enter()

    def run(code, names):
        source.start(lambda: names)
        exec(compile(code, "<cell>", "exec"), names)
        (found,) = finish(source, Cell(code, "<cell>", 1), {}, None, "cell")
        return found.report

    yield run
    source.leave()
    source.close()


MLP = (100 * 200, 200, 200 * 10, 10)  # weight, bias, weight, bias
OPTIMIZERS = {
    "torch.optim.SGD(net.parameters(), lr=0.1)": 0,
    "torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)": 1,
    "torch.optim.Adam(net.parameters())": 2,
    "torch.optim.AdamW(net.parameters(), amsgrad=True)": 3,
}


def mlp(dtype):
    net = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10)).to(dtype)
    return {"torch": torch, "net": net, "dtype": dtype}


@pytest.mark.parametrize("dtype", FLOATS)
def test_activations_of_an_mlp(measured, dtype):
    # WHEN the forward pass has run, and nothing of it was used yet
    report = measured(
        "net.to('cuda')\nx = torch.ones(32, 100, device='cuda', dtype=dtype)\nout = net(x)\n",
        mlp(dtype),
    )
    size = dtype.itemsize
    # THEN the ReLU has saved its output, which is the second layer's input; the first layer's
    # own output is gone. `out` is a tensor with a graph.
    assert report.at_end == {
        Category.PARAMETER: blocks(*MLP, itemsize=size),
        Category.ACTIVATION: blocks(32 * 200, 32 * 10, itemsize=size),
        Category.INPUT: blocks(32 * 100, itemsize=size),
        Category.WORKSPACE: CUBLAS + CUBLASLT,
    }
    # AND while the ReLU ran its input was there as well
    assert report.peak.allocated == report.after.allocated - blocks(32 * 10, itemsize=size) + (
        blocks(32 * 200, itemsize=size)
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("optimizer", "states"), OPTIMIZERS.items(), ids=lambda x: str(x)[12:22])
def test_gradients_and_states_of_optimizers(measured, dtype, optimizer, states):
    names = mlp(dtype)
    report = measured(
        f"net.to('cuda')\noptimizer = {optimizer}\n"
        "x = torch.ones(32, 100, device='cuda', dtype=dtype)\n"
        "net(x).sum().backward()\noptimizer.step()\n",
        names,
    )
    parameters = blocks(*MLP, itemsize=dtype.itemsize)
    expected = {
        Category.PARAMETER: parameters,
        Category.GRADIENT: parameters,
        Category.OPTIMIZER_STATE: states * parameters,  # the step counts are on the host
        Category.INPUT: blocks(32 * 100, itemsize=dtype.itemsize),
        Category.WORKSPACE: 2 * CUBLAS + CUBLASLT,  # backward has a handle of its own
    }
    assert report.at_end == {kind: size for kind, size in expected.items() if size}
    assert report.after.allocated == sum(expected.values())


def test_a_second_step_keeps_nothing_more(measured):
    names = mlp(torch.float32)
    names["optimizer"] = torch.optim.Adam(names["net"].parameters())
    names["x"] = torch.ones(32, 100)
    step = "net(x.to('cuda')).sum().backward()\noptimizer.step()\noptimizer.zero_grad()\n"
    first = measured("net.to('cuda')\n" + step, names)
    second = measured(step, names)
    assert second.after.allocated == second.before.allocated == first.after.allocated
    assert Category.GRADIENT not in second.at_end


CNN = (8 * 3 * 9, 8, 8, 8, 512 * 10, 10)  # convolution, its bias; norm; linear, its bias


@pytest.mark.parametrize("dtype", FLOATS)
def test_activations_of_a_cnn(measured, dtype):
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(8 * 8 * 8, 10)),
    ).to(dtype)
    report = measured(
        "net.to('cuda')\nx = torch.ones(4, 3, 16, 16, device='cuda', dtype=dtype)\nout = net(x)\n",
        {"torch": torch, "net": net, "dtype": dtype},
    )
    size, image = dtype.itemsize, 4 * 8 * 16 * 16
    convolved, rectified, pooled = image, image, image // 4
    assert report.at_end == {
        Category.PARAMETER: blocks(*CNN, itemsize=size),
        # running mean and variance; the count of batches is an int64
        Category.BUFFER: blocks(8, 8, itemsize=size) + blocks(1, itemsize=8),
        Category.ACTIVATION: (
            blocks(convolved, rectified, pooled, 4 * 10, itemsize=size)
            + blocks(pooled, itemsize=8)  # where the maxima were, as int64
            + blocks(8, 8, itemsize=4)  # the batch's mean and deviation, in float32 always
        ),
        Category.INPUT: blocks(4 * 3 * 16 * 16, itemsize=size),
        Category.WORKSPACE: CUBLAS + CUBLASLT,
    }


def test_a_block_that_is_not_split_counts_with_its_slack(measured):
    """Both tensors share a segment of 20 MiB. What the second would leave over, 0.75 MiB, is too
    little to be split off in the pool of large blocks, so all of it counts as allocated."""
    kib = 1 << 10
    report = measured(
        "a = torch.empty(9728 << 10, dtype=torch.uint8, device='cuda')\n"
        "b = torch.empty(9984 << 10, dtype=torch.uint8, device='cuda')\n",
        {"torch": torch},
    )
    assert report.after.reserved == 20480 * kib
    assert [block.size for block in report.blocks] == [10752 * kib, 9728 * kib]
    assert report.after.allocated == 20480 * kib
