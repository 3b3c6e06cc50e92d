"""Training loops that run unchanged on a real, a stub and a virtual GPU; one function per model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda"

Batch = Callable[[], tuple[torch.Tensor, torch.Tensor]]


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
        self,
        vocabulary: int = 5000,
        width: int = 256,
        heads: int = 8,
        depth: int = 4,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Encoder(nn.Module):
    """A classifier of padded sentences in the manner of BERT, out of torch's own layers."""

    def __init__(self, vocabulary: int = 8000, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position = nn.Embedding(128, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.1, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth)
        self.pool = nn.Linear(width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        x = self.layers(x, src_key_padding_mask=ids == 0)
        return self.head(torch.tanh(self.pool(x[:, 0])))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.short: nn.Module = nn.Identity()
        if stride > 1:
            self.short = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out += self.short(x)
        return self.relu(out)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(4000, 128)
        self.lstm = nn.LSTM(128, 256, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(512, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.token(ids))
        return self.head(states.mean(1))


def mlp() -> tuple[nn.Module, Batch]:
    model = nn.Sequential(
        nn.Linear(784, 2048),
        nn.ReLU(),
        nn.Linear(2048, 2048),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(2048, 10),
    )
    return model, lambda: (torch.randn(512, 784), torch.randint(0, 10, (512,)))


def transformer() -> tuple[nn.Module, Batch]:
    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(0, 5000, (8, 129))
        return ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    return Transformer(), batch


def cnn() -> tuple[nn.Module, Batch]:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip
    return model, lambda: (torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,)))


def checkpointed() -> tuple[nn.Module, Batch]:
    return Transformer(recompute=True), transformer()[1]


def encoder() -> tuple[nn.Module, Batch]:
    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(1, 8000, (16, 64))
        ids[::2, 50:] = 0
        return ids, torch.randint(0, 5, (16,))

    return Encoder(), batch


def resnet() -> tuple[nn.Module, Batch]:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(64, 64, 1), Residual(64, 128, 2), Residual(128, 256, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100),
    )  # fmt: skip
    return model, lambda: (torch.randn(16, 3, 112, 112), torch.randint(0, 100, (16,)))


def lstm() -> tuple[nn.Module, Batch]:
    return Recurrent(), lambda: (torch.randint(0, 4000, (32, 40)), torch.randint(0, 4, (32,)))


MODELS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "mlp": mlp,
    "transformer": transformer,
    "checkpointed": checkpointed,
    "encoder": encoder,
    "cnn": cnn,
    "resnet": resnet,
    "lstm": lstm,
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
}


@dataclass(frozen=True, slots=True)
class Workload:
    """One training loop. autocast: float16 with a GradScaler. batches: gradients that are summed
    before each step."""

    model: str
    optimizer: str
    autocast: bool = False
    batches: int = 1

    @property
    def name(self) -> str:
        """Unique among WORKLOADS ("transformer adam autocast")."""
        parts = [self.model, self.optimizer]
        if self.autocast:
            parts.append("autocast")
        if self.batches > 1:
            parts.append(f"x{self.batches}")
        return " ".join(parts)


WORKLOADS = (
    Workload("mlp", "sgd"),
    Workload("mlp", "adam"),
    Workload("transformer", "sgd"),
    Workload("transformer", "adam"),
    Workload("cnn", "sgd"),
    Workload("cnn", "adam"),
    Workload("mlp", "momentum"),
    Workload("mlp", "amsgrad"),
    Workload("mlp", "adam", batches=3),
    Workload("transformer", "adam", autocast=True),
    Workload("checkpointed", "adam"),
    Workload("checkpointed", "adam", autocast=True),
    Workload("encoder", "adam"),
    Workload("encoder", "amsgrad", autocast=True),
    Workload("cnn", "adam", autocast=True),
    Workload("resnet", "momentum"),
    Workload("lstm", "adam"),
    Workload("lstm", "adam", autocast=True),
)


def train(work: Workload, steps: int = 3) -> Iterator[str]:
    """Yield the name of each phase as it ends: move, data, forward, backward, step, zero_grad."""
    torch.manual_seed(0)
    model, batch = MODELS[work.model]()
    model.to(DEVICE)
    yield "move"
    optimizer = OPTIMIZERS[work.optimizer](model.parameters())
    scaler = torch.amp.GradScaler(DEVICE, enabled=work.autocast)
    for step in range(steps):
        for part in range(work.batches):
            phase = f"{step}" if work.batches == 1 else f"{step}.{part}"
            inputs, targets = (tensor.to(DEVICE) for tensor in batch())
            yield f"{phase} data"
            with torch.autocast(DEVICE, torch.float16, enabled=work.autocast):
                loss = nn.functional.cross_entropy(model(inputs), targets)
            yield f"{phase} forward"
            scaler.scale(loss).backward()
            yield f"{phase} backward"
        scaler.step(optimizer)
        scaler.update()
        yield f"{step} step"
        optimizer.zero_grad()
        yield f"{step} zero_grad"
