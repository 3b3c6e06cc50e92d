"""What losses take: before they are reduced to one number, and for the sequences of CTC."""

from __future__ import annotations

from typing import Any

import torch

from gpumem_magic.virtual.storages import Blocks, Storages

LOSSES = {
    "mse_loss": 1,
    "smooth_l1_loss": 1,
    "huber_loss": 1,
    "soft_margin_loss": 0,
    "binary_cross_entropy": 0,
    "binary_cross_entropy_with_logits": 2,
}
"""Tensors as large as the input that these losses write before they are reduced (native/Loss.cpp,
native/cuda/Loss.cu); 0: it is the result itself, into which the mean is copied."""


class Losses:
    """Takes them."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages

    def log_sigmoid(self, args: tuple[Any, ...], out: tuple[torch.Tensor, torch.Tensor]) -> None:
        """log_sigmoid_forward_cuda of native/cuda/Activation.cpp keeps no buffer."""
        self._storages.place(out[0])
        self._storages.place(out[1], self._storages.malloc(0))

    def before_the_mean(self, tensors: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """One value per element first, which then is reduced."""
        names = [a for a in args[2:] if isinstance(a, int)]
        reduction = names[-1] if names else kwargs.get("reduction", 1)
        if reduction:
            itemsize = args[0].dtype.itemsize
            with Blocks(self._storages) as buffers:
                buffers.take(*[args[0].numel() * itemsize] * tensors or [itemsize])


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
