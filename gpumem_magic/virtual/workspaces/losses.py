"""What losses take: before they are reduced to one number, and for the sequences of CTC."""

from __future__ import annotations

import torch

from gpumem_magic.virtual.workspaces.scatters import logsumexp_buffers
from gpumem_magic.virtual.workspaces.scratch import INDEX, Args, Kwargs, ScratchMemory

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
    if reduction:
        with memory.blocks() as first:
            first.take(*[args[0].nbytes] * tensors or [args[0].itemsize])
            memory.reduce(args[0], None, "mean")


def soft_margin_backward(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """soft_margin_loss_backward_out of native/Loss.cpp: the target's opposite, times the input, and
    its exponential."""
    with memory.blocks() as exponential:
        with memory.blocks() as factors:
            factors.take(out.nbytes, out.nbytes)
            exponential.take(out.nbytes)
        memory.place(out)


_SEQUENCES = 3  # dimensions of log-probabilities: steps, sequences, labels
_FEW = 450
"""Where steps, sequences and labels weigh more, blanks are summed up by operators of their own."""


def ctc(memory: ScratchMemory, args: Args, out: tuple[torch.Tensor, torch.Tensor]) -> None:
    """ctc_loss_gpu_template: the lengths, where targets begin, and then the results."""
    losses, of_labels = out
    with memory.blocks() as lengths:
        lengths.take(*[losses.numel() * INDEX] * 3)
        memory.place(of_labels, losses)


def ctc_backward(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """ctc_loss_backward_gpu_template: as many numbers again, from the other end."""
    losses, of_labels = args[5], args[6]
    with memory.blocks() as buffers:
        buffers.take(*[losses.numel() * INDEX] * 3)
        buffers.take(of_labels.nbytes)
        memory.place(out)
        steps, batch, labels = out.shape if out.dim() == _SEQUENCES else (0, 0, 0)
        if 2 * steps + 24 * batch // 10 + 2 * labels // 10 > _FEW:
            _gather_blanks(memory, of_labels)


def _gather_blanks(memory: ScratchMemory, of_labels: torch.Tensor) -> None:
    """The probabilities of every other state, the blanks, are summed up by logarithms."""
    batch, steps, states = of_labels.shape
    blanks = torch.empty((batch, steps, (states + 1) // 2), dtype=of_labels.dtype, device="meta")
    rows = batch * steps
    with memory.blocks() as buffers:
        buffers.take(blanks.nbytes)
        logsumexp_buffers(memory, blanks, [2], rows, lambda: buffers.take(rows * blanks.itemsize))
