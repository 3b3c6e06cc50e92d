"""What batch, layer and group norm take on a GPU, in the order in which cuDNN's wrapper and torch's
own kernels take it, and what the gradients of distances do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from gpumem_magic.virtual import devices
from gpumem_magic.virtual.kernels.geometry import named
from gpumem_magic.virtual.storages import Blocks
from gpumem_magic.virtual.workspaces.layouts import Layout
from gpumem_magic.virtual.workspaces.scratch import Args, Kwargs, Results, ScratchMemory

_MOST_THREADS = 512
_WIDTH = 32
_ROWS_OF_A_THREAD = 16
_MOST_BLOCKS, _FEWEST_BLOCKS = 128, 8
_MOST_SAMPLES = {True: 880801, False: 65535}
"""Samples of a batch that cuDNN's kernel takes, in training and without."""

_SINGLE = 4  # bytes
_LEAST_EPSILON = 0.0
"""CUDNN_BN_MIN_EPSILON."""


def batch(memory: ScratchMemory, args: Args, out: tuple[torch.Tensor, ...]) -> None:
    """batch_norm_cuda of native/cuda/Normalization.cu; cudnn_batch_norm of
    native/cudnn/BatchNorm.cpp, which keeps no statistics unless it trains."""
    inputs, training = args[0], args[5]
    by_cudnn = _has_cudnn(inputs, args[1:5], training, args[7])
    saved = inputs.shape[1] * _accumulator(inputs)
    with memory.blocks() as copies:
        if by_cudnn:
            copies.take(_copied(inputs, Layout.plain(inputs).suggested()))
        memory.place(out[0])
        for statistic in out[1:3]:
            memory.place_as(statistic, 0 if by_cudnn and not training else saved)
        if training and not by_cudnn and _has_channels_last(inputs):
            copies.take(*_staging(inputs, 4))


def batch_backward(memory: ScratchMemory, args: Args, out: Results) -> None:
    """batch_norm_backward_cuda of native/cuda/Normalization.cu, which cuDNN's wrapper leaves
    the statistics that have been given to; else cudnn_batch_norm_backward."""
    gradient, inputs, weight = args[:3]
    training, epsilon = args[7:9]
    with memory.blocks() as copies:
        if training and _has_cudnn(inputs, (weight, weight, *args[3:5]), True, epsilon):
            wanted = Layout.plain(inputs).suggested()
            copies.take(_copied(inputs, wanted), _copied(gradient, wanted))
        elif not _has_channels_last(inputs) and any(r is not None for r in out[1:]):
            pass  # one kernel for all of it
        else:
            _apart(memory, copies, args, out)
        memory.place(*out)


def layer(memory: ScratchMemory, args: Args, out: tuple[torch.Tensor, ...]) -> None:
    """layer_norm_cuda of native/cuda/layer_norm_kernel.cu; statistics of halves, which the
    host's kernel has as halves, are of float32."""
    _check_types(args[0], *args[2:4])
    _beside_copy(memory, args[0], out, least=_SINGLE)


def _check_types(inputs: torch.Tensor, *others: torch.Tensor | None) -> None:
    """Raises what CUDA's kernels do where types differ, which the host's can work with."""
    for other in others:
        if other is not None and other.dtype is not inputs.dtype:
            raise RuntimeError(
                f"expected scalar type {named(inputs.dtype)} but found {named(other.dtype)}"
            )


def layer_backward(memory: ScratchMemory, args: Args, out: Results) -> None:
    """layer_norm_backward_cuda, in the same file."""
    _beside_copy(memory, args[1], out, gradient=args[0])


def _beside_copy(
    memory: ScratchMemory,
    inputs: torch.Tensor,
    out: Results,
    least: int = 0,
    gradient: torch.Tensor | None = None,
) -> None:
    """least: bytes of one value of the results after the first. gradient: is copied last."""
    with memory.blocks() as copies:
        copies.take(0 if inputs.is_contiguous() else inputs.nbytes)
        for place, result in enumerate(out):
            if result is not None:
                itemsize = max(result.itemsize, least if place else 0)
                memory.place_as(result, result.numel() * itemsize)
        if gradient is not None and not gradient.is_contiguous():
            copies.take(gradient.nbytes)


def is_copied_for_cudnn(
    inputs: torch.Tensor, others: Sequence[torch.Tensor | None], training: bool, epsilon: float
) -> bool:
    """Whether cuDNN's kernel is to have a dense copy, which is what autograd saves then
    (_batch_norm_impl_index of native/Normalization.cpp)."""
    layout = Layout.plain(inputs)
    return not layout.is_in(layout.suggested()) and _has_cudnn(inputs, others, training, epsilon)


