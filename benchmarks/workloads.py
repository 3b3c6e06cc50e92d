"""Training loops that run unchanged on a real, a stub and a virtual GPU; one function each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

DEVICE = "cuda"


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(x)
            .view(batch, length, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(
        self, vocabulary: int = 5000, width: int = 256, heads: int = 8, depth: int = 4
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


def mlp() -> tuple[nn.Module, Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
    model = nn.Sequential(
        nn.Linear(784, 2048),
        nn.ReLU(),
        nn.Linear(2048, 2048),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(2048, 10),
    )
    return model, lambda: (torch.randn(512, 784), torch.randint(0, 10, (512,)))


def transformer() -> tuple[nn.Module, Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(0, 5000, (8, 129))
        return ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    return Transformer(), batch


def cnn() -> tuple[nn.Module, Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    return model, lambda: (torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,)))


MODELS = {"mlp": mlp, "transformer": transformer, "cnn": cnn}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
}


def train(model_name: str, optimizer_name: str, steps: int = 3) -> Iterator[str]:
    """Yield the name of each phase as it ends: move, data, forward, backward, step, zero_grad."""
    torch.manual_seed(0)
    model, batch = MODELS[model_name]()
    model.to(DEVICE)
    yield "move"
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    for step in range(steps):
        inputs, targets = (tensor.to(DEVICE) for tensor in batch())
        yield f"{step} data"
        loss = nn.functional.cross_entropy(model(inputs), targets)
        yield f"{step} forward"
        loss.backward()
        yield f"{step} backward"
        optimizer.step()
        yield f"{step} step"
        optimizer.zero_grad()
        yield f"{step} zero_grad"
