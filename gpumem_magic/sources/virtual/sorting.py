"""Temporary storage of the sorts, scans and selections that CUDA's kernels take from CUB."""

from __future__ import annotations

import math

import torch

SMALL_SORT = 4096
_INDEX = 8  # bytes

_ALIGNMENT = 256
_RADIX_BITS = 8
_DIGITS = 2**_RADIX_BITS
_SINGLE_TILE_THREADS, _SINGLE_TILE_ITEMS = 256, 19
_UNIQUE_TILE = 256
_SCAN_THREADS, _SCAN_ITEMS = 128, 15
SCAN_STORAGE = 1279
"""Bytes of DeviceScan for up to some thousand tiles: three arrays of tile states, each of which
takes one or two units of alignment."""


def radix_sort_storage(
    n: int, key: int, value: int, capability: tuple[int, int], bits: int | None = None
) -> int:
    """Bytes that DeviceRadixSort takes for `n` pairs of `key` and `value` bytes, of whose keys
    `bits` are compared (None: all).

    After cub/device/dispatch/dispatch_radix_sort.cuh: one byte where one block sorts all; else the
    one-sweep kernels' histograms, look-back states and a second buffer for keys and values.
    """
    widest = max(key, value)
    if n <= _SINGLE_TILE_THREADS * _items(_SINGLE_TILE_ITEMS, widest):
        return 1
    passes = -(-(bits or 8 * key) // _RADIX_BITS)
    small = key == value == 4
    if capability < (8, 0):
        tile = 256 * _items(46 if small else 23, widest)
    else:
        tile = 384 * _items(21, widest)
    parts = [passes * _DIGITS * 8, -(-n // tile) * _DIGITS * 4, passes * 4]
    if passes > 1:
        parts += [n * key, n * value]
    return _aliased(parts)


def scan_storage(n: int, itemsize: int) -> int:
    """Bytes that DeviceScan takes for `n` elements: a state and a value for each tile, read and
    written at once (cub/device/dispatch/dispatch_scan.cuh)."""
    tiles = -(-n // (_SCAN_THREADS * _items(_SCAN_ITEMS, itemsize)))
    return _aliased([(tiles + 32) * 2 * itemsize, 1])


def unique_storage(n: int) -> int:
    """Bytes that DeviceSelect::UniqueByKey takes for `n` pairs."""
    return _aliased([1, (-(-n // _UNIQUE_TILE) + 32) * 16])


def sort_buffers(tensor: torch.Tensor, dim: int, capability: tuple[int, int]) -> tuple[int, ...]:
    """Bytes of the buffers that sorting along `dim` takes besides values and indices.

    After sort_cuda_kernel of native/cuda/Sort.cpp: slices of up to 4096 elements are sorted in
    place, beside one row of indices; a single long one by CUB; several long ones by CUB twice, with
    the number of the slice.
    """
    n = tensor.numel()
    slice_size = tensor.shape[dim] if tensor.dim() else 1
    if n == 0 or tensor.dim() == 0:
        return ()
    if slice_size <= SMALL_SORT:
        return (slice_size * _INDEX,)
    storage = radix_sort_storage(n, tensor.itemsize, _INDEX, capability)
    if slice_size == n:
        return (n * _INDEX, storage)
    return (n * _INDEX, n * _INDEX, n * tensor.itemsize, storage)


def median_buffers(tensor: torch.Tensor, capability: tuple[int, int]) -> tuple[int, ...]:
    """Bytes that the median of all elements takes: they are sorted (median_impl of
    native/cuda/Sorting.cpp)."""
    flat = tensor.numel()
    if flat <= SMALL_SORT:
        return (flat * tensor.itemsize, flat * _INDEX, flat * _INDEX)
    storage = radix_sort_storage(flat, tensor.itemsize, _INDEX, capability)
    return (flat * tensor.itemsize, flat * _INDEX, flat * _INDEX, storage)


def _items(nominal: int, widest: int) -> int:
    """Items of a thread: nominal ones have four bytes (RegBoundScaling of cub/util_arch.cuh)."""
    return max(1, nominal * 4 // max(4, widest))


def _aliased(parts: list[int]) -> int:
    """Parts of one buffer (AliasTemporaries of cub/util_device.cuh)."""
    return sum(math.ceil(part / _ALIGNMENT) for part in parts) * _ALIGNMENT + _ALIGNMENT - 1
