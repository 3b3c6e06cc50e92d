"""torch.autocast("cuda"): CUDA's lists for device tensors, the user's own setting for the host."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("gpu")

HALF, FULL = torch.float16, torch.float32

# operator, element type of the result for float16 and float32 inputs; as torch's CUDA build answers
LISTED = {
    "linear": (lambda h, x: functional.linear(x, x), HALF),
    "matmul": (lambda h, x: x @ x, HALF),
    "bmm": (lambda h, x: torch.bmm(x[None], x[None]), HALF),
    "addmm": (lambda h, x: torch.addmm(x, x, x), HALF),
    "mv": (lambda h, x: torch.mv(x, x[0]), HALF),
    "einsum": (lambda h, x: torch.einsum("ij,jk", x, x), HALF),
    "conv1d": (lambda h, x: functional.conv1d(x[None], x[:, :, None]), HALF),
    "prelu": (lambda h, x: nn.PReLU().cuda()(x), HALF),
    "lstm": (lambda h, x: nn.LSTM(4, 4).cuda()(x)[0], HALF),
    "gru": (lambda h, x: nn.GRU(4, 4).cuda()(x)[0], HALF),
    "rnn": (lambda h, x: nn.RNN(4, 4).cuda()(x)[0], HALF),
    "lstm cell": (lambda h, x: nn.LSTMCell(4, 4).cuda()(x)[0], HALF),
    "attention": (lambda h, x: functional.scaled_dot_product_attention(x, x, x), HALF),
    "softmax": (lambda h, x: h.softmax(-1), FULL),
    "log_softmax": (lambda h, x: h.log_softmax(-1), FULL),
    "layer_norm": (lambda h, x: functional.layer_norm(h, (4,)), FULL),
    "group_norm": (lambda h, x: functional.group_norm(h, 2), FULL),
    "exp": (lambda h, x: h.exp(), FULL),
    "pow": (lambda h, x: h.pow(2), FULL),
    "sum": (lambda h, x: h.sum(), FULL),
    "norm": (lambda h, x: h.norm(), FULL),
    "cumsum": (lambda h, x: h.cumsum(0), FULL),
    "mse_loss": (lambda h, x: functional.mse_loss(h, h), FULL),
    "cross_entropy": (
        lambda h, x: functional.cross_entropy(h, torch.zeros(4, dtype=torch.long).cuda()),
        FULL,
    ),
    "cat": (lambda h, x: torch.cat([h, x]), FULL),
    "addcmul": (lambda h, x: torch.addcmul(h, x, x), FULL),
    "bilinear": (lambda h, x: functional.bilinear(h, x, x[None]), FULL),
    "add": (lambda h, x: h + h, HALF),
    "gelu": (lambda h, x: functional.gelu(h), HALF),
    "mean": (lambda h, x: h.mean(), HALF),
    "batch_norm": (lambda h, x: nn.BatchNorm1d(4).cuda()(h), HALF),
    "float64": (lambda h, x: x.double() @ x.double(), torch.float64),
}


@pytest.mark.parametrize(("run", "dtype"), LISTED.values(), ids=LISTED)
def test_operators_take_the_types_of_cudas_lists(run, dtype):
    x = torch.ones(4, 4, device="cuda")
    with torch.autocast("cuda", dtype=HALF):
        assert run(x.half(), x).dtype is dtype


def test_host_tensors_keep_the_users_own_setting():
    host, device = torch.ones(3, 3), torch.ones(3, 3, device="cuda")
    with torch.autocast("cuda"):
        assert ((host @ host).dtype, (device @ device).dtype) == (FULL, HALF)
    with torch.autocast("cpu"):
        assert ((host @ host).dtype, (device @ device).dtype) == (torch.bfloat16, FULL)
        with torch.autocast("cuda"):
            assert ((host @ host).dtype, (device @ device).dtype) == (torch.bfloat16, HALF)
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cuda")


def test_regions_nest_and_functions_can_be_decorated():
    net, x = nn.Linear(3, 3).cuda(), torch.ones(2, 3, device="cuda")
    with torch.cuda.amp.autocast():
        assert net(x).dtype is HALF
        with torch.autocast("cuda", enabled=False):
            assert net(x).dtype is FULL
        assert net(x).dtype is HALF

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def run(x):
        return net(x)

    assert run(x).dtype is torch.bfloat16


def test_weights_are_cast_once_in_a_region(blocks):
    net = nn.Linear(64, 64, bias=False).cuda()
    x = torch.ones(2, 64, device="cuda", requires_grad=True)
    blocks()
    with torch.autocast("cuda"):
        first = net(x)
        weight, taken = 64 * 64 * 2, blocks()
        second = net(x)
        assert taken.count(weight) == 1
        assert weight not in blocks()
    assert -weight not in blocks()  # the graphs still hold it
    del first, second
    assert blocks().count(-weight) == 1


def test_no_weight_is_kept_in_inference_mode(blocks):
    net = nn.Linear(64, 64, bias=False).cuda()
    x = torch.ones(2, 64, device="cuda")
    blocks()
    with torch.inference_mode(), torch.autocast("cuda"):
        net(x)
        assert blocks().count(-64 * 64 * 2) == 1  # as torch 2.11 does on CUDA


def test_custom_functions_take_part():
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=FULL)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient

    x = torch.ones(3, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        y = Square.apply(x.half())
    assert y.dtype is FULL
    y.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_an_unsafe_loss_is_refused_as_by_torch():
    p = torch.rand(3, device="cuda")
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        functional.binary_cross_entropy(p, p)


def test_a_scaler_skips_steps_with_infinities():
    weight = nn.Parameter(torch.ones(3, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
    scales, values = [], []
    for factor in (1.0, float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_([weight], 10.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        values.append(weight[0].item())
    assert scales == [1024, 512, 512, 1024]
    assert values == [0.5, 0.5, 0.0, -0.5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_trains(dtype):
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 4)),
    ).cuda()
    optimizer, scaler = torch.optim.AdamW(net.parameters(), lr=0.05), torch.amp.GradScaler("cuda")
    images, labels = torch.randn(8, 3, 6, 6).cuda(), torch.arange(8).cuda() % 4
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            loss = functional.cross_entropy(net(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert net[0].weight.grad.dtype is FULL


def test_autocast_that_was_left_on_is_on_for_the_card_alone(gpu):
    x = torch.ones(4, 4, device="cuda")
    gpu.leave()
    gpu.switch_off()
    torch.set_autocast_enabled("cuda", True)
    try:
        for _ in range(2):
            with gpu:
                assert (torch.ones(4, 4, device="cuda") @ torch.ones(4, 4).cuda()).dtype is HALF
                assert (torch.ones(4, 4) @ torch.ones(4, 4)).dtype is FULL
                assert not torch.is_autocast_enabled("cpu")
            assert not torch.is_autocast_enabled("cpu")
    finally:
        torch.set_autocast_enabled("cuda", False)
        gpu.switch_on()
        gpu.enter()
    assert (x @ x).dtype is FULL
