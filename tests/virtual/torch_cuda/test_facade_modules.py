"""Modules of torch.nn: outputs and gradients on the device are those of the host."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

pytestmark = pytest.mark.usefixtures("gpu")

CUDA = torch.device("cuda", 0)


def image(channels=3):
    return torch.linspace(-1, 1, 2 * channels * 64).reshape(2, channels, 8, 8)


def sequence():
    return torch.linspace(-1, 1, 2 * 5 * 16).sin().reshape(2, 5, 16)


def tokens():
    return torch.tensor([[1, 2, 3], [3, 2, 9]])


MODULES = {
    "linear": (lambda: nn.Linear(16, 4), sequence),
    "bilinear": (lambda: Twice(nn.Bilinear(16, 16, 3)), sequence),
    "activations": (
        lambda: nn.Sequential(nn.GELU(), nn.SiLU(), nn.PReLU(), nn.Softplus(), nn.Mish(), nn.GLU()),
        sequence,
    ),
    "layer norm": (lambda: nn.LayerNorm(16), sequence),
    "rms norm": (lambda: nn.RMSNorm(16), sequence),
    "conv1d": (lambda: nn.Conv1d(5, 4, 3, padding=1), sequence),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, stride=2), image),
    "grouped conv2d": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding="same"), lambda: image(4)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), lambda: image(4)[:, None]),
    "transposed conv2d": (lambda: nn.ConvTranspose2d(3, 4, 2, stride=2), image),
    "batch norm": (lambda: nn.BatchNorm2d(3), image),
    "group norm": (lambda: nn.GroupNorm(2, 4), lambda: image(4)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), image),
    "pools": (
        lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)),
        image,
    ),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), image),
    "shuffle": (lambda: nn.Sequential(nn.PixelShuffle(2), nn.Flatten()), lambda: image(4)),
    "fold": (lambda: nn.Sequential(nn.Unfold(2), nn.Fold(8, 2)), image),
    "embedding": (lambda: nn.Embedding(10, 4, padding_idx=2), tokens),
    "embedding bag": (lambda: nn.EmbeddingBag(10, 4), tokens),
    "lstm": (lambda: nn.LSTM(16, 8, 2, batch_first=True, bidirectional=True), sequence),
    "projecting lstm": (lambda: nn.LSTM(16, 8, proj_size=4), sequence),
    "gru": (lambda: nn.GRU(16, 8, 2), sequence),
    "rnn": (lambda: nn.RNN(16, 8, nonlinearity="relu"), sequence),
    "lstm cell": (lambda: nn.LSTMCell(16, 8), lambda: sequence()[0]),
    "attention": (lambda: Thrice(nn.MultiheadAttention(16, 4, batch_first=True)), sequence),
    "attention without weights": (
        lambda: Thrice(nn.MultiheadAttention(16, 4, batch_first=True, add_zero_attn=True), False),
        sequence,
    ),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True),
        sequence,
    ),
    "encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 8, 0.0, batch_first=True, norm_first=True),
            2,
            enable_nested_tensor=False,
        ),
        sequence,
    ),
    "decoder layer": (
        lambda: Twice(nn.TransformerDecoderLayer(16, 4, 32, 0.0, batch_first=True)),
        sequence,
    ),
    "transformer": (
        lambda: Twice(nn.Transformer(16, 4, 1, 1, 32, 0.0, batch_first=True)),
        sequence,
    ),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Linear(16, 4)), sequence),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(16, 4)), sequence),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(16, 16)), sequence),
}  # fmt: skip


class Twice(nn.Module):
    """A module of two inputs, given the same one twice."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, x)


class Thrice(nn.Module):
    """Self-attention."""

    def __init__(self, inner, need_weights=True):
        super().__init__()
        self.inner, self.need_weights = inner, need_weights

    def forward(self, x):
        return self.inner(x, x, x, need_weights=self.need_weights)[0]


def first(out):
    return out[0] if isinstance(out, tuple) else out


def run(net, x):
    """The output of a module, and all gradients."""
    if x.is_floating_point():
        x = x.detach().requires_grad_()
    out = first(net(x))
    out.square().mean().backward()
    return [out, *([x.grad] if x.requires_grad else []), *(p.grad for p in net.parameters())]


def assert_same(device, host):
    assert len(device) == len(host)
    for ours, expected in zip(device, host, strict=True):
        assert ours.device == CUDA
        assert torch.allclose(ours.cpu(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("make", "data"), MODULES.values(), ids=MODULES)
def test_training_computes_what_the_host_does(make, data):
    torch.manual_seed(0)
    host = make()
    device = copy.deepcopy(host).cuda()
    assert_same(run(device, data().cuda()), run(host, data()))
    assert {value.device for value in device.state_dict().values()} <= {CUDA}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("make", "data"), MODULES.values(), ids=MODULES)
