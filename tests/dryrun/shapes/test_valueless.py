"""Memory that costs nothing, and the marks on what lies in it."""

from __future__ import annotations

import gc
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from gpumem_magic import predict
from gpumem_magic.dryrun.shapes.valueless import Valueless, tensor_over, untouched


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 5_000_000])
def test_it_reads_as_zeros_and_is_as_large_as_asked(size):
    storage = untouched(size)
    assert storage.nbytes() == size
    assert not torch.empty(0, dtype=torch.uint8).set_(storage).any()


def test_a_terabyte_costs_nothing():
    before = resident()
    kept = [untouched(2**36) for _ in range(16)]
    assert sum(storage.nbytes() for storage in kept) == 2**40
    assert resident() - before < 10**7


@pytest.mark.parametrize("size", [65_536, 5_000_000, 2**28])
def test_valueless_storages_lie_apart_read_as_zeros_and_cost_nothing(size):
    valueless, before = Valueless(), resident()
    kept = [valueless.blank(size) for _ in range(2**31 // size)]
    starts = sorted(storage.data_ptr() for storage in kept)
    assert all(b - a >= size for a, b in pairwise(starts))
    assert resident() - before < 3 * 10**7  # what tells of 32,768 storages
    torch.empty(0, dtype=torch.uint8).set_(kept[0]).fill_(1)
    kept[0] = valueless.blank(size)
    assert not torch.empty(0, dtype=torch.uint8).set_(kept[0]).any()


def test_tensors_share_the_storage_they_are_made_over():
    storage = untouched(4096)
    first = tensor_over(storage, torch.float32, (4, 8), (8, 1))
    second = tensor_over(storage, torch.int64, (3,), (2,), offset=1)
    first.fill_(1)
    assert second.storage_offset() == 1
    assert second[0] == 0x3F8000003F800000


def test_a_mark_is_on_the_storage_and_ends_with_it():
    valueless = Valueless()
    tensor = valueless.make(torch.float16, torch.Size((3, 5)), (1, 7))
    assert tensor in valueless
    assert tensor[1:, ::2].view(torch.int16) in valueless
    assert tensor.stride() == (1, 7)
    assert tensor.untyped_storage().nbytes() == 2 * (1 + 2 * 1 + 4 * 7)
    assert torch.ones(3) not in valueless
    del tensor
    gc.collect()
    assert all(torch.ones(9) not in valueless for _ in range(1000))


def test_empty_tensors_are_empty():
    valueless = Valueless()
    assert valueless.make(torch.float32, torch.Size((0, 5)), (5, 1)).untyped_storage().nbytes() == 0


def test_tensors_without_memory_stay_so():
    code = """
import torch

x = torch.nn.Parameter(torch.randn(512, 512)).to("meta")
y = torch.empty(512, 512, device="meta") + 1
assert (x.is_meta, y.is_meta, (x @ y).is_meta) == (True, True, True)
with torch.device("meta"):
    model = torch.nn.Linear(2048, 2048)
assert model.weight.is_meta
model.to_empty(device="cuda")
"""
    report = predict(code, {}, gpu="T4")
    assert report.error is None
    assert report.after.allocated == 4 * 2048 * 2048 + 4 * 2048
