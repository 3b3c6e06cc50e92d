"""Operators that are others on CUDA, whoever calls them; those of the host stay what they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


def test_dropout_keeps_a_mask_of_one_byte_an_element(blocks):
    x = torch.ones(1000, device="cuda", requires_grad=True)
    blocks()
    y = functional.dropout(x, 0.25)
    assert blocks() == [1000, 4000]  # CUDA asks for the mask first
    assert set(y.tolist()) == {0.0, torch.tensor(4 / 3).item()}
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize(
    "options", [{"p": 0.0}, {"training": False}, {"p": 1.0}], ids=["p=0", "eval", "p=1"]
)
def test_dropout_that_needs_no_mask(blocks, options):
    x = torch.ones(1000, device="cuda")
    blocks()
    y = functional.dropout(x, **options)
    everything = options.get("p") == 1.0
    assert blocks() == ([4, 4000, -4] if everything else [])
    assert y.sum().item() == (0 if everything else 1000)


def test_a_grid_is_a_matrix_product(blocks):
    """GIVEN theta of 8 images WHEN a grid is made THEN cuBLAS takes its workspace for it."""
    theta = torch.eye(2, 3, device="cuda").repeat(8, 1, 1)
    blocks()
    grid = functional.affine_grid(theta, (8, 1, 4, 5), align_corners=False)
    taken = blocks()
    assert 8_519_680 in taken
    assert sum(taken) == 8_519_680 + grid.nbytes
    assert torch.allclose(grid[0, 0, :, 0], torch.tensor([-0.8, -0.4, 0, 0.4, 0.8]).cuda())


def test_every_caller_of_dropout_is_seen(blocks):
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True).cuda()
    x = torch.ones(4, 5, 16, device="cuda")
    blocks()
    layer(x)
    masks = [size for size in blocks() if size in (4 * 5 * 16, 4 * 5 * 32)]
    assert sorted(masks) == [320, 320, 640]


def tensors(*shape, dtype=torch.float32):
    return [torch.randn(*shape).to("cuda", dtype).requires_grad_() for _ in range(3)]


def plain(q, k, v, mask=None, scale=None):
    """Attention by its formula, in float64 on the host."""
    q, k, v = (t.detach().cpu().double() for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if mask is not None:
        mask = mask.detach().cpu()
        is_bool = mask.dtype is torch.bool
        scores = scores.masked_fill(~mask, -torch.inf) if is_bool else scores + mask
    return scores.softmax(-1).nan_to_num() @ v


MASKS = {
    "none": None,
    "boolean": torch.ones(6, 6, dtype=torch.bool).tril(),
    "boolean, 4 dimensions": torch.arange(6) < torch.tensor([4, 6]).view(2, 1, 1, 1),
    "rows without any": torch.tensor([True, True, False, True, True, True])[:, None].expand(6, 6),
    "float": torch.linspace(-1, 1, 36).reshape(6, 6),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("backend", [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
def test_values_of_attention_are_those_of_the_formula(gpu, mask, backend):
    q, k, v = tensors(2, 4, 6, 8)
    with sdpa_kernel(backend):
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=None if mask is None else mask.cuda()
        )
    assert torch.allclose(out.cpu().double(), plain(q, k, v, mask), atol=1e-5)


def test_gradients_of_attention_are_those_of_the_host(gpu):
    mask = torch.randn(2, 1, 6, 6)
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        inputs = [torch.randn(2, 4, 6, 8).to(device).requires_grad_() for _ in range(3)]
        inputs.append(mask.clone().to(device).requires_grad_())
        out = functional.scaled_dot_product_attention(*inputs)
        out.square().sum().backward()
        results.append([out, *(tensor.grad for tensor in inputs)])
    for host, device in zip(*results, strict=True):
        assert torch.allclose(host, device.cpu(), atol=1e-5)


def test_fused_attention_saves_no_scores(allocated):
    q, k, v = tensors(2, 4, 256, 32)
    before = allocated()
    out = functional.scaled_dot_product_attention(q, k, v)
    # the output, and one float32 per row for backward, rows in multiples of 32
    assert allocated() - before == out.numel() * 4 + 2 * 4 * 256 * 4
    out.sum().backward()
    del out
    assert allocated() == 2 * before


def test_without_gradients_the_rows_sums_are_not_kept(allocated):
    q, k, v = tensors(2, 4, 256, 32)
    before = allocated()
    with torch.no_grad():
        out = functional.scaled_dot_product_attention(q, k, v)
    assert allocated() - before == out.numel() * 4


def test_dropout_in_attention_is_the_same_in_backward(gpu):
    q, k, v = tensors(1, 1, 64, 16)
    torch.manual_seed(3)
    functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5).sum().backward()
    torch.manual_seed(3)
    with sdpa_kernel(SDPBackend.MATH):
        (expected,) = torch.autograd.grad(
            functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5).sum(), v
        )
    assert torch.allclose(v.grad, expected, atol=1e-5)


def test_host_tensors_have_the_hosts_kernels(gpu, blocks):
    q = torch.randn(1, 1, 4, 8)
    torch.manual_seed(1)
    inside = functional.dropout(q), functional.scaled_dot_product_attention(q, q, q)
    assert blocks() == []
    gpu.__exit__()
    torch.manual_seed(1)
    outside = functional.dropout(q), functional.scaled_dot_product_attention(q, q, q)
    gpu.__enter__()
    assert all(map(torch.equal, inside, outside))


@pytest.mark.parametrize(("p", "train"), [(0.5, False), (0.0, True)])
def test_dropout_that_drops_nothing_takes_nothing(gpu, p, train):
    x = torch.ones(1000, device="cuda", requires_grad=True)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    y = torch.nn.functional.dropout(x, p, training=train)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert y.is_cuda
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), torch.ones(1000))


def test_operators_with_a_kernel_are_not_taken_apart(blocks):
    """silu_backward could be made of others, but neither CPU nor CUDA does so."""
    x = torch.randn(1000, device="cuda", requires_grad=True)
    out = functional.silu(x)
    gradient = torch.ones_like(out)
    blocks()
    out.backward(gradient)
    assert blocks() == [4000]


def test_a_bilinear_layer_goes_through_its_outputs_one_by_one(blocks):
    # GIVEN a layer of three outputs of 16 x 8 inputs
    layer = torch.nn.Bilinear(16, 8, 3, bias=False).cuda()
    first, second = torch.ones(64, 16, device="cuda"), torch.ones(64, 8, device="cuda")
    expected = torch.nn.functional.bilinear(first.cpu(), second.cpu(), layer.weight.cpu())
    blocks()
    with torch.no_grad():
        out = layer(first, second)
    # THEN the results are made once, and each output takes products of its own, given back
    taken = blocks()
    assert taken.count(64 * 3 * 4) == 1
    assert sum(taken) - 8_519_680 == 64 * 3 * 4
    assert taken.count(64 * 8 * 4) == 3
    torch.testing.assert_close(out.cpu(), expected)


def test_the_gradient_of_a_running_product_is_one_of_sums(gpu, blocks):
    x = torch.rand(8, 64, device="cuda", requires_grad=True)
    y, size = x.cumprod(1), 8 * 64 * 4
    gradient = torch.ones_like(y)
    blocks()
    y.backward(gradient)
    assert [b for b in blocks() if b > 4] == [
        *(size, size // 4),  # the product of both, which factors are zero
        *(size, size, size),  # turned around, summed up, turned back
        size,
    ]


@pytest.mark.parametrize("zeros", [(), ((1, 2),), ((1, 2), (2, 1), (2, 4))])
def test_the_gradient_of_a_running_product_is_the_hosts(gpu, zeros):
    numbers, weights = torch.rand(5, 7, dtype=torch.float64), torch.arange(7.0)
    for place in zeros:
        numbers[place] = 0
    here, there = numbers.clone().requires_grad_(), numbers.cuda().requires_grad_()
    here.cumprod(1).mul(weights).sum().backward()
    there.cumprod(1).mul(weights.cuda()).sum().backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad)
    assert there.grad.is_cuda
    with torch.no_grad():
        there.abs_().add_(1)
    assert torch.autograd.gradgradcheck(lambda t: t.cumprod(1), (there,))