def test_inference_computes_what_the_host_does(make, data, mode):
    torch.manual_seed(0)
    host = make().eval()
    device = copy.deepcopy(host).cuda()
    with mode():
        ours = first(device(data().cuda()))
        assert_same([ours], [first(host(data()))])
    assert ours.is_inference() == (mode is torch.inference_mode)


LOSSES = {
    "cross entropy": lambda x, y: nn.functional.cross_entropy(x, y, label_smoothing=0.1),
    "nll": lambda x, y: nn.functional.nll_loss(x.log_softmax(1), y),
    "bce": lambda x, y: nn.functional.binary_cross_entropy_with_logits(x[:, 0], (y > 1).float()),
    "mse": lambda x, y: nn.functional.mse_loss(x[:, 0], y.float()),
    "smooth l1": lambda x, y: nn.functional.smooth_l1_loss(x[:, 0], y.float()),
    "kl": lambda x, y: nn.functional.kl_div(x.log_softmax(1), x.softmax(1), reduction="batchmean"),
    "triplet": lambda x, y: nn.functional.triplet_margin_loss(x, x + 1, x * 2),
    "ctc": lambda x, y: nn.functional.ctc_loss(
        x[:, None].log_softmax(-1), y[None, :2] % 2 + 1, torch.tensor([4]), torch.tensor([2])
    ),
    "cosine": lambda x, y: nn.functional.cosine_embedding_loss(x, x.flip(0), y.sign() * 2 - 1),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_losses_and_their_gradients(loss):
    found = []
    for device in ("cuda", "cpu"):
        x = torch.linspace(-1, 2, 12).sin().reshape(4, 3).to(device).requires_grad_()
        value = loss(x, torch.tensor([0, 2, 1, 0], device=device))
        value.backward()
        found.append([value, x.grad])
    assert_same(*found)


def test_batch_norm_keeps_its_statistics_on_the_device():
    host = nn.BatchNorm2d(3)
    device = copy.deepcopy(host).cuda()
    for _ in range(2):
        host(image())
        device(image().cuda())
    assert_same([device.running_mean, device.running_var], [host.running_mean, host.running_var])
    assert (device.num_batches_tracked.device, device.num_batches_tracked.item()) == (CUDA, 2)


def test_channels_last_is_kept_through_a_network():
    torch.manual_seed(0)
    host = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    device = copy.deepcopy(host).cuda().to(memory_format=torch.channels_last)
    out = device(image().cuda().to(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert_same([out], [host(image())])


def test_sequences_of_unlike_lengths():
    torch.manual_seed(0)
    host = nn.LSTM(3, 4)
    device = copy.deepcopy(host).cuda()

    def run(net, on):
        parts = [torch.ones(2, 3, device=on), torch.full((4, 3), 2.0, device=on)]
        packed = pack_padded_sequence(
            pad_sequence(parts), torch.tensor([2, 4]), enforce_sorted=False
        )
        return pad_packed_sequence(net(packed)[0])

    (ours, our_lengths), (expected, lengths) = run(device, "cuda"), run(host, "cpu")
    assert_same([ours], [expected])
    assert our_lengths.tolist() == lengths.tolist() == [2, 4]
    assert our_lengths.device.type == "cpu"


def test_masks_made_for_the_device():
    mask = nn.Transformer.generate_square_subsequent_mask(5, device="cuda")
    assert mask.device == CUDA
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
    host = copy.deepcopy(layer)
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    ours = layer.cuda()(sequence().cuda(), src_mask=mask, src_key_padding_mask=padding.cuda())
    expected = host(sequence(), src_mask=mask.cpu(), src_key_padding_mask=padding.float() * -1e9)
    assert_same([ours], [expected])


def test_containers_tie_and_move_together(allocated):
    tied = nn.ModuleDict({"a": nn.Linear(64, 64, bias=False), "b": nn.Linear(64, 64, bias=False)})
    tied["b"].weight = tied["a"].weight
    extra = nn.ParameterDict({"scale": nn.Parameter(torch.zeros(64))})
    nn.ModuleList([tied, extra]).cuda()
    assert tied["b"].weight is tied["a"].weight
    assert (tied["a"].weight.device, extra["scale"].device) == (CUDA, CUDA)
    assert allocated() == 64 * 64 * 4 + 512
    assert torch.equal(nn.utils.parameters_to_vector(tied.parameters()), tied["a"].weight.flatten())


def test_data_parallel_on_one_card_is_the_module():
    net = nn.Linear(2, 2).cuda()
    x = torch.ones(3, 2, device="cuda")
    assert torch.equal(nn.DataParallel(net)(x), net(x))


def test_modules_made_without_memory_get_it_on_the_device(allocated):
    with torch.device("meta"):
        net = nn.Linear(128, 128, bias=False)
    assert allocated() == 0
    net.to_empty(device="cuda")
    assert (net.weight.device, allocated()) == (CUDA, 128 * 128 * 4)
    net.reset_parameters()
    assert 0 < net.weight.abs().max().item() < 1
