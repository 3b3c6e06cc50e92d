"""How the elements of dense tensors lie in memory, as libraries on a GPU ask for it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

CONTIGUOUS = torch.contiguous_format
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

size_of: Any = torch._C.TensorBase.shape.__get__  # type: ignore[attr-defined]
"""The shape that C++ knows: lazy parameters refuse to tell theirs before it is decided."""


class Layout(NamedTuple):
    """A tensor's geometry, in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """That of a tensor; one spatial dimension counts as two, as view4d of
        native/Convolution.cpp makes it."""
        size, stride, dtype = cls.plain(tensor)
        if len(size) == 3:
            size, stride = (*size[:2], 1, size[2]), (*stride[:2], size[2] * stride[2], stride[2])
        return cls(size, stride, dtype)

    @classmethod
    def plain(cls, tensor: torch.Tensor) -> Layout:
        """That of a tensor as it is."""
        return cls(size_of(tensor), tensor.stride(), tensor.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense copy."""
        return math.prod(self.size) * self.dtype.itemsize

    def in_format(self, memory_format: torch.memory_format) -> Layout:
        """The dense tensor of this size in `memory_format`."""
        return self._replace(stride=_strides(self.size, memory_format))

    def is_in(self, memory_format: torch.memory_format) -> bool:
        """Whether `contiguous(memory_format)` would return the tensor itself."""
        expected = _strides(self.size, memory_format)
        return all(
            n == 1 or has == wants
            for n, has, wants in zip(self.size, self.stride, expected, strict=True)
        )

    def suggested(self) -> torch.memory_format:
        """`suggest_memory_format` of c10/core/MemoryFormat.h (is_channels_last_strides_2d_s4)."""
        channels_last = _CHANNELS_LAST.get(len(self.size))
        if channels_last is None or self.stride[1] == 0:
            return CONTIGUOUS
        least = 0
        for d in (1, *range(len(self.size) - 1, 1, -1), 0):
            if self.size[d] == 0 or self.stride[d] < least:
                return CONTIGUOUS
            if d == 0 and least == self.stride[1]:
                return CONTIGUOUS
            least = self.stride[d] * max(1, self.size[d])
        return channels_last


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether no two elements share memory and none is left out (is_non_overlapping_and_dense)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _strides(size: tuple[int, ...], memory_format: torch.memory_format) -> tuple[int, ...]:
    order = range(len(size) - 1, -1, -1)
    if memory_format is not CONTIGUOUS:
        order = (1, *range(len(size) - 1, 1, -1), 0)  # type: ignore[assignment]
    strides, step = [0] * len(size), 1
    for d in order:
        strides[d] = step
        step *= max(1, size[d])
    return tuple(strides)


def kernel_format(first: Layout, second: Layout) -> torch.memory_format:
    """cudnn_conv_suggest_memory_format of native/ConvUtils.h."""
    if torch.float64 in (first.dtype, second.dtype):
        return CONTIGUOUS
    for layout in (first, second):
        if (suggested := layout.suggested()) is not CONTIGUOUS:
            return suggested
    return CONTIGUOUS
