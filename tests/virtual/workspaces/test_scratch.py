"""Memory that operators take besides their results: workspaces and buffers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU
from gpumem_magic.virtual.workspaces.scratch import cublas_workspace_size

CUBLAS, CUBLASLT = 8_519_680, 1_048_576
UNIFIED, CACHE = "TORCH_CUBLASLT_UNIFIED_WORKSPACE", "TORCH_CUBLAS_WORKSPACE_CACHE"


@pytest.mark.parametrize(
    ("capability", "config", "size"),
    [
        ((7, 5), "", CUBLAS),
        ((8, 0), "", CUBLAS),
        ((9, 0), "", 33_554_432),
        ((10, 0), "", CUBLAS),
        ((9, 0), ":4096:8", 4096 * 1024 * 8),
        ((7, 5), ":16:8", 16 * 1024 * 8),
        ((7, 5), ":4096:2:16:8", CUBLAS),
        ((7, 5), ":0:0", 0),
    ],
)
def test_sizes_of_cublas_workspaces(capability, config, size):
    assert cublas_workspace_size(capability, config) == size


def test_the_first_product_takes_a_workspace_and_keeps_it(blocks):
    x = torch.ones(64, 64, device="cuda")
    blocks()
    y = x @ x
    assert blocks() == [64 * 64 * 4, CUBLAS]
    y = x @ y
    assert CUBLAS not in blocks()


def test_backward_has_a_handle_of_its_own(blocks):
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    loss = (x @ x).sum()
    blocks()
    loss.backward()
    assert blocks().count(CUBLAS) == 1
    (x @ x).sum().backward()
    assert CUBLAS not in blocks()


def test_each_stream_has_a_handle_of_its_own(blocks):
    x = torch.ones(64, 64, device="cuda")
    x @ x
    blocks()
    with torch.cuda.stream(torch.cuda.Stream()):
        x @ x
    assert blocks().count(CUBLAS) == 1


def test_a_fused_bias_takes_the_lt_librarys_workspace_as_well(gpu, blocks):
    nn.Linear(64, 64).cuda()(torch.ones(2, 64, device="cuda"))
    assert {CUBLAS, CUBLASLT} <= set(blocks())
    assert len(gpu.scratch.held) == 2


@pytest.mark.parametrize(
    ("release", "environment", "product", "fused"),
    [
        ((2, 11), {}, [CUBLAS], [CUBLAS, CUBLASLT]),
        ((2, 11), {UNIFIED: "1"}, [CUBLAS], [CUBLAS]),
        ((2, 13), {}, [CUBLAS], [CUBLAS]),
        ((2, 13), {UNIFIED: "0"}, [CUBLAS], [CUBLASLT]),
        ((2, 13), {UNIFIED: "yes"}, [CUBLAS], [CUBLAS]),
        ((2, 15), {}, [], []),
        ((2, 15), {UNIFIED: "1"}, [], []),
        ((2, 15), {CACHE: "1"}, [CUBLAS], [CUBLAS]),
        ((2, 15), {CACHE: "1", UNIFIED: "0"}, [CUBLAS], [CUBLASLT]),
    ],
)
def test_workspaces_stay_as_in_each_release(monkeypatch, release, environment, product, fused):
    """As the CUDA builds of 2.11.0, 2.13.0 and 2.15.0 do."""
    monkeypatch.setattr("gpumem_magic.virtual.devices.RELEASE", release)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    x = torch.ones(64, 64)
    for multiply, kept in ((torch.mm, product), (nn.functional.linear, fused)):
        with VirtualGPU(lookup("T4")) as gpu:
            on_card, bias = x.cuda(), torch.ones(64).cuda()
            before = torch.cuda.memory_allocated()
            y = multiply(on_card, on_card, *[bias] * (multiply is not torch.mm))
            assert [gpu.allocator.size_of(at) for at in gpu.scratch.held.values()] == kept
            size = sum(kept) or (CUBLAS if multiply is torch.mm else CUBLASLT)
            assert torch.cuda.max_memory_allocated() - before == size + y.nbytes


@pytest.mark.parametrize("capability", [(10, 0), (12, 0)])
def test_workspaces_of_blackwell_are_large_from_2_12_on(monkeypatch, capability):
    monkeypatch.setattr("gpumem_magic.virtual.devices.RELEASE", (2, 12))
    assert cublas_workspace_size(capability) == 33_554_432


def test_workspaces_can_be_given_back(gpu, allocated):
    x = torch.ones(64, 64, device="cuda")
    x @ x
    assert sum(map(gpu.allocator.size_of, gpu.scratch.held.values())) == CUBLAS
    torch._C._cuda_clearCublasWorkspaces()
    assert (gpu.scratch.held, torch.cuda.memory_allocated()) == ({}, 64 * 64 * 4)
    x @ x
    assert torch.cuda.memory_allocated() == 64 * 64 * 4 + CUBLAS


def test_the_environment_sets_both_sizes(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "64")
    with VirtualGPU(lookup("T4")) as gpu:
        nn.Linear(64, 64).cuda()(torch.ones(2, 64, device="cuda"))
        assert sorted(map(gpu.allocator.size_of, gpu.scratch.held.values())) == [
            64 << 10,
            128 << 10,
        ]


def test_the_environment_is_read_when_a_workspace_is_first_taken(monkeypatch):
    """Libraries that are imported by the cell set it."""
    with VirtualGPU(lookup("T4")) as gpu:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        x = torch.ones(64, 64, device="cuda", requires_grad=True)
        y = x @ x
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        y.sum().backward()
        assert [gpu.allocator.size_of(at) for at in gpu.scratch.held.values()] == [32 << 20] * 2


def test_workspaces_are_found_by_the_sizes_that_they_were_taken_with(monkeypatch):
    """A cell that sets the environment finds those that torch has already."""
    taken = cublas_workspace_size((7, 5))
    with VirtualGPU(lookup("T4")) as gpu:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        gpu.scratch.find_workspaces([(taken, 0, 512), (taken, 0, 1024), (64, 0, 2048)])
        assert sorted(gpu.scratch.held.values()) == [512, 1024]
        gpu.scratch.multiply()
        assert gpu.allocator.allocated == 0
        with torch.cuda.stream(torch.cuda.Stream()):
            gpu.scratch.multiply()
        assert gpu.allocator.allocated == taken


@pytest.mark.parametrize(
    ("loss", "buffers", "result"),
    [
        (nn.functional.mse_loss, 1, 4000),  # the first two reduce into a result of full size
        (nn.functional.smooth_l1_loss, 1, 4000),
        (nn.functional.huber_loss, 1, 4),
        (nn.functional.binary_cross_entropy, None, 4000),  # these reduce into one, and copy it
        (nn.functional.soft_margin_loss, None, 4000),
        (nn.functional.binary_cross_entropy_with_logits, 2, 4),
    ],
)
def test_a_loss_writes_one_value_per_element_before_it_is_reduced(blocks, loss, buffers, result):
    x = torch.full((1000,), 0.5, device="cuda")
    blocks()
    value = loss(x, x)
    taken = [-4, 4] if buffers is None else [-4000, 4000] * buffers
    assert sorted(blocks()) == sorted([*taken, result])
    loss(x, x, reduction="none")
    assert 4 not in blocks()
    assert value.dim() == 0


def test_a_workspace_that_does_not_fit_is_out_of_memory(gpu):
    x = torch.ones(64, 64, device="cuda")
    hog = torch.empty(torch.cuda.mem_get_info()[0] // (2 << 20) * (2 << 20), dtype=torch.uint8,
                      device="cuda")  # fmt: skip
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 20\.00 MiB"):
        x @ x
    del hog
    assert (x @ x).sum().item() == 64**3
