"""Training as users write it: on the device it computes what it computes on the host."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.usefixtures("gpu")

CUDA = torch.device("cuda", 0)


def close(device, host):
    """Equal, but for the order in which sums are taken."""
    return device.device == CUDA and torch.allclose(device.cpu(), host, rtol=1e-4, atol=1e-6)


# Optimizers with the options that make them keep the most, and the steps they keep on the device.
OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adagrad": {},
    "Adadelta": {},
    "Adamax": {},
    "ASGD": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "LBFGS": {},
    "Adafactor": {},
    "Muon": {},
}
KNOWN = [name for name in OPTIMIZERS if hasattr(torch.optim, name)]  # torch before 2.9 has no Muon


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False))


def train(name, device, steps=4, **options):
    net = small_net().to(device)
    x = torch.linspace(-1, 1, 30).reshape(5, 6).to(device)
    options = {"lr": 0.01} | options
    optimizer = getattr(torch.optim, name)(net.parameters(), **options)
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)

    def closure():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
        scheduler.step()
    return net, optimizer


@pytest.mark.parametrize("name", KNOWN)
def test_optimizers_take_the_steps_of_the_host(name):
    host, _ = train(name, "cpu", **OPTIMIZERS[name])
    device, optimizer = train(name, "cuda", **OPTIMIZERS[name])
    for ours, expected in zip(device.parameters(), host.parameters(), strict=True):
        assert close(ours, expected)
        assert ours.grad.device == CUDA
    shaped = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.dim()
    ]
    assert shaped
    assert {value.device for value in shaped} == {CUDA}
    assert optimizer.param_groups[0]["lr"] == 0.01 * 0.5**4


@pytest.mark.parametrize("name", KNOWN)
def test_optimizers_go_on_from_a_saved_state(name):
    whole, _ = train(name, "cuda", steps=4, **OPTIMIZERS[name])
    # GIVEN two steps, saved, and loaded into another model and optimizer
    net, optimizer = train(name, "cuda", steps=2, **OPTIMIZERS[name])
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    other = small_net().cuda()
    other.load_state_dict(loaded["net"])
    resumed = getattr(torch.optim, name)(other.parameters(), lr=1.0)
    resumed.load_state_dict(loaded["optimizer"])
    # WHEN two more are taken
    x = torch.linspace(-1, 1, 30).reshape(5, 6).cuda()

    def closure():
        resumed.zero_grad()
        loss = other(x).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        resumed.step(closure)
        resumed.param_groups[0]["lr"] *= 0.5
    # THEN the model is the one that was never interrupted
    for ours, expected in zip(other.parameters(), whole.parameters(), strict=True):
        assert close(ours, expected.detach().cpu())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"fused": True, "momentum": 0.9}),
        ("Adam", {"fused": True}),
        ("AdamW", {"fused": True}),
        ("Adagrad", {"fused": True}),
        ("AdamW", {"foreach": False}),
        ("AdamW", {"capturable": True}),
        ("AdamW", {"maximize": True}),
        ("SGD", {"foreach": True}),
    ],
)
def test_the_ways_to_take_a_step_agree(name, options):
    plain = {key: value for key, value in options.items() if key in ("momentum", "maximize")}
    host, _ = train(name, "cpu", **plain)
    device, _ = train(name, "cuda", **options)
    for ours, expected in zip(device.parameters(), host.parameters(), strict=True):
        assert close(ours, expected)


@pytest.mark.parametrize(("device", "calls"), [("cuda", True), ("cpu", False)])
def test_whole_lists_of_parameters_are_stepped_on_the_device_alone(device, calls, monkeypatch):
    seen = []
    kernel = torch._foreach_lerp_
    monkeypatch.setattr(torch, "_foreach_lerp_", lambda *a, **k: (seen.append(a), kernel(*a, **k)))
    train("Adam", device, steps=1)
    assert bool(seen) is calls


def test_peak_of_a_step_counts_the_temporaries_of_whole_lists(gpu):
    def peak(**options):
        net = nn.ModuleList([nn.Linear(256, 256, bias=False) for _ in range(4)]).cuda()
        optimizer = torch.optim.Adam(net.parameters(), **options)
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        optimizer.step()
        return torch.cuda.max_memory_allocated() - before

    weight = 256 * 256 * 4
    assert peak() == 4 * weight  # the denominators of all four at once
    assert peak(foreach=False) == 3 * weight  # a root, a quotient, the last one's denominator


def test_gradient_clipping_is_that_of_the_host():
    def clip(device):
        net = small_net().to(device)
        net(torch.ones(5, 6, device=device)).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        nn.utils.clip_grad_value_(net.parameters(), 0.05)
        return norm, net[0].weight.grad

    for ours, expected in zip(clip("cuda"), clip("cpu"), strict=True):
        assert close(ours, expected)


SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1),
    "LinearLR": lr_scheduler.LinearLR,
    "PolynomialLR": lr_scheduler.PolynomialLR,
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.5)], [2]
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedules_are_those_of_the_host(schedule):
    def rates(device):
        weight = nn.Parameter(torch.ones(2, device=device))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        scheduler = schedule(optimizer)
        found = []
        for _ in range(4):
            weight.sum().backward()
            optimizer.step()
            scheduler.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found, scheduler.state_dict().keys()

    assert rates("cuda") == rates("cpu")


def test_a_schedule_can_follow_a_loss_on_the_device():
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for loss in torch.tensor([1.0, 2.0, 3.0], device="cuda"):
        scheduler.step(loss)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_averages_of_models_stay_on_the_device():
    net = small_net().cuda()
    average = AveragedModel(net)
    with torch.no_grad():
        average.update_parameters(net)
        net[0].weight += 1
        average.update_parameters(net)
    assert average.module[0].weight.device == CUDA
    assert torch.allclose(average.module[0].weight, net[0].weight - 0.5)


def test_hooks_see_device_tensors_in_order():
    net, seen = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).cuda(), []
    net.register_forward_pre_hook(lambda module, args: seen.append(("before", args[0].device)))
    net.register_forward_hook(lambda module, args, out: seen.append(("forward", out.device)))
    net.register_full_backward_hook(lambda module, gi, go: seen.append(("backward", go[0].device)))
    weight = net[0].weight
    weight.register_hook(lambda g: g * torch.tensor([2.0], device="cuda"))
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(("grad", p.grad.device)))
    x = torch.ones(2, 3, device="cuda", requires_grad=True)
    net(x).sum().backward()
    assert sorted(seen, key=str) == [(w, CUDA) for w in ("backward", "before", "forward", "grad")]
    doubled = weight.grad.clone()
    weight._backward_hooks.clear()
    weight.grad = None
    net(x).sum().backward()
    assert torch.equal(doubled, 2 * weight.grad)


class Cubed(torch.autograd.Function):
    """x**3, with what user code does in custom functions."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        ctx.mark_non_differentiable(sign := torch.sign(x))
        return x**3 * factor, sign

    @staticmethod
    def backward(ctx, gradient, _):
        (x,) = ctx.saved_tensors
        three = torch.full((1,), 3.0, device="cuda" if x.is_cuda else "cpu")
        return gradient * three * x**2 * ctx.factor, None


