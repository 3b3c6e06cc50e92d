"""The workloads of fidelity.py: cells as users write them, at full size and small enough to run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CELLS = Path(__file__).parent / "fidelity_workloads"


def text_of(file: Path, values: tuple[tuple[str, int], ...]) -> str:
    """A cell's text with these values of its variables. Raises KeyError for a variable that it does
    not assign once at the begin of a line."""
    text = file.read_text()
    for name, value in values:
        text, found = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
        if found != 1:
            raise KeyError(f"{file.stem}: {name} is assigned {found} times")
    return text


@dataclass(frozen=True, slots=True)
class Workload:
    """A cell, the card it runs on, and values for some of the variables that its head assigns.

    live: small enough to be computed on the CPU.
    """

    cell: str
    card: str = "T4"
    values: tuple[tuple[str, int], ...] = ()
    live: bool = False

    @property
    def name(self) -> str:
        """Unique in the table ("gpt2", "gpt2 small")."""
        return f"{self.cell} small" if self.live else self.cell

    @property
    def source(self) -> str:
        """The cell's text. Raises KeyError for a value whose variable the cell does not assign."""
        return text_of(CELLS / f"{self.cell}.py", self.values)

    @property
    def title(self) -> str:
        """What the cell's first line says of it."""
        return self.source.partition("\n")[0].removeprefix("# ")


def _small(cell: str, card: str = "T4", **values: int) -> Workload:
    return Workload(cell, card, tuple(values.items()), live=True)


AMPERE = "A100-40GB"

WORKLOADS = (
    Workload("mlp"),
    Workload("mlp_loader"),
    Workload("accumulation"),
    Workload("optimizers"),
    Workload("resnet"),
    Workload("resnet_amp"),
    Workload("vgg"),
    Workload("mobilenet"),
    Workload("cnn_half"),
    Workload("unet"),
    Workload("unet_bf16", AMPERE),
    Workload("autoencoder"),
    Workload("vae"),
    Workload("gan"),
    Workload("gradient_penalty"),
    Workload("diffusion"),
    Workload("gpt2"),
    Workload("gpt2_checkpointed", AMPERE),
    Workload("gpt_scratch"),
    Workload("bert"),
    Workload("bert_mlm"),
    Workload("t5"),
    Workload("llama", AMPERE),
    Workload("llama_7b", "B200"),
    Workload("llama_decode"),
    Workload("lora", AMPERE),
    Workload("vit"),
    Workload("vit_inference"),
    Workload("transformer"),
    Workload("encoder_fast"),
    Workload("encoder_autocast"),
    Workload("lstm"),
    Workload("gru"),
    Workload("gru_forecast"),
    Workload("checkpointed"),
    Workload("contrastive"),
    Workload("recommender"),
    Workload("tensors"),
    Workload("conv_other"),
    Workload("forgotten_no_grad"),
    Workload("convlstm"),
    Workload("wavenet"),
    Workload("graph_network"),
    Workload("seq2seq"),
    Workload("unet_interpolated"),
    Workload("capsules"),
    Workload("efficientnet"),
    Workload("two_towers"),
    Workload("speech"),
    Workload("embedding_bags"),
    Workload("per_sample"),
    Workload("wgan"),
    Workload("decoder_cells"),
    Workload("patches"),
    Workload("views"),
    Workload("whisper", AMPERE),
    Workload("clip", AMPERE),
    Workload("deberta"),
    Workload("swin"),
    Workload("convnext"),
    Workload("mamba"),
    Workload("pointnet"),
    Workload("nerf"),
    Workload("detector"),
    Workload("vqvae"),
    Workload("rnn_bfloat16"),
    Workload("rnn_stepwise"),
    Workload("index_writes"),
    Workload("ppo"),
    Workload("layers_alone"),
    Workload("encoder_padded"),
    Workload("diffusion_ema"),
    Workload("pinn"),
    _small("mlp", batch_size=256, hidden=512),
    _small("mlp_loader", hidden=256),
    _small("accumulation", batch_size=64, hidden=512, depth=3),
    _small("optimizers", batch_size=128, hidden=512),
    _small("resnet", batch_size=2, image=64),
    _small("resnet_amp", batch_size=2, image=64, width=32, depth=1),
    _small("vgg", batch_size=2, image=64, width=16, hidden=512),
    _small("mobilenet", batch_size=4, image=64),
    _small("cnn_half", batch_size=2, image=64, width=32),
    _small("unet", batch_size=2, image=64, width=16),
    _small("unet_bf16", AMPERE, batch_size=2, image=32, width=16),
    _small("autoencoder", batch_size=8, image=64),
    _small("vae", batch_size=64, hidden=256),
    _small("gan", batch_size=8, width=32),
    _small("gradient_penalty", batch_size=128, hidden=256),
    _small("diffusion", batch_size=2, image=16, width=64),
    _small("gpt2", batch_size=2, length=64, layers=2, width=128, vocabulary=5000),
    _small("gpt2_checkpointed", AMPERE, batch_size=2, length=64, layers=2, width=128,
           vocabulary=5000),
    _small("gpt_scratch", batch_size=4, length=64, depth=2, width=128, vocabulary=4000),
    _small("bert", batch_size=4, length=32, layers=2, width=128),
    _small("bert_mlm", batch_size=2, length=64, layers=2, width=128),
    _small("t5", batch_size=2, source_length=64, target_length=32, layers=2, width=128),
    _small("llama", AMPERE, batch_size=2, length=64, layers=2, width=256, vocabulary=4000),
    _small("llama_decode", batch_size=2, prompt_length=32, new_tokens=4, layers=2, width=256),
    _small("lora", AMPERE, batch_size=2, length=32, layers=2, width=128),
    _small("vit", batch_size=2, image=64, layers=2, width=128),
    _small("vit_inference", batch_size=4, image=64, layers=2, width=128),
    _small("transformer", batch_size=4, length=32, width=128, layers=2, vocabulary=2000),
    _small("encoder_fast", batch_size=2, length=32, width=192, layers=2),
    _small("encoder_autocast", batch_size=4, length=32, width=128, layers=2, vocabulary=2000),
    _small("lstm", batch_size=8, length=24, width=128, vocabulary=2000),
    _small("gru", batch_size=8, length=24, width=64),
    _small("gru_forecast", batch_size=32, length=24, width=64, horizon=4),
    _small("checkpointed", batch_size=256, hidden=256, depth=4),
    _small("contrastive", batch_size=128, hidden=256),
    _small("recommender", batch_size=256, users=20000, items=10000),
    _small("tensors", points=1024),
    _small("conv_other", batch_size=2, samples=4000, frames=4, size=28),
    _small("forgotten_no_grad", batch_size=256, hidden=512),
)  # fmt: skip
