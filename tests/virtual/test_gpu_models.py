"""Ordinary training code runs unchanged, and computes what it computes on the host."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("gpu")

OPTIMIZERS = {
    name: options
    for name, options in {
        "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        "Adam": {"amsgrad": True},
        "AdamW": {},
        "Adagrad": {},
        "Adadelta": {},
        "Adamax": {},
        "ASGD": {},
        "NAdam": {},
        "RAdam": {},
        "RMSprop": {"momentum": 0.1, "centered": True},
        "Rprop": {},
        "LBFGS": {"line_search_fn": "strong_wolfe"},
        "Adafactor": {},
        "Muon": {},
    }.items()
    if hasattr(torch.optim, name)
}


def train(device, make_optimizer, steps=3):
    """Parameters after some steps, on the host."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False))
    inputs, targets = torch.randn(5, 6).to(device), torch.randn(5, 4).to(device)
    net.to(device)
    optimizer = make_optimizer(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
        schedule.step()
    return [parameter.detach().cpu() for parameter in net.parameters()], optimizer


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS.items(), ids=OPTIMIZERS)
def test_optimizers_take_the_steps_that_they_take_on_the_host(name, options):
    def make(parameters):
        return getattr(torch.optim, name)(parameters, **options)

    (expected, _), (found, optimizer) = train("cpu", make), train("cuda", make)
    assert all(map(torch.allclose, found, expected))
    tensors = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    assert all(tensor.is_cuda for tensor in tensors if tensor.numel() > 1)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": False}, {"capturable": True}, {}])
def test_implementations_of_adam_agree(options):
    expected, _ = train("cpu", torch.optim.Adam)
    found, _ = train("cuda", lambda parameters: torch.optim.Adam(parameters, **options))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))


def test_foreach_is_chosen_as_on_cuda(monkeypatch):
    called = []
    original = torch._foreach_lerp_
    monkeypatch.setattr(
        torch, "_foreach_lerp_", lambda *a, **k: (called.append(1), original(*a, **k))
    )
    train("cuda", torch.optim.Adam, steps=1)
    assert called == [1]


def test_states_of_optimizers_survive_a_checkpoint():
    _, optimizer = train("cuda", torch.optim.Adam)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    for where in ("cpu", "cuda", None):
        file.seek(0)
        net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 4, bias=False))
        restored = torch.optim.Adam(net.cuda().parameters())
        restored.load_state_dict(torch.load(file, map_location=where))
        assert all(state["exp_avg"].is_cuda for state in restored.state.values())
        net(torch.ones(2, 6, device="cuda")).sum().backward()
        restored.step()


def gan(device):
    maker = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)).to(device)
    judge = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)).to(device)
    steps = [torch.optim.Adam(net.parameters(), betas=(0.5, 0.999)) for net in (maker, judge)]
    loss = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(5, 1, device=device), torch.zeros(5, 1, device=device)
    for _ in range(3):
        noise, real = torch.randn(5, 4).to(device), torch.randn(5, 6).to(device)
        steps[1].zero_grad()
        (loss(judge(real), ones) + loss(judge(maker(noise).detach()), zeros)).backward()
        steps[1].step()
        steps[0].zero_grad()
        loss(judge(maker(noise)), ones).backward()
        steps[0].step()
    return [*maker.parameters(), *judge.parameters()]


def averaged(device):
    net = nn.Linear(4, 4).to(device)
    slow = copy.deepcopy(net)
    average = torch.optim.swa_utils.AveragedModel(net)
    for _ in range(3):
        net(torch.randn(2, 4).to(device)).square().mean().backward()
        with torch.no_grad():
            for kept, now in zip(slow.parameters(), net.parameters(), strict=True):
                now.sub_(now.grad, alpha=0.1)
                kept.mul_(0.9).add_(now, alpha=0.1)
        average.update_parameters(net)
    return [*slow.parameters(), *average.parameters()]


def penalised(device):
    judge = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    x = torch.randn(5, 6).to(device).requires_grad_()
    (slope,) = torch.autograd.grad(judge(x).sum(), x, create_graph=True)
    ((slope.norm(2, dim=1) - 1) ** 2).mean().backward()
    return [judge[0].weight.grad, judge[2].weight.grad]


def recurrent(device):
    lengths, x = torch.tensor([2, 5, 3]), torch.randn(5, 3, 3).to(device)
    found = []
    for layer in (nn.LSTM, nn.GRU, nn.RNN):
        net = layer(3, 4, 2, bidirectional=True).to(device)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(net(packed)[0])
        padded.sum().backward()
        found += [padded, net.weight_ih_l0.grad, net(x)[0]]
    return found


def normalised(device):
    x = torch.randn(3, 4).to(device)
    wrap = nn.utils.parametrizations
    nets = [wrap.weight_norm(nn.Linear(4, 4)), wrap.spectral_norm(nn.Linear(4, 4))]
    nets += [wrap.orthogonal(nn.Linear(4, 4)), nn.utils.spectral_norm(nn.Linear(4, 4))]
    nets = [net.to(device) for net in nets]
    sum(net(x) for net in nets).sum().backward()
    norm = nn.utils.clip_grad_norm_([p for net in nets for p in net.parameters()], 1.0)
    return [norm, nn.utils.parameters_to_vector(nets[0].parameters()), *[net(x) for net in nets]]


def convolutional(device):
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(2)),
        *(nn.ConvTranspose2d(8, 4, 2), nn.GroupNorm(2, 4), nn.Upsample(scale_factor=2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)),
    ).to(device)
    out = net(torch.randn(2, 3, 16, 16).to(device))
    out.square().sum().backward()
    evaluated = net.eval()(torch.ones(1, 3, 16, 16).to(device))
    return [out, net[0].weight.grad, net[1].running_var, evaluated]


def encoder_and_decoder(device):
    net = nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True).to(device)
    source, target = torch.randn(2, 5, 16).to(device), torch.randn(2, 4, 16).to(device)
    mask = net.generate_square_subsequent_mask(4, device=device)
    out = net(source, target, tgt_mask=mask, tgt_is_causal=True)
    out.sum().backward()
    padding = (torch.arange(5) > torch.tensor([[2], [4]])).to(device)
    net.eval()
    with torch.inference_mode():
        evaluated = net.encoder(source, src_key_padding_mask=padding)
    return [out, net.encoder.layers[0].linear1.weight.grad, evaluated[1]]


PROGRAMS = [gan, averaged, penalised, recurrent, normalised, convolutional, encoder_and_decoder]


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_compute_what_they_compute_on_the_host(program):
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(1)
        tensors = program(device)
        assert all(tensor.device.type == device for tensor in tensors)
        results.append([tensor.detach().cpu() for tensor in tensors])
    for host, device in zip(*results, strict=True):
        assert torch.allclose(device, host, rtol=1e-4, atol=1e-5)
