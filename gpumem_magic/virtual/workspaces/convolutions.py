"""The order in which convolutions allocate on a GPU: results, and copies in the layout of the
kernel that runs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from gpumem_magic.units import MIB
from gpumem_magic.virtual.storages import Blocks
from gpumem_magic.virtual.workspaces.layouts import CONTIGUOUS, Layout, kernel_format
from gpumem_magic.virtual.workspaces.scratch import Args, Results, ScratchMemory

_SEEN = 128 * MIB
"""The largest workspace of a call that memory traces of real cards show."""

_DEPTH = {2: 52, 4: 194}
_WORK = {2: 1e7, 4: 6e8}
"""Terms of an output, and floating-point operations, by bytes of an element."""


class _Asked(NamedTuple):
    """What was asked of a convolution besides its tensors."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    groups: int

    @classmethod
    def of(cls, args: Args) -> _Asked:
        """Of the operator's arguments from the stride on."""
        stride, padding, dilation, transposed, _, groups = args[:6]
        return cls(tuple(stride), tuple(padding), tuple(dilation), transposed, groups)

    def is_depthwise(self, inputs: Layout) -> bool:
        """is_depthwise of native/Convolution.cpp."""
        return not self.transposed and self.groups > 1 and inputs.size[1] == self.groups

    def is_native_depthwise(self, inputs: Layout, weight: Layout) -> bool:
        """Whether torch's own kernel for depthwise convolutions runs (use_cudnn_depthwise in
        native/Convolution.cpp)."""
        channels = inputs.size[1]
        if not self.is_depthwise(inputs) or not torch.backends.cudnn.enabled:
            return self.is_depthwise(inputs)
        return kernel_format(inputs, weight) is CONTIGUOUS and not (
            inputs.dtype is torch.float16
            and len(inputs.size) == 4
            and set(self.dilation) == {1}
            and (len(set(self.stride)) == 1 or inputs.size[2] == 1)
            and channels >= 32
            and _pays(inputs.size, weight.size, self.stride[-1])
        )

    def columns(self, inputs: Layout, weight: Layout, outputs: Sequence[int]) -> int:
        """Bytes of the unfolded image of one sample and group, where torch's own kernels multiply
        matrices."""
        places = math.prod((inputs.size if self.transposed else outputs)[2:])
        channels = weight.size[1] * math.prod(weight.size[2:])
        return channels * places * inputs.dtype.itemsize


def _pays(inputs: Sequence[int], weight: Sequence[int], stride: int) -> bool:
    """check_cudnn_depthwise_workload_with_filter of native/Convolution.cpp."""
    batch, channels, height, width = inputs
    filter_size = weight[3]
    if height == 1 and stride == 1:
        return True
    if weight[2] != filter_size or filter_size not in (1, 3, 5) or width < 7:
        return False
    if stride != 2:
        return stride == 1
    if filter_size == 1:
        return width <= 28 if batch == 1 else batch <= 16 and channels >= 128 and width <= 7
    return batch == 1 or channels >= 512 or (channels >= 256 and width >= 28)


def forward(memory: ScratchMemory, args: Args, out: torch.Tensor) -> None:
    """After `_convolution` of native/Convolution.cpp, `cudnn_convolution` and
    `cudnn_convolution_transpose` of native/cudnn/ConvShared.cpp."""
    inputs, weight = Layout.of(args[0]), Layout.of(args[1])
    asked = _Asked.of(args[3:])
    with memory.blocks() as copies:
        if args[0].dim() == 3:
            inputs = _copied(copies, inputs, CONTIGUOUS)
        if asked.is_native_depthwise(inputs, weight):
            _copied(copies, inputs, CONTIGUOUS)
            _copied(copies, weight, CONTIGUOUS)
            memory.place(out)
        elif _has_cudnn(memory, inputs, asked):
            layout = kernel_format(inputs, weight)
            _copied(copies, inputs, layout)
            memory.place(out)
            _copied(copies, weight, layout)
            _run(memory, _Run("forward", inputs, weight, Layout.of(out), layout, asked))
        else:
            _native_forward(memory, inputs, weight, asked, out)


