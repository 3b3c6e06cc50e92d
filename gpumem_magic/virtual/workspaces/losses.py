"""What losses take: before they are reduced to one number, and for the sequences of CTC."""

from __future__ import annotations

import torch

from gpumem_magic.virtual.workspaces.scratch import Args, Kwargs, ScratchMemory

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


def log_sigmoid(memory: ScratchMemory, args: Args, out: tuple[torch.Tensor, torch.Tensor]) -> None:
    """log_sigmoid_forward_cuda of native/cuda/Activation.cpp keeps no buffer."""
    memory.place(out[0])
    memory.place_as(out[1], 0)


def before_the_mean(memory: ScratchMemory, tensors: int, args: Args, kwargs: Kwargs) -> None:
    """One value per element first, which then is reduced."""
    names = [a for a in args[2:] if isinstance(a, int)]
    reduction = names[-1] if names else kwargs.get("reduction", 1)
    if reduction and tensors:
        memory.borrow(*[args[0].nbytes] * tensors)
    elif reduction:
        with memory.blocks() as mean:
            mean.take(args[0].itemsize)
            memory.reduce(args[0], None, "mean")


def soft_margin_backward(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """soft_margin_loss_backward_out of native/Loss.cpp: the target's opposite, times the input, and
    its exponential."""
    with memory.blocks() as exponential:
        with memory.blocks() as factors:
            factors.take(out.nbytes, out.nbytes)
            exponential.take(out.nbytes)
        memory.place(out)


_INDEX = 8  # bytes


def ctc(memory: ScratchMemory, args: Args, out: tuple[torch.Tensor, torch.Tensor]) -> None:
    """ctc_loss_gpu_template: the lengths, where targets begin, and then the results."""
    losses, of_labels = out
    with memory.blocks() as lengths:
        lengths.take(*[losses.numel() * _INDEX] * 3)
        memory.place(of_labels, losses)


def ctc_backward(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """ctc_loss_backward_gpu_template: as many numbers again, from the other end."""
    losses, of_labels = args[5], args[6]
    with memory.blocks() as buffers:
        buffers.take(*[losses.numel() * _INDEX] * 3)
        buffers.take(of_labels.nbytes)
        memory.place(out)
