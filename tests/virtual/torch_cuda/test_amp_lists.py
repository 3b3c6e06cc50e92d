"""Mixed precision as users write it: types, values, caches and scalers of CUDA's autocast."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("gpu")

CUDA = torch.device("cuda", 0)
LOWER = [torch.float16, torch.bfloat16]

# What autocast/autocast_mode.h lists; `x` is float32, `h` of the lower precision.
LOWER_PRECISION = {
    "linear": lambda h, x: functional.linear(x, x),
    "linear with bias": lambda h, x: functional.linear(x, x, x[0]),
    "matmul": lambda h, x: x @ h,
    "addbmm": lambda h, x: torch.addbmm(x, x[None], x[None]),
    "addmv": lambda h, x: torch.addmv(x[0], x, x[0]),
    "baddbmm": lambda h, x: torch.baddbmm(x[None], x[None], x[None]),
    "chain_matmul": lambda h, x: torch.linalg.multi_dot([x, x, x]),
    "vecdot": lambda h, x: torch.linalg.vecdot(x, x),
    "conv2d": lambda h, x: functional.conv2d(x[None, None], x[None, None, :2, :2]),
    "conv_transpose1d": lambda h, x: functional.conv_transpose1d(x[None], x[:, :, None]),
    "conv3d": lambda h, x: nn.Conv3d(1, 1, 1).cuda()(x[None, None, None]),
    "attention": lambda h, x: functional.scaled_dot_product_attention(*[x[None, None]] * 3),
    "gru cell": lambda h, x: nn.GRUCell(4, 4).cuda()(x),
    "rnn cell": lambda h, x: nn.RNNCell(4, 4).cuda()(x),
    "multi-head": lambda h, x: nn.MultiheadAttention(4, 2).cuda()(x, x, x)[0],
    "relu of lower": lambda h, x: h.relu(),
    "dropout of lower": lambda h, x: functional.dropout(h),
    "silu of lower": lambda h, x: functional.silu(h),
    "max of lower": lambda h, x: h.max(),
    "mean of lower": lambda h, x: h.mean(),
    "pool of lower": lambda h, x: functional.avg_pool1d(h[None], 2),
    "lower + number": lambda h, x: h + 1.5,
    "in place": lambda h, x: h.add_(x),
}
FLOAT32 = {
    "softmax": lambda h, x: h.softmax(0),
    "module": lambda h, x: nn.Softmax(dim=1)(h),
    "gelu of float32": lambda h, x: functional.gelu(x),
    "exp": lambda h, x: h.exp(),
    "expm1": lambda h, x: h.expm1(),
    "log": lambda h, x: h.log(),
    "log2": lambda h, x: h.log2(),
    "rsqrt": lambda h, x: h.rsqrt(),
    "reciprocal": lambda h, x: h.reciprocal(),
    "pow": lambda h, x: h**2,
    "tan": lambda h, x: h.tan(),
    "acos": lambda h, x: h.acos(),
    "cosh": lambda h, x: h.cosh(),
    "erfinv": lambda h, x: h.erfinv(),
    "softplus": lambda h, x: functional.softplus(h),
    "layer norm": lambda h, x: nn.LayerNorm(4).cuda()(h),
    "normalize": lambda h, x: functional.normalize(h.float()),
    "cosine": lambda h, x: functional.cosine_similarity(h, h),
    "cdist": lambda h, x: torch.cdist(h, h),
    "renorm": lambda h, x: h.renorm(2, 0, 1.0),
    "vector norm": lambda h, x: torch.linalg.vector_norm(h),
    "prod": lambda h, x: h.prod(),
    "sum": lambda h, x: h.sum(1),
    "cumprod": lambda h, x: h.cumprod(0),
    "l1": lambda h, x: functional.l1_loss(h, h),
    "smooth l1": lambda h, x: functional.smooth_l1_loss(h, h),
    "huber": lambda h, x: functional.huber_loss(h, h),
    "nll": lambda h, x: functional.nll_loss(h, torch.zeros(4, dtype=torch.long, device="cuda")),
    "kl": lambda h, x: functional.kl_div(h, h, reduction="sum"),
    "bce with logits": lambda h, x: functional.binary_cross_entropy_with_logits(h, h),
    "cosine embedding": lambda h, x: functional.cosine_embedding_loss(h, h, h[:, 0].sign()),
    "widest of two": lambda h, x: h + x,
    "widest of a stack": lambda h, x: torch.stack([h, x]),
    "widest of a product": lambda h, x: torch.addcmul(x, h, h),
    "widest dot": lambda h, x: torch.dot(h[0], x[0]),
}


def answer(run, dtype, **options):
    x = torch.full((4, 4), 0.5, device="cuda")
    with torch.autocast("cuda", dtype=dtype, **options):
        out = run(x.to(dtype), x)
    assert out.device == CUDA
    return out.dtype


@pytest.mark.parametrize("dtype", LOWER)
@pytest.mark.parametrize("run", LOWER_PRECISION.values(), ids=LOWER_PRECISION)
def test_operators_in_the_lower_precision(run, dtype):
    assert answer(run, dtype) is dtype


@pytest.mark.parametrize("dtype", LOWER)
@pytest.mark.parametrize("run", FLOAT32.values(), ids=FLOAT32)
def test_operators_in_float32(run, dtype):
    assert answer(run, dtype) is torch.float32


def test_other_types_are_left_alone():
    for dtype in (torch.float64, torch.complex64):
        x = torch.ones(2, 2, dtype=dtype, device="cuda")
        with torch.autocast("cuda"):
            assert (x @ x).dtype is dtype
            assert x.exp().dtype is dtype
    with torch.autocast("cuda"):
        assert torch.ones(2, dtype=torch.int64, device="cuda").sum().dtype is torch.int64
        assert torch.zeros(2, device="cuda").dtype is torch.float32


@pytest.mark.parametrize("dtype", LOWER)
def test_values_are_those_of_the_explicit_casts(dtype):
    net = nn.Linear(8, 3).cuda()
    x = torch.linspace(-1, 1, 32, device="cuda").reshape(4, 8)
    y = torch.tensor([0, 1, 2, 0], device="cuda")
    twin = copy.deepcopy(net)
    with torch.autocast("cuda", dtype=dtype):
        loss = functional.cross_entropy(net(x), y)
    loss.backward()
    logits = functional.linear(x.to(dtype), twin.weight.to(dtype), twin.bias.to(dtype))
    # torch's cross_entropy names the type of its log_softmax, which autocast then keeps
    expected = functional.nll_loss(logits.log_softmax(1).float(), y)
    expected.backward()
    assert torch.equal(loss, expected)
    assert (net.weight.grad.dtype, net.weight.grad.device) == (torch.float32, CUDA)
    assert torch.equal(net.weight.grad, twin.weight.grad)


def test_the_switches_can_be_asked():
    assert torch.amp.is_autocast_available("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cuda")
        assert torch.is_autocast_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cuda") is torch.bfloat16
    assert not torch.is_autocast_enabled()
    assert torch.get_autocast_dtype("cuda") is torch.float16


def test_the_host_is_left_alone_in_forward_and_backward():
    host, device = nn.Linear(4, 4), nn.Linear(4, 4).cuda()
    with torch.autocast("cuda"):
        out = host(torch.ones(2, 4))
        assert out.softmax(1).dtype is out.dtype is torch.float32
        (out.cuda() * device(torch.ones(2, 4, device="cuda"))).sum().backward()
    assert host.weight.grad.dtype is device.weight.grad.dtype is torch.float32
    assert host.weight.grad.device.type == "cpu"


def test_regions_nest_with_their_own_types():
    x = torch.ones(2, 2, device="cuda")

    def product():
        return (x @ x).dtype

    with torch.autocast("cuda"):
        assert product() is torch.float16
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert product() is torch.bfloat16
            with torch.autocast("cuda", enabled=False):
                assert product() is torch.float32
            assert product() is torch.bfloat16
        assert product() is torch.float16
    assert product() is torch.float32


def test_a_region_ends_with_an_exception():
    x = torch.ones(2, 2, device="cuda")
    with pytest.raises(ZeroDivisionError), torch.autocast("cuda"):
        1 / 0  # noqa: B018
    assert (x @ x).dtype is torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_methods_can_be_decorated():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        @torch.autocast(device_type="cuda", dtype=torch.bfloat16)
        def forward(self, x):
            return self.inner(x)

    net = Net().cuda()
    out = net(torch.ones(2, 4, device="cuda"))
    assert out.dtype is torch.bfloat16
    out.float().sum().backward()
    assert net.inner.weight.grad.dtype is torch.float32


def casts(blocks, **options):
    """How often a weight of 64 x 64 is cast in a region that uses it three times."""
    net, x = nn.Linear(64, 64, bias=False).cuda(), torch.ones(2, 64, device="cuda")
    blocks()
    with torch.autocast("cuda", **options):
        for _ in range(3):
            net(x)
        return blocks().count(64 * 64 * 2)


@pytest.mark.parametrize(("options", "times"), [({}, 1), ({"cache_enabled": False}, 3)])
def test_weights_are_cast_once_unless_the_cache_is_off(blocks, options, times):
    assert casts(blocks, **options) == times


def test_the_cache_goes_with_the_outermost_region(allocated):
    net, x = nn.Linear(64, 64, bias=False).cuda(), torch.ones(2, 64, device="cuda")
    before = allocated()
    with torch.autocast("cuda"):
        with torch.autocast("cuda"):
            net(x)
        assert allocated() - before == 64 * 64 * 2
        torch.clear_autocast_cache()
        assert allocated() == before
        net(x)
    assert allocated() == before


def test_weights_without_gradients_are_not_kept(blocks):
    with torch.no_grad():
        assert casts(blocks) == 1  # as on CUDA, what counts is that the weight is a leaf with grad
    frozen = nn.Linear(64, 64, bias=False).cuda().requires_grad_(False)
    x = torch.ones(2, 64, device="cuda")
    blocks()
    with torch.autocast("cuda"):
        frozen(x), frozen(x)
        assert blocks().count(64 * 64 * 2) == 2


@pytest.mark.parametrize("make", [torch.amp.GradScaler, torch.cuda.amp.GradScaler])
@pytest.mark.filterwarnings("ignore:.*GradScaler:FutureWarning")
def test_a_scaler_scales_unscales_and_grows(make):
    scaler = make(init_scale=8.0, growth_interval=2)
    weight = nn.Parameter(torch.ones(3, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for scale in (8.0, 8.0, 16.0):
        optimizer.zero_grad()
        loss = scaler.scale((weight * 2).sum())
        loss.backward()
        assert (scaler.get_scale(), weight.grad.tolist()) == (scale, [2 * scale] * 3)
        scaler.unscale_(optimizer)
        assert weight.grad.tolist() == [2, 2, 2]
        scaler.step(optimizer)
        scaler.update()
    assert weight.tolist() == [-5, -5, -5]
    assert scaler._scale.device == CUDA


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_scaler_skips_a_step_with_what_is_not_finite(bad):
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    weight = nn.Parameter(torch.ones(3, device="cuda"))
    optimizer = torch.optim.Adam([weight])
    scaler.scale(weight.sum()).backward()
    weight.grad[1] = bad
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1, 1, 1]
    assert (scaler.get_scale(), len(optimizer.state)) == (2.0, 0)
    # THEN its state survives a round trip, and the next finite step is taken
    other = torch.amp.GradScaler("cuda")
    other.load_state_dict(scaler.state_dict())
    optimizer.zero_grad()
    other.scale(weight.sum()).backward()
    other.step(optimizer)
    assert (other.get_scale(), len(optimizer.state)) == (2.0, 1)


def test_a_scaler_that_is_off_does_nothing():
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    x = torch.ones(2, device="cuda")
    assert scaler.scale(x) is x
    assert scaler.get_scale() == 1.0
