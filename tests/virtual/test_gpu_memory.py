"""Out of memory where it happens in training; running on after something was freed."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from gpumem_magic.virtual.catalog import lookup

pytestmark = pytest.mark.usefixtures("gpu")

MIB = 1 << 20


def fill(leave):
    """Take the whole card but `leave` bytes, by one block."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return torch.empty((free - leave) // (2 * MIB) * 2 * MIB, dtype=torch.uint8, device="cuda")


@pytest.fixture
def training():
    """A model, its optimizer and a batch; every activation takes 8 MiB, every weight 4."""
    net = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda()
    return net, torch.optim.Adam(net.parameters()), torch.randn(2048, 1024).cuda()


def test_in_forward(training):
    net, _, x = training
    hog = fill(30 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 20\.00 MiB"):
        net(x)
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    assert torch.cuda.memory_stats()["num_alloc_retries"] == 1
    del hog
    assert net(x).shape == (2048, 1024)  # the cached block is given back and asked for anew


def test_in_backward(training):
    net, _, x = training
    loss = net(x).square().mean()
    hog = fill(0)
    with pytest.raises(torch.OutOfMemoryError):
        loss.backward()
    del hog, loss
    net.zero_grad()
    net(x).square().mean().backward()
    assert net[0].weight.grad.is_cuda


def test_in_the_optimizers_step(training):
    net, optimizer, x = training
    net(x).square().mean().backward()
    hog = fill(0)
    with pytest.raises(torch.OutOfMemoryError):
        optimizer.step()
    del hog
    optimizer.state.clear()
    optimizer.step()
    assert len(optimizer.state) == 8


def test_cached_blocks_are_given_back_before_it_fails(training):
    # GIVEN a card full of cached blocks, none of them large enough
    keep = [torch.empty(900 * MIB, dtype=torch.uint8, device="cuda") for _ in range(14)]
    reserved = torch.cuda.memory_reserved()
    del keep
    assert torch.cuda.memory_reserved() == reserved
    # WHEN one large block is asked for
    x = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    # THEN there is one retry, and no error
    stats = torch.cuda.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 0)
    assert x.nbytes == 8 << 30


def test_a_loop_that_keeps_everything_ends_as_on_cuda():
    keep = []

    def run():
        while True:
            keep.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))

    with pytest.raises(torch.cuda.OutOfMemoryError) as error:
        run()
    free = lookup("T4").total - lookup("T4").context - (len(keep) << 30)
    text = str(error.value)
    assert isinstance(error.value, RuntimeError)
    assert text.startswith(
        "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of "
        f"{lookup('T4').total / 2**30:.2f} GiB of which {free / 2**20:.2f} MiB is free."
    )
    assert f"Of the allocated memory {len(keep)}.00 GiB is allocated by PyTorch" in text
    assert "expandable_segments:True" in text
    del keep[:2]
    assert torch.empty(2 << 30, dtype=torch.uint8, device="cuda").is_cuda


def test_the_error_holds_no_tensor_alive(training, allocated):
    net, _, _ = training
    before = allocated()

    def forward():
        x = torch.randn(2048, 1024).cuda()
        hog = fill(30 * MIB)
        return net(x), hog

    with pytest.raises(torch.OutOfMemoryError) as error:
        forward()
    error.value.__traceback__ = None
    del error
    gc.collect()
    assert allocated() == before
