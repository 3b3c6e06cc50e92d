"""The fast path of attention and encoder layers in inference: the blocks of CUDA, values as on the
host."""

from __future__ import annotations

import pytest
import torch
from torch import nn

WIDTH, ROWS, BATCH = 256, 100, 6
TOKENS = BATCH * ROWS * WIDTH * 4  # bytes
SCORES = BATCH * 8 * ROWS * ROWS * 4
CUBLAS, CUBLASLT = 8519680, 1048576


def attention():
    return nn.MultiheadAttention(WIDTH, 8, batch_first=True).eval()


def encoder(**options):
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


MASK = torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1)
CASES = {
    "attention": (attention, lambda net, x: net(x, x, x)[0]),
    "weights": (attention, lambda net, x: net(x, x, x)[1]),
    "weights of heads": (attention, lambda net, x: net(x, x, x, average_attn_weights=False)[1]),
    "no weights": (attention, lambda net, x: net(x, x, x, need_weights=False)[0]),
    "mask": (attention, lambda net, x: net(x, x, x, attn_mask=MASK.to(x.device))[0]),
    "encoder": (encoder, lambda net, x: net(x)),
    "norm first": (lambda: encoder(norm_first=True, activation="gelu"), lambda net, x: net(x)),
    "masked encoder": (encoder, lambda net, x: net(x, mask=MASK.to(x.device))),
    "odd heads": (
        lambda: nn.MultiheadAttention(15, 3, batch_first=True).eval(),
        lambda net, x: net(*[x[..., :15]] * 3)[0],
    ),
}


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(("make", "use"), CASES.values(), ids=CASES)
def test_values_are_those_of_the_host(gpu, context, make, use):
    net, x = make(), torch.randn(BATCH, ROWS, WIDTH)
    with context():
        expected = use(net, x)
        out = use(net.cuda(), x.cuda())
    assert out.is_cuda
    assert torch.allclose(out.cpu(), expected, atol=1e-5)


@pytest.fixture
def taken(blocks):
    """Sizes that a call of a module has asked for, workspaces of libraries left out."""

    def taken(net, *args, **options):
        net, args = net.cuda(), [arg.cuda() for arg in args]
        blocks()
        with torch.no_grad():
            net(*args, **options)
        return [size for size in blocks() if size > 0 and size not in (CUBLAS, CUBLASLT)]

    return taken


class OfItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = attention()

    def forward(self, x, **options):
        return self.attention(x, x, x, **options)


def test_attention_without_weights_is_fused(taken):
    asked = taken(OfItself(), torch.randn(BATCH, ROWS, WIDTH), need_weights=False)
    assert asked == [3 * TOKENS, TOKENS, TOKENS]


def test_attention_with_weights_has_all_scores(taken):
    asked = taken(OfItself(), torch.randn(BATCH, ROWS, WIDTH))
    average = BATCH * ROWS * ROWS * 4
    assert asked == [3 * TOKENS, 3 * TOKENS, SCORES, TOKENS, TOKENS, average]


def test_an_encoder_layer_is_one_operator(taken):
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True).eval()
    statistics = BATCH * ROWS * 4
    norm = [TOKENS, statistics, statistics]
    asked = taken(layer, torch.randn(BATCH, ROWS, WIDTH))
    assert asked == [3 * TOKENS, TOKENS, TOKENS, *norm, 4 * TOKENS, TOKENS, *norm]


def test_training_does_not_take_the_path(taken):
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True, dropout=0.0)
    training = taken(layer, torch.randn(BATCH, ROWS, WIDTH))
    assert training.count(4 * TOKENS) == 2  # before and after the activation


def test_padding_stays_where_lengths_differ(gpu):
    net = encoder().cuda()
    net.enable_nested_tensor = net.use_nested_tensor = True
    x = torch.randn(BATCH, ROWS, WIDTH, device="cuda")
    padded = torch.zeros(BATCH, ROWS, dtype=torch.bool, device="cuda")
    padded[1, 50:] = True
    with torch.no_grad():
        out = net(x, src_key_padding_mask=padded)
        shorter = net(x[1:2, :50])
    assert out.shape == x.shape
    assert torch.allclose(out[1:2, :50], shorter, atol=1e-5)
