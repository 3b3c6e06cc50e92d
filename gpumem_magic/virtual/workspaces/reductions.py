"""The buffer that a large reduction (sum, mean, norm, ...) takes on a GPU for its blocks' results.
Derived as setReduceConfig in ATen/native/cuda/Reduce.cuh does it: from shapes, strides, card.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_MAX_THREADS = 512
_WARP = 32
_MIN_VALUES, _MAX_VALUES = 16, 256  # values that one thread should combine
_SEMAPHORE = 4  # bytes
_PLACES = 2**31


@dataclass(frozen=True, slots=True)
class Processors:
    """What the launch configuration asks of the card."""

    count: int
    threads: int

    @classmethod
    def of(cls, count: int, capability: tuple[int, int]) -> Processors:
        """`count` multiprocessors of this compute capability; resident threads of each after the
        table "technical specifications per compute capability" of the CUDA programming guide."""
        threads = 2048
        if capability == (7, 5):
            threads = 1024
        elif capability in ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1)):
            threads = 1536
        return cls(count, threads)


class Operand(NamedTuple):
    """What is reduced, in elements of `itemsize` bytes."""

    shape: Sequence[int]
    strides: Sequence[int]
    offset: int = 0
    itemsize: int = 4


@functools.lru_cache(maxsize=1000)
def reduction_buffers(
    operand: Operand,
    reduced: tuple[int, ...],
    accumulator: int,
    processors: Processors,
    vector: int = 4,
) -> tuple[int, ...]:
    """Bytes of the buffer and of the semaphores; () where one thread block per output is enough;
    of one half of an operand whose places take more than 31 bits, which is reduced in halves.

    reduced: the dimensions that are combined. accumulator: bytes of one partial result. vector:
    elements that a thread loads at once.
    """
    shape, strides, offset, _ = _part(operand)
    dims = {d % len(shape) for d in reduced} if shape else set()
    inner = _coalesced((strides[d], shape[d]) for d in dims)
    outer = _coalesced((strides[d], shape[d]) for d in range(len(shape)) if d not in dims)
    inputs, outputs = _count(inner), _count(outer)
    if inputs * outputs == 0:
        return ()
    along_fastest = not outer or (bool(inner) and inner[0][0] < outer[0][0])
    x, y = (inputs, outputs) if along_fastest else (outputs, inputs)
    width_of_output = 1
    fastest = inner if along_fastest else outer
    if fastest and fastest[0][0] == 1:
        if along_fastest and x >= 128 and len(inner) == 1:
            x //= vector
        elif not along_fastest:
            width_of_output = _output_vector(outer, inner, offset)
            x //= width_of_output
    width, height = _block(x, y, _MAX_THREADS // width_of_output)
    step_in, step_out = (width, 1) if along_fastest else (1, width)
    if -(-inputs // step_in) < min(height * 16, _MAX_VALUES):
        return ()  # each warp has an output of its own
    step_in *= height
    per_thread = -(-inputs // step_in)
    grid = -(-outputs // (step_out * width_of_output if not along_fastest else step_out))
    target = processors.count * (processors.threads // (width * height))
    if per_thread < _MAX_VALUES or grid > target:
        return ()
    blocks = max(
        min(-(-target // grid), -(-per_thread // _MIN_VALUES)), -(-per_thread // _MAX_VALUES)
    )
    if blocks <= 1:
        return ()
    size = accumulator * outputs * blocks
    return size if along_fastest else size * width * width_of_output, _SEMAPHORE * grid


def _part(operand: Operand) -> Operand:
    """What is reduced at once: places in bytes are of 31 bits (with_32bit_indexing of
    ATen/native/TensorIterator.cpp, which halves the longest dimension)."""
    shape, strides, _, itemsize = operand
    extents = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    if (sum(extents) + 1) * itemsize < _PLACES:
        return operand
    longest = extents.index(max(extents))
    halved = [-(-n // 2) if d == longest else n for d, n in enumerate(shape)]
    return _part(operand._replace(shape=tuple(halved)))


def _coalesced(dims: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(stride, size) of the dimensions, fastest first, neighbours that are one run merged."""
    merged: list[tuple[int, int]] = []
    for stride, size in sorted(d for d in dims if d[1] != 1):
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = merged[-1][0], merged[-1][1] * size
        else:
            merged.append((stride, size))
    return merged


def _count(dims: Sequence[tuple[int, int]]) -> int:
    return math.prod(size for _, size in dims)


def _output_vector(
    outer: Sequence[tuple[int, int]], inner: Sequence[tuple[int, int]], offset: int
) -> int:
    """Outputs that one thread computes: 4, 2 or 1, as alignment allows."""
    strides = [stride for stride, _ in outer[1:]] + [stride for stride, _ in inner]
    width = 4
    for number in (offset, outer[0][1], *strides):
        while number % width:
            width //= 2
    return width


def _block(x: int, y: int, most: int) -> tuple[int, int]:
    x, y = _power_of_two(x, most), _power_of_two(y, most)
    height = min(y, most // min(x, _WARP))
    return min(x, most // height), height


def _power_of_two(n: int, most: int) -> int:
    return 1 << (max(1, n).bit_length() - 1) if n < most else most
