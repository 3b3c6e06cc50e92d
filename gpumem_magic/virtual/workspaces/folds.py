"""Sliding windows (`F.unfold`, `F.fold`) and pooling: the order in which CUDA's kernels
allocate."""

from __future__ import annotations

import torch

from gpumem_magic.virtual.workspaces.layouts import Layout
from gpumem_magic.virtual.workspaces.scratch import INDEX, Args, Kwargs, ScratchMemory


def fold(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """im2col_cuda and col2im_cuda of native/cuda/Im2Col.cu and Col2Im.cu: the result begins as
    large as the input, and keeps that memory if it needs less."""
    inputs = args[0]
    with memory.blocks() as copies:
        first = memory.storages.malloc(inputs.nbytes)
        copies.take(0 if inputs.is_contiguous() else inputs.nbytes)
        if out.nbytes <= inputs.nbytes:
            memory.storages.place(out, first)
        else:
            memory.place(out)
            memory.storages.release(first)


def pool(memory: ScratchMemory, args: Args, out: tuple[torch.Tensor, ...]) -> None:
    """adaptive_max_pool2d_out_cuda of native/cuda/AdaptiveMaxPooling2d.cu, which writes dense
    results first."""
    memory.place(*out)
    memory.borrow(*(tensor.nbytes for tensor in (*out, args[0]) if not tensor.is_contiguous()))


def pool_backward(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """adaptive_max_pool2d_backward_out_cuda, in the same file."""
    memory.place(out)
    gradient, _, indices = args
    dense = (tensor for tensor in (gradient, indices, out) if not tensor.is_contiguous())
    memory.borrow(*(tensor.nbytes for tensor in dense))


def lay_out(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """What is pooled, in a dense layout (native/cuda/DilatedMaxPool2d.cu, AveragePool2d.cu)."""
    inputs = Layout.of(args[0])
    memory.borrow(0 if inputs.is_in(inputs.suggested()) else inputs.nbytes)


def lay_out_gradient(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """The gradient in the input's layout, and the input (the same files)."""
    gradient, inputs = Layout.of(args[0]), Layout.of(args[1])
    wanted = inputs.suggested()
    memory.borrow(*(each.nbytes for each in (gradient, inputs) if not each.is_in(wanted)))


def unfold_backward(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """unfold_backward_internal_kernel of native/cuda/UnfoldBackwardKernel.cu: the numbers of the
    places that windows go over."""
    memory.borrow((args[1][args[2]] if args[1] else 1) * INDEX)