def test_functions_of_users_differentiate_twice_and_check():
    x = torch.tensor([1.0, -2.0], device="cuda", dtype=torch.float64, requires_grad=True)
    y, sign = Cubed.apply(x, 2.0)
    assert (y.tolist(), sign.tolist(), sign.requires_grad) == ([2, -16], [1, -1], False)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert (first.tolist(), second.tolist()) == ([6, 24], [12, -24])
    assert first.device == second.device == CUDA
    assert torch.autograd.gradcheck(lambda x: Cubed.apply(x, 2.0)[0], x, check_undefined_grad=False)


class Both(torch.autograd.Function):
    """Two outputs, of which the program may use one."""

    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        assert first.device == second.device
        return 2 * first + second * torch.full((3,), 3.0, device=first.device)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_outputs_that_nobody_uses_have_zeros_for_gradients(device):
    x = torch.ones(3, device=device, requires_grad=True)
    first, second = Both.apply(x)
    (first + torch.ones(3, device=device)).sum().backward(retain_graph=True)
    assert (x.grad.device.type, x.grad.tolist()) == (device, [2, 2, 2])
    second.sum().backward()
    assert x.grad.tolist() == [5, 5, 5]


def dropping_net():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh()) for _ in range(3)]
    return nn.Sequential(*blocks).cuda()


