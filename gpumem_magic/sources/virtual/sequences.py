"""What connectionist temporal classification takes on a GPU (native/cuda/LossCTC.cu)."""

from __future__ import annotations

from typing import Any

import torch

from gpumem_magic.sources.virtual.blocks import Blocks
from gpumem_magic.sources.virtual.storages import Storages

_INDEX = 8  # bytes


class Sequences:
    """Places the results of the loss, which keeps a number for each step and label."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages

    def forward(self, args: tuple[Any, ...], out: tuple[torch.Tensor, torch.Tensor]) -> None:
        """ctc_loss_gpu_template: the lengths, where targets begin, and then the results."""
        losses, of_labels = out
        with Blocks(self._storages) as lengths:
            lengths.take(*[losses.numel() * _INDEX] * 3)
            self._storages.place(of_labels)
            self._storages.place(losses)

    def backward(self, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """ctc_loss_backward_gpu_template: as many numbers again, from the other end."""
        losses, of_labels = args[5], args[6]
        with Blocks(self._storages) as buffers:
            buffers.take(*[losses.numel() * _INDEX] * 3)
            buffers.take(of_labels.numel() * of_labels.dtype.itemsize)
            self._storages.place(out)