def backward(memory: ScratchMemory, args: Args, out: Results) -> None:
    """After `convolution_backward` of native/Convolution.cpp."""
    gradient, inputs, weight = map(Layout.of, args[:3])
    asked = _Asked.of(args[4:])
    with memory.blocks() as copies:
        if args[1].dim() == 3:
            inputs = _copied(copies, inputs, CONTIGUOUS)
        if asked.is_native_depthwise(inputs, weight):
            _depthwise(memory, gradient, inputs, weight, out)
        elif _has_cudnn(memory, inputs, asked):
            _cudnn(memory, gradient, inputs, weight, asked, out)
        else:
            _native_backward(memory, gradient, inputs, weight, asked, out)
        if out[2] is not None and out[2] not in memory.storages:
            memory.place(out[2])
            memory.reduce(args[0], [0, *range(2, args[0].dim())], "sum")


def _cudnn(
    memory: ScratchMemory,
    gradient: Layout,
    inputs: Layout,
    weight: Layout,
    asked: _Asked,
    out: Results,
) -> None:
    """After cudnn_convolution_backward and cudnn_convolution_transpose_backward of
    native/cudnn/ConvShared.cpp."""
    with memory.blocks() as copies:
        if out[1] is not None:
            inputs = _copied(copies, inputs, kernel_format(inputs, weight))
        wanted = inputs.suggested()
        if asked.transposed or gradient.suggested() is not wanted:
            gradient = _copied(copies, gradient, wanted)
        if out[0] is not None:
            layout = kernel_format(gradient, weight)
            memory.place(out[0])
            with memory.blocks() as inner:
                _copied(inner, weight, layout)
                _copied(inner, gradient, layout)
                _run(memory, _Run("input", inputs, weight, gradient, layout, asked))
        if out[1] is not None:
            layout = kernel_format(inputs, gradient)
            both = (inputs, gradient) if asked.transposed else (gradient, inputs)
            with memory.blocks() as inner:
                for operand in both:
                    _copied(inner, operand, layout)
                memory.place(out[1])
                _run(memory, _Run("weight", inputs, weight, gradient, layout, asked))


def _depthwise(
    memory: ScratchMemory, gradient: Layout, inputs: Layout, weight: Layout, out: Results
) -> None:
    """After native/cuda/DepthwiseConv2d.cu and DepthwiseConv3d.cu."""
    flat = len(inputs.size) == 4
    with memory.blocks() as copies:
        if flat:
            _copied(copies, gradient, CONTIGUOUS)
            _copied(copies, inputs, CONTIGUOUS)
            memory.place(out[1])
            if out[0] is not None:
                _copied(copies, weight, CONTIGUOUS)
                memory.place(out[0])
        else:
            memory.place(*out[:2])
            _copied(copies, gradient, CONTIGUOUS)
            _copied(copies, inputs, CONTIGUOUS)
            memory.place(out[2])


