"""Sparse tensors on the virtual GPU: as those of the host, in blocks of the card's memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytestmark = [
    pytest.mark.usefixtures("gpu"),
    pytest.mark.filterwarnings("ignore:Sparse (CSR|invariant)"),
]

PLACES = [[0, 700, 700], [5, 6, 6]]
MADE = {
    "from lists": lambda: torch.sparse_coo_tensor(PLACES, [1.0, 2.0, 3.0], device="cuda"),
    "from host tensors": lambda: torch.sparse_coo_tensor(
        torch.tensor(PLACES), torch.ones(3), (701, 7), device="cuda"
    ),
    "from the card's": lambda: torch.sparse_coo_tensor(
        torch.tensor(PLACES).cuda(), torch.ones(3, device="cuda"), (701, 7)
    ),
    "moved": lambda: torch.eye(701).to_sparse().cuda(),
    "made there": lambda: torch.eye(701, device="cuda").to_sparse(),
    "rows": lambda: torch.eye(701).to_sparse_csr().to("cuda"),
    "columns": lambda: torch.eye(701).to_sparse_csc().cuda(),
}


def sizes(tensor):
    """Of the blocks that its indices and values take."""
    if tensor.layout is torch.sparse_coo:
        parts = tensor._indices(), tensor._values()
    elif tensor.layout is torch.sparse_csr:
        parts = tensor.crow_indices(), tensor.col_indices(), tensor.values()
    else:
        parts = tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return sum(-(-part.nbytes // 512) * 512 for part in parts)


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_it_lives_on_the_card_as_long_as_it_is_held(make):
    before = torch.cuda.memory_allocated()
    made = make()
    assert made.is_cuda
    assert made.device == torch.device("cuda", 0)
    assert torch.cuda.memory_allocated() - before == sizes(made)
    there = made.cpu()
    assert not there.is_cuda
    del made
    assert torch.cuda.memory_allocated() == before
    assert there.to_dense().shape[0] == 701


OPERATORS = {
    "product": lambda a, x: a @ x,
    "sparse.mm": torch.sparse.mm,
    "transposed": lambda a, x: (a.t() @ x).relu(),
    "coalesced": lambda a, x: a.coalesce().values(),
    "sum": lambda a, x: (a + a * 2).to_dense(),
    "masked": lambda a, x: x.sparse_mask(a.coalesce()).to_dense(),
    "added": lambda a, x: x + a,
    "softmax": lambda a, x: torch.sparse.softmax(a, 1).to_dense(),
    "rows": lambda a, x: a.coalesce().to_sparse_csr() @ x,
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_operators_compute_what_they_do_on_the_host(operator):
    matrix = torch.sparse_coo_tensor(torch.randint(0, 50, (2, 300)), torch.randn(300), (50, 50))
    dense = torch.randn(50, 50)
    found = operator(matrix.cuda(), dense.cuda())
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), operator(matrix, dense))


CONVERSIONS = {
    "places": lambda dense: dense.to_sparse(),
    "some dimensions": lambda dense: dense.to_sparse(1),
    "rows": lambda dense: dense.to_sparse_csr(),
    "columns": lambda dense: dense.to_sparse_csc(),
    "blocks": lambda dense: dense.to_sparse_bsr((2, 2)),
    "a number": lambda dense: dense.sum().to_sparse(),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_dense_tensor_becomes_what_it_does_on_the_host(convert):
    dense = torch.randn(60, 40).relu()
    there, here = convert(dense.cuda()), convert(dense)
    assert there.is_cuda
    assert there.layout is here.layout
    torch.testing.assert_close(there.cpu(), here)


def test_finding_the_elements_takes_their_places_twice():
    """What `nonzero` found and its copy, the values and a copy, apart from how they are counted."""
    dense = torch.ones(1000, 50, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    dense.to_sparse()
    taken = torch.cuda.max_memory_allocated() - before
    assert 0 <= taken - 50_000 * (2 * 16 + 2 * 4) < 5000


def test_what_is_on_different_devices_does_not_mix():
    with pytest.raises(RuntimeError, match="same device"):
        torch.eye(3).to_sparse().cuda() @ torch.ones(3, 3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.eye(3).to_sparse() @ torch.ones(3, 3, device="cuda")


def trained(device):
    torch.manual_seed(0)
    table = nn.Embedding(1000, 8, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(table.parameters(), 0.1)
    for _ in range(3):
        for ids in ([5, 5, 6], [7, 5, 9]):  # two gradients become one
            table(torch.tensor(ids, device=device)).square().sum().backward()
        assert table.weight.grad.is_sparse
        optimizer.step()
        optimizer.zero_grad()
    return table.weight.detach().cpu()


def test_an_embedding_with_sparse_gradients_is_trained():
    torch.testing.assert_close(trained("cuda"), trained("cpu"))


def test_merging_needs_room_to_sort():
    """Three lists of places and twice as much to sort them: what the CUDA build of torch 2.11
    asked its allocator for."""
    many = torch.sparse_coo_tensor(torch.zeros(2, 5000, dtype=int), torch.ones(5000), (9, 9)).cuda()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    one = many.coalesce()
    assert one._nnz() == 1
    rounded = 40448  # 40,000 bytes
    assert torch.cuda.max_memory_allocated() - before == 3 * rounded + 80896 + 2 * 512


def test_the_gradient_of_one_lookup_is_taken_over_not_copied():
    table = nn.Embedding(1000, 256, sparse=True).cuda()
    scaled = table(torch.arange(500).cuda()) * 2  # 512,000 bytes, as its gradient
    loss = scaled.sum()
    given = table.weight.register_hook(lambda gradient: torch.cuda.reset_peak_memory_stats())
    level = torch.cuda.memory_allocated()
    loss.backward()
    given.remove()
    # the values that the backward pass made; measured on CUDA: no more than 512 bytes besides
    assert torch.cuda.max_memory_allocated() <= level + 512_000 + 4096


def test_gradients_of_two_lookups_are_added():
    def gradient(device):
        torch.manual_seed(0)
        table = nn.Embedding(100, 8, sparse=True).to(device)
        first, second = torch.arange(5).to(device), torch.tensor([[1, 2], [7, 1]]).to(device)
        (table(first).sum() + table(second).sin().sum()).backward()
        assert table.weight.grad.is_sparse
        return table.weight.grad.to_dense().cpu()

    assert torch.equal(gradient("cuda"), gradient("cpu"))
