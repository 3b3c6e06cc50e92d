"""What becomes of operators: device results, blocks, mixtures, code that torch itself runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("gpu")

MIXED = {
    "add": lambda d, h: d + h,
    "in place": lambda d, h: d.add_(h),
    "host first": lambda d, h: h * d,
    "cat": lambda d, h: torch.cat([d, h]),
    "linear": lambda d, h: nn.functional.linear(h[None], d[None]),
    "where": lambda d, h: torch.where(d > 0, h, d),
    "loss": lambda d, h: nn.functional.cross_entropy(d[None], torch.zeros(1, dtype=torch.long)),
    "module": lambda d, h: nn.Linear(3, 3).cuda()(h),
    "embedding": lambda d, h: nn.Embedding(3, 3).cuda()(torch.zeros(2, dtype=torch.long)),
}


@pytest.mark.parametrize("mix", MIXED.values(), ids=MIXED)
def test_mixed_devices_are_refused_as_by_cuda(mix):
    text = "Expected all tensors to be on the same device, but found at least two devices"
    with pytest.raises(RuntimeError, match=text):
        mix(torch.zeros(3, device="cuda"), torch.zeros(3))


def test_what_may_be_mixed_on_a_gpu_may_be_mixed_here():
    device, host = torch.zeros(3, device="cuda"), torch.ones(3)
    assert (device + torch.tensor(2.0)).tolist() == [2, 2, 2]
    assert (device * 2).is_cuda
    assert device.copy_(host).tolist() == [1, 1, 1]
    assert host.copy_(device * 3).tolist() == [3, 3, 3]
    assert device[torch.tensor([0, 1])].is_cuda
    device[torch.tensor([True, False, True])] = 0.0
    assert device.tolist() == [0, 1, 0]


def test_a_mixture_in_backward_is_found_too():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * torch.ones(3)

    x = torch.ones(3, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match="same device"):
        Wrong.apply(x).sum().backward()


def test_each_result_takes_a_block_and_views_take_none(blocks):
    x = torch.ones(100, device="cuda")
    view = x.view(10, 10).t()[2:].unsqueeze(0)
    assert blocks() == [400]
    y = x + 1
    y.mul_(2)
    y[3] = 7
    assert blocks() == [400]
    del x
    assert blocks() == []  # `view` holds the storage
    del view, y
    assert blocks() == [-400, -400]


def test_an_output_that_grows_gets_a_larger_block(blocks, gpu):
    x, out = torch.ones(1000, device="cuda"), torch.empty(10, device="cuda")
    blocks()
    torch.mul(x, 2, out=out.resize_(0))
    assert blocks() == [4000, -40]
    out.resize_(5)
    assert (blocks(), gpu.allocator.size_of(gpu.storages.locate(out))) == ([], 4096)


IMPOSSIBLE = {
    "negative": (lambda: torch.ones(-1, device="cuda"), "negative dimension -1"),
    "negative random": (lambda: torch.rand(2, -3, device="cuda"), "negative dimension -3"),
    "two negatives": (lambda: torch.empty(-1, -2, device="cuda"), "negative dimension -1"),
    "strided": (lambda: torch.empty_strided((-4,), (1,), device="cuda"), "negative dimension -4"),
    "too many": (lambda: torch.zeros(1 << 62, 1 << 62, device="cuda"), "calculation overflowed"),
    "too many bytes": (lambda: torch.empty(1 << 61, device="cuda"), "calculation overflowed"),
}


@pytest.mark.parametrize("make", IMPOSSIBLE)
def test_sizes_that_no_tensor_has_are_refused_in_torchs_words(make, gpu):
    function, words = IMPOSSIBLE[make]
    with pytest.raises(RuntimeError, match=words) as refused:
        function()
    assert refused.type is RuntimeError
    assert gpu.allocator.allocated == 0


def test_a_factory_asks_the_card_before_it_spends_host_memory():
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(1 << 50, device="cuda")


def test_metadata_can_be_asked_of_meta_tensors():
    x = torch.zeros(3, device="cuda")
    assert x.to("meta").device.type == "meta"
    assert torch.empty_like(x, device="meta").is_meta


def test_autograd_functions_hooks_and_double_backward():
    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            assert gradient.is_cuda
            return gradient * x.exp() + torch.zeros(3, device="cuda")

    x = torch.randn(3, device="cuda", requires_grad=True)
    x.register_hook(lambda gradient: gradient * torch.tensor(2.0, device="cuda"))
    Exponential.apply(x).sum().backward()
    assert torch.allclose(x.grad, 2 * x.exp())
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.allclose(second, 4 * 6 * x)  # each pass through x doubles


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_draw_the_same_dropout_again(reentrant):
    net = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 8)).cuda()
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    gradients = []
    for forward in (net, lambda x: checkpoint(net, x, use_reentrant=reentrant)):
        torch.manual_seed(1)
        gradients += torch.autograd.grad(forward(x).sum(), x) if not reentrant else [None]
        if reentrant:
            x.grad = None
            torch.manual_seed(1)
            forward(x).sum().backward()
            gradients[-1] = x.grad.clone()
    assert torch.equal(*gradients)


def test_checkpoints_keep_only_their_input(allocated):
    net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)]).cuda()
    x = torch.randn(128, 64, device="cuda")
    before = allocated()
    out = x
    for block in net:
        out = checkpoint(block, out, use_reentrant=False)
    assert allocated() - before == 4 * 128 * 64 * 4


def test_torch_own_code_may_make_host_tensors_that_stand_for_the_device(gpu):
    lstm, x = nn.LSTM(3, 4).cuda(), torch.randn(5, 3, 3, device="cuda")
    packed = pack_padded_sequence(x, torch.tensor([2, 5, 3]), enforce_sorted=False)
    padded, lengths = pad_packed_sequence(lstm(packed)[0])
    assert (padded.is_cuda, lengths.is_cuda) == (True, False)
    assert lengths.tolist() == [2, 5, 3]

    @torch.jit.script
    def shifted(x: torch.Tensor):
        return torch.zeros(3, device=x.device) + x + torch.ones(3, device=x.device)

    assert shifted(torch.ones(3, device="cuda")).tolist() == [2, 2, 2]


def test_nothing_made_in_one_call_stands_for_the_device_in_the_next():
    host = torch.full((3,), 2.0)
    torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="cuda") + host


@torch.library.custom_op("gpumem_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    """An operator whose kernel is Python."""
    return x * factor + torch.zeros(3, device=x.device)


scaled.register_autograd(
    lambda ctx, gradient: (gradient * ctx.factor, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


def test_operators_of_users_run_on_the_device():
    x = torch.ones(3, device="cuda", requires_grad=True)
    y = scaled(x, 2.0)
    y.sum().backward()
    assert (y.is_cuda, y.tolist(), x.grad.tolist()) == (True, [2, 2, 2], [2, 2, 2])
    assert not scaled(torch.ones(3), 2.0).is_cuda


def test_function_transforms():
    from torch.func import functional_call, grad, jacrev, vmap

    net, x = nn.Linear(3, 2).cuda(), torch.randn(5, 3, device="cuda")
    parameters = dict(net.named_parameters())

    def loss(parameters, x):
        return functional_call(net, parameters, (x,)).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    assert each["weight"].shape == (5, 2, 3)
    assert each["weight"].is_cuda
    whole = grad(loss)(parameters, x)
    assert torch.allclose(each["weight"].sum(0), whole["weight"], atol=1e-5)
    assert jacrev(torch.exp)(x[0]).is_cuda


def test_a_tensor_that_is_resized_gets_a_larger_block(gpu, allocated):
    x = torch.ones(3, device="cuda")
    x.resize_(700)
    assert allocated() == 3072
    x.resize_(2)
    assert allocated() == 3072
    x.resize_as_(torch.empty(1024, device="cuda"))
    assert allocated() == 4096