def _native_forward(
    memory: ScratchMemory, inputs: Layout, weight: Layout, asked: _Asked, out: Any
) -> None:
    """After `_convolution` where cuDNN does not run, which splits groups, and
    native/cuda/ConvolutionMM2d.cu."""
    with memory.blocks() as copies:
        _copied(copies, inputs, CONTIGUOUS)
        _copied(copies, weight, CONTIGUOUS)
        columns = asked.columns(inputs, weight, out.shape)
        if asked.groups > 1:
            for _ in range(asked.groups):
                copies.take(out.nbytes // asked.groups)
                with memory.blocks() as buffers:
                    buffers.take(inputs.nbytes // asked.groups, columns)
                    memory.multiply()
        memory.place(out)
        if asked.groups == 1:
            if set(weight.size[2:]) != {1}:
                copies.take(columns)
            memory.multiply()


def _native_backward(
    memory: ScratchMemory,
    gradient: Layout,
    inputs: Layout,
    weight: Layout,
    asked: _Asked,
    out: Results,
) -> None:
    """After slow_conv2d_backward_cuda of native/cuda/ConvolutionMM2d.cu."""
    with memory.blocks() as copies:
        for layout in (inputs, weight, gradient):
            _copied(copies, layout, CONTIGUOUS)
        results = [result for result in out if result is not None]
        columns = asked.columns(inputs, weight, gradient.size)
        if asked.groups > 1:
            for result in results * asked.groups:
                copies.take(result.nbytes // asked.groups)
            with memory.blocks() as buffers:
                buffers.take(columns)
                memory.multiply()
        for place, result in enumerate(results):
            memory.place(result)
            if place == 0 and asked.groups == 1:
                copies.take(columns)
                memory.multiply()


def _copied(copies: Blocks, layout: Layout, memory_format: torch.memory_format) -> Layout:
    """`layout` in `memory_format`; a copy is given back with `copies`."""
    if layout.is_in(memory_format):
        return layout
    copies.take(layout.nbytes)
    return layout.in_format(memory_format)


class _Run(NamedTuple):
    """What a kernel of cuDNN makes ("forward", or the gradient of "input" or "weight"), of what,
    in which layout."""

    makes: str
    inputs: Layout
    weight: Layout
    outputs: Layout
    layout: torch.memory_format
    asked: _Asked

    def most_workspace(self, has_tf32: bool) -> int:
        """Bytes that cuDNN is taken to need at most: _SEEN, or, where it transposes, room for all
        operands twice, which it pads ("Tensor Layouts In Memory: NCHW vs NHWC" of NVIDIA's
        Convolutional Layers User's Guide). That held for 99 % of 12,570 calls on an H200's tensor
        cores and for 94 % of 3,024 without; what asks for more can fall back on less.
        """
        if self.layout is CONTIGUOUS and not self._on_tensor_cores(has_tf32):
            return _SEEN
        return max(_SEEN, 2 * self._operands)

    def likely_workspace(self, has_tf32: bool) -> int:
        """Bytes that cuDNN likely needs on tensor cores: room for all operands once, transposed,
        where the filter is larger than a point and the work is worth it; else none. has_tf32: from
        Ampere on; nobody has measured it before.

        Of 8,520 such calls on an H200 with operands in rows, without groups, it was within 6 % of
        the operands for 82 % of those above 8 MiB forward, 84 and 63 % for the two gradients; the
        bounds are those that part them best. Other layouts and groups follow no such rule.
        """
        if self.layout is not CONTIGUOUS or self.asked.groups > 1:
            return 0
        if not (has_tf32 and self._on_tensor_cores(has_tf32)):
            return 0
        filter_size = math.prod(self.weight.size[2:])
        if filter_size == 1 and max(self.asked.stride) == 1:
            return 0
        depth = self.weight.size[0 if self.asked.transposed else 1] * filter_size
        images = self.inputs if self.asked.transposed else self.outputs
        work = 2 * math.prod(images.size) * self.weight.size[1] * filter_size
        asked, least = (depth, _DEPTH) if self.makes == "forward" else (work, _WORK)
        return self._operands if asked > least[self.inputs.dtype.itemsize] else 0

    def _on_tensor_cores(self, has_tf32: bool) -> bool:
        single = self.inputs.dtype is torch.float32
        return self.inputs.dtype.itemsize == 2 or (
            has_tf32 and single and torch.backends.cudnn.allow_tf32
        )

    @property
    def _operands(self) -> int:
        return sum(map(self._padded, (self.inputs, self.weight, self.outputs)))

    def _padded(self, operand: Layout) -> int:
        """Bytes, with channels in whole groups of 16 bytes."""
        channels, together = max(1, operand.size[1]), 16 // operand.dtype.itemsize
        return operand.nbytes // channels * -(-channels // together) * together


def _run(memory: ScratchMemory, run: _Run) -> None:
    """cuDNN's kernel runs, on operands in its layout.

    Its workspace is left out: cuDNN chooses among algorithms whose needs follow no formula known
    outside of it. Only how high memory may rise is kept. Where one finds no room, PyTorch takes the
    next; with `benchmark` it tries all once for each shape and thread, and then empties the cache
    (run_single_conv of native/cudnn/Conv_v8.cpp).
    """
    has_tf32 = memory.capability >= (8, 0)
    memory.may_rise(run.most_workspace(has_tf32), run.likely_workspace(has_tf32))
    if torch.backends.cudnn.benchmark:
        sizes = run.inputs.size, run.weight.size, run.inputs.dtype
        memory.benchmark(run.makes, *sizes, run.layout, run.asked)


def _has_cudnn(memory: ScratchMemory, inputs: Layout, asked: _Asked) -> bool:
    """supportsBFloat16ConvolutionWithCuDNNv8 of cuda/detail/CUDAHooks.cpp, and the user's
    switch."""
    return torch.backends.cudnn.enabled and (
        inputs.dtype is not torch.bfloat16
        or memory.capability >= (8, 0)
        or asked.is_depthwise(inputs)
    )