def group(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """GroupNormKernelImplInternal of native/cuda/group_norm_kernel.cu."""
    inputs, weight, bias, samples, channels, pixels, groups = args[:7]
    _check_types(inputs, weight, bias)
    with memory.blocks() as buffers:
        buffers.take(*_group_copies(inputs, inputs))
        if inputs.dtype.itemsize < _SINGLE:
            buffers.take(*[samples * groups * _SINGLE] * 2)
        if pixels > 1 and (weight is not None or bias is not None):
            buffers.take(*[samples * channels * _accumulator(inputs)] * 2)


def group_backward(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """GroupNormBackwardKernelImplInternal, in the same file."""
    inputs, weight, samples, channels, pixels, groups, wanted = args[1], *args[4:10]
    channel = samples * channels * _accumulator(inputs)
    with memory.blocks() as buffers:
        buffers.take(*_group_copies(inputs, args[0], inputs))
        if pixels > 1:
            buffers.take(channel, channel)
        if wanted[0]:
            with memory.blocks() as factors, memory.blocks() as of_inputs:
                of_inputs.take(*[samples * groups * _accumulator(inputs)] * 2)
                if pixels > 1 and weight is not None:
                    factors.take(channel)


def _group_copies(inputs: torch.Tensor, *read: torch.Tensor) -> list[int]:
    """Bytes of the copies of what group norm reads, up to PyTorch 2.13 made before it."""
    as_it_is = devices.RELEASE >= (2, 15) and not inputs.is_contiguous()
    in_rows = as_it_is and _has_channels_last(inputs)
    wanted = torch.channels_last if in_rows else torch.contiguous_format
    return [tensor.nbytes for tensor in read if not tensor.is_contiguous(memory_format=wanted)]


def _apart(memory: ScratchMemory, copies: Blocks, args: Args, out: Results) -> None:
    """Sums first, in batch_norm_backward_reduce_cuda, and then the input's gradient."""
    gradient, inputs, training = args[0], args[1], args[7]
    channel = inputs.shape[1] * _accumulator(inputs)
    if not training:
        copies.take(channel)
    if training or any(result is not None for result in out[1:]):
        copies.take(channel, channel)
        memory.place(*out[1:])
        if _has_channels_last(inputs) and _has_channels_last(gradient):
            memory.borrow(*_staging(inputs, 2))


def _has_cudnn(
    inputs: torch.Tensor, others: Sequence[torch.Tensor | None], training: bool, epsilon: float
) -> bool:
    """_select_batch_norm_backend of native/Normalization.cpp."""
    weight, bias, mean, variance = others
    if weight is None or bias is None or not torch._C._get_cudnn_enabled():
        return False
    if torch.bfloat16 in (inputs.dtype, weight.dtype):
        return False
    if inputs.dtype is torch.float16 and weight.dtype is not torch.float32:
        return False
    has_statistics = mean is not None and variance is not None
    return (
        (has_statistics or (mean is None and variance is None and training))
        and inputs.dim() >= 3
        and inputs.shape[0] <= _MOST_SAMPLES[training]
        and epsilon >= _LEAST_EPSILON
    )


def _has_channels_last(tensor: torch.Tensor) -> bool:
    """batch_norm_use_channels_last_kernels of native/cuda/Normalization.cu."""
    if tensor.is_contiguous():
        return tensor.stride()[1] == 1
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def _staging(inputs: torch.Tensor, values: int) -> tuple[int, ...]:
    """Bytes of the partial sums, of `values` each, and of the semaphores, where several blocks of
    threads share a channel (flexible_launch_configs of native/cuda/Normalization.cuh)."""
    channels = inputs.shape[1]
    rows = inputs.numel() // max(1, channels)
    if not rows:
        return ()
    width = min(_power_of_two(channels), _WIDTH)
    height = min(_power_of_two(-(-rows // _ROWS_OF_A_THREAD)), _MOST_THREADS // width)
    if width * height != _MOST_THREADS:
        width = min(_power_of_two(channels), _MOST_THREADS // height)
    blocks = min(-(-rows // (height * _ROWS_OF_A_THREAD)), _MOST_BLOCKS)
    if blocks < _FEWEST_BLOCKS:
        return ()
    return values * channels * blocks * _accumulator(inputs), 4 * -(-channels // width)


def _power_of_two(n: int) -> int:
    return 1 << int(math.log2(n)) if n > 0 else 1


def _accumulator(inputs: torch.Tensor) -> int:
    """Bytes of one value of the type that sums are made in."""
    return max(_SINGLE, inputs.dtype.itemsize)


def _copied(tensor: torch.Tensor, memory_format: torch.memory_format) -> int:
    """Bytes of the copy in `memory_format`, 0 where there is no need of one."""
    layout = Layout.plain(tensor)
    return 0 if layout.is_in(memory_format) else layout.nbytes


def distances(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Each pair's share of the gradient, which is 0 for the number of coordinates that differ
    (native/cuda/DistanceKernel.cu)."""
    first, second, p = args[1:4]
    if p:
        *batch, rows, width = first.shape
        _sum_shares(memory, first, (*batch, second.shape[-2], rows, width), -3)


def distances_within(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Each row's share of the gradient by every other row (_pdist_backward of the same file)."""
    rows, p = args[1:3]
    if p and rows.numel():
        _sum_shares(memory, rows, (rows.shape[0] - 1, *rows.shape), 0)


def _sum_shares(memory: ScratchMemory, like: torch.Tensor, shape: Sequence[int], dim: int) -> None:
    """Shares of this shape, in the type of `like`, summed over one dimension."""
    shares = like.new_empty(shape, device="meta")
    with memory.blocks() as buffer:
        buffer.take(shares.nbytes)
        memory.reduce(shares, [dim], "sum")