CHECKPOINTS = {
    "reentrant": lambda net, x: checkpoint(net, x, use_reentrant=True),
    "not reentrant": lambda net, x: checkpoint(net, x, use_reentrant=False),
    "sequential": lambda net, x: checkpoint_sequential(net, 2, x, use_reentrant=False),
    "nested": lambda net, x: checkpoint(
        lambda x: net[2](checkpoint(net[:2], x, use_reentrant=False)), x, use_reentrant=False
    ),
}


@pytest.mark.parametrize("forward", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_checkpoints_recompute_with_the_same_random_numbers(forward):
    def gradients(forward):
        net, x = dropping_net(), torch.ones(4, 8, device="cuda", requires_grad=True)
        torch.manual_seed(1)
        forward(net, x).sum().backward()
        after = torch.rand(3, device="cuda")
        return [x.grad, net[0][0].weight.grad, after]

    plain = gradients(lambda net, x: net(x))
    for ours, expected in zip(gradients(forward), plain, strict=True):
        assert torch.equal(ours, expected)


def test_without_kept_random_numbers_a_checkpoint_draws_others():
    net, x = dropping_net(), torch.ones(4, 8, device="cuda", requires_grad=True)
    torch.manual_seed(1)
    checkpoint(net, x, use_reentrant=False, preserve_rng_state=False).sum().backward()
    torch.manual_seed(1)
    (plain,) = torch.autograd.grad(net(x).sum(), x)
    assert not torch.equal(x.grad, plain)


def test_checkpointed_code_makes_device_tensors_when_it_runs_again():
    def forward(x):
        return x * torch.tensor([2.0], device="cuda") + torch.zeros(3, device=x.device)

    x = torch.ones(3, device="cuda", requires_grad=True)
    checkpoint(forward, x, use_reentrant=False).sum().backward()
    assert (x.grad.device, x.grad.tolist()) == (CUDA, [2, 2, 2])


def test_copies_of_models_train_apart(allocated):
    net = small_net().cuda()
    before = allocated()
    twin = copy.deepcopy(net)
    assert allocated() == 2 * before
    twin(torch.ones(2, 6, device="cuda")).sum().backward()
    torch.optim.SGD(twin.parameters(), lr=1.0).step()
    assert net[0].weight.grad is None
    assert not torch.equal(net[0].weight, twin[0].weight)
    assert torch.equal(net[0].weight.cpu(), small_net()[0].weight)


def test_states_of_models_cross_devices():
    device, host = small_net().cuda(), small_net()
    with torch.no_grad():
        host[0].weight.fill_(3)
    device.load_state_dict(host.state_dict())
    assert (device[0].weight.device, device[0].weight.unique().tolist()) == (CUDA, [3])
    host.load_state_dict({key: value + 1 for key, value in device.state_dict().items()})
    assert (host[0].weight.device.type, host[0].weight.unique().tolist()) == ("cpu", [4])
    adopted = small_net()
    adopted.load_state_dict(device.state_dict(), assign=True)
    assert adopted[0].weight.device == CUDA


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_pin_and_shuffle(workers):
    inputs = torch.arange(20.0).reshape(20, 1)
    data = TensorDataset(inputs, torch.arange(20))
    loader = DataLoader(data, batch_size=6, num_workers=workers, pin_memory=True, shuffle=True)
    seen = []
    for x, y in loader:
        assert (x.is_pinned(), y.is_pinned(), x.device.type) == (True, True, "cpu")
        moved = x.to("cuda", non_blocking=True)
        assert moved.device == CUDA
        assert torch.equal(moved[:, 0].long(), y.cuda(non_blocking=True))
        seen += y.tolist()
    assert sorted(seen) == list(range(20))


def test_compiled_code_runs_eagerly_and_says_so_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net = torch.compile(nn.Linear(3, 3).cuda())

        @torch.compile(mode="max-autotune", fullgraph=True)
        def double(x):
            return x * 2

        nn.Linear(2, 2).compile()
        out = double(net(torch.zeros(2, 3, device="cuda")))
        out.sum().backward()
    told = [str(warning.message) for warning in caught]
    assert told.count("torch.compile runs eagerly on the virtual GPU") == 1
    assert net.weight.grad.device == out.device == CUDA
