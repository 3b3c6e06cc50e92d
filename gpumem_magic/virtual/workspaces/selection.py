"""What sorting, finding the largest elements and drawing without order take on a GPU, in bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from gpumem_magic.virtual.storages import Blocks
from gpumem_magic.virtual.workspaces.reductions import Processors
from gpumem_magic.virtual.workspaces.scratch import INDEX, Args, Kwargs, ScratchMemory

SMALL_SORT = 4096
_LONGEST_MODE = 2048
_ENOUGH_FOR_ALL_PROCESSORS = 1_000_000
_MANY_SLICES = 128

_ALIGNMENT, _RADIX_BITS, _RADIX_DIGITS = 256, 8, 256
_SINGLE_TILE_THREADS, _SINGLE_TILE_ITEMS = 256, 19
_NARROW = 4  # bytes of a key
_FEW_BYTES = {(1, 0): (512, 19), (2, 0): (512, 19), (1, 8): (384, 18), (2, 8): (512, 23)}
"""For keys of fewer bytes and their values', from Hopper on."""
_SCAN_THREADS, _SCAN_ITEMS = 128, 15
_UNIQUE_THREADS, _UNIQUE_ITEMS = 64, 11
_SCANNED_BY_KEY, _RUNS, _SELECTED_BYTES, _UNIQUE_SLICES, _MERGED = 2304, 768, 5120, 320, 4352
"""Elements, or their bytes, that a block of threads takes in CUB's and Thrust's kernels."""


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
    threads, items = _one_sweep(key, value, capability)
    tile = threads * _items(items, widest)
    parts = [passes * _RADIX_DIGITS * 8, -(-n // tile) * _RADIX_DIGITS * 4, passes * 4]
    if passes > 1:
        parts += [n * key, n * value]
    return _aliased(parts)


def _one_sweep(key: int, value: int, capability: tuple[int, int]) -> tuple[int, int]:
    """Threads of a block and what each takes, of four bytes, with offsets of 64 bits
    (cub/device/dispatch/tuning/tuning_radix_sort.cuh)."""
    if capability < (8, 0):
        return 256, 46 if key == value == _NARROW else 23
    if capability < (9, 0):
        return 384, 17 if key == _NARROW else 21
    if key < _NARROW:
        return _FEW_BYTES[key, value]
    if key == _NARROW:
        return 384, 29 if value == INDEX else 17 if value else 19
    return 384, 24 if value == INDEX else 30


def scan_storage(n: int, itemsize: int) -> int:
    """Bytes that DeviceScan takes for `n` elements: a state and a value for each tile, read and
    written at once (cub/device/dispatch/dispatch_scan.cuh)."""
    tiles = -(-n // (_SCAN_THREADS * _items(_SCAN_ITEMS, itemsize)))
    return _aliased([(tiles + 32) * 2 * itemsize, 1])


def scan_by_key_storage(n: int, key: int) -> int:
    """Bytes that DeviceScan takes for `n` elements in runs of equal keys of `key` bytes: the last
    key of each tile, and its state."""
    tiles = -(-n // _SCANNED_BY_KEY)
    return _aliased([tiles * key, (tiles + 32) * 16])


def merge_sort_storage(n: int, pair: Sequence[int]) -> int:
    """Bytes that Thrust's sort of `n` elements takes where they are compared by a function: a
    second buffer for each part of a `pair`, and where parts of the tiles meet."""
    return _aliased([*(n * part for part in pair), (n // _MERGED + 2) * 8])


def unique_storage(n: int, widest: int) -> int:
    """Bytes that DeviceSelect::UniqueByKey takes for `n` pairs, the wider of `widest` bytes."""
    tile = _UNIQUE_THREADS * _items(_UNIQUE_ITEMS, widest)
    return _aliased([1, (-(-n // tile) + 32) * 16])


def distinct_storage(n: int, key: int) -> int:
    """Bytes that DeviceSelect::Unique takes for `n` elements of `key` bytes."""
    return _aliased([1, (-(-n // (_SELECTED_BYTES // max(4, key))) + 32) * 8])


def sort_slices(memory: ScratchMemory, slices: int, length: int, key: int) -> None:
    """What sorting `slices` of `length` elements of `key` bytes takes besides values and indices.

    After sort_cuda_kernel of native/cuda/Sort.cpp and launch_stable_sort_kernel of SortStable.cu:
    slices of up to 4096 elements are sorted in place, beside one row of indices; a single one, and
    very long ones, by CUB in turn; some by CUB twice, with the number of the slice; many by CUB's
    segmented sort.
    """
    n = slices * length
    if n == 0:
        return
    if length <= SMALL_SORT:
        memory.borrow(length * INDEX)
    elif slices == 1 or length >= _ENOUGH_FOR_ALL_PROCESSORS:
        with memory.blocks() as numbers:
            numbers.take(length * INDEX)
            for _ in range(slices):
                memory.borrow(radix_sort_storage(length, key, INDEX, memory.capability))
    elif slices < _MANY_SLICES:
        with memory.blocks() as places:
            places.take(n * INDEX, n * INDEX)
            memory.borrow(n * key, radix_sort_storage(n, key, INDEX, memory.capability))
            bits = slices.bit_length()
            memory.borrow(radix_sort_storage(n, INDEX, 0, memory.capability, bits))
    else:
        memory.borrow(n * INDEX, _aliased([n * key, n * INDEX]))


def _sort_along(memory: ScratchMemory, tensor: torch.Tensor, dim: int) -> None:
    if tensor.dim():
        length = tensor.shape[dim]
        sort_slices(memory, tensor.numel() // max(1, length), length, tensor.itemsize)


def _items(nominal: int, widest: int) -> int:
    """Items of a thread: nominal ones have four bytes (RegBoundScaling of cub/util_arch.cuh)."""
    return max(1, nominal * 4 // max(4, widest))


def _aliased(parts: list[int]) -> int:
    """Parts of one buffer (AliasTemporaries of cub/util_device.cuh)."""
    return sum(math.ceil(part / _ALIGNMENT) for part in parts) * _ALIGNMENT + _ALIGNMENT - 1


_THREADS = 256
_DIGITS = 256
_BLOCKS_OF_A_PROCESSOR = 6  # its 65,536 registers by 40 for each thread
_FEWEST_ITEMS, _MOST_ITEMS = 4, 64
_LONG_ENOUGH = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
"""(Slices at most, elements of each at least) for several blocks of threads to share a slice."""

_LONG_ENOUGH_FOR_MANY = 400


def topk(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """The best elements of each slice, and where they are; put in order if asked."""
    tensor, k = args[:2]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    in_order = args[4] if len(args) > 4 else kwargs.get("sorted", True)
    with memory.blocks() as buffers:
        shared = top_buffers(tensor, k, dim, memory.processors)
        buffers.take(*shared)
        if shared:
            for _ in range(2):
                memory.borrow(scan_by_key_storage(shared[-1] // 4, 4))
    if in_order and k > SMALL_SORT:
        with memory.blocks() as copies:
            best = tensor.narrow(dim, 0, k)
            copies.take(best.numel() * INDEX, best.numel() * best.dtype.itemsize)
            _sort_along(memory, best, dim)
            memory.borrow(best.numel() * INDEX)


def sort(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Sort each slice."""
    _sort_along(memory, args[0], _sorted_dim(args, kwargs))


def median(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """The median of all elements: they are sorted (median_impl of native/cuda/Sorting.cpp)."""
    if len(args) == 1:
        n, key = args[0].numel(), args[0].itemsize
        with memory.blocks() as in_order:
            in_order.take(n * key, n * INDEX)
            sort_slices(memory, 1, n, key)


def multinomial(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """multinomial_out of native/Distributions.cpp: one draw of an exponential for each weight,
    which are looked at first; with replacement, sorted sums of them
    (native/cuda/MultinomialKernel.cu)."""
    weights, count = args[:2]
    if count > 1 and (args[2] if len(args) > 2 else kwargs.get("replacement", False)):
        memory.borrow(*[weights.nbytes] * 3)
        return
    with memory.blocks() as verdicts:
        _check_weights(memory, verdicts, weights)
        with memory.blocks() as copies:
            copies.take(weights.nbytes)
            if count > 1:
                copies.take(weights.narrow(-1, 0, count).nbytes)
                topk(memory, (weights, count), kwargs)


def _check_weights(memory: ScratchMemory, verdicts: Blocks, weights: torch.Tensor) -> None:
    """Whether all weights are finite and none is negative, and whether those of a row are all
    zero."""
    with memory.blocks() as bounds:
        for order in ("max", "min"):
            bounds.take(weights.itemsize)
            memory.reduce(weights, None, order)
            bounds.take(1)
        verdicts.take(1)
    with memory.blocks() as sums:
        rows = weights.numel() // max(1, weights.shape[-1])
        sums.take(rows * weights.itemsize)
        memory.reduce(weights, [-1], "sum")
        if weights.dim() > 1:
            sums.take(rows)
        verdicts.take(1)
    memory.borrow(1)


def mode(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Long slices are sorted one by one, in a copy (mode_kernel_impl of
    native/cuda/TensorModeKernel.cpp)."""
    tensor = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    length = tensor.shape[dim] if tensor.dim() else 1
    if length > _LONGEST_MODE:
        with memory.blocks() as copy:
            copy.take(tensor.nbytes, length * INDEX)
            memory.borrow(_aliased([length * tensor.itemsize, length * INDEX]))


def membership(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Every element is compared with all others where those are few, else both are sorted, without
    their doubles, and then together (isin_Tensor_Tensor_out and isin_sorting in
    native/TensorCompare.cpp, isin_default_kernel_gpu in native/cuda/TensorCompare.cu)."""
    elements, others = args[:2]
    if not (isinstance(others, torch.Tensor) and isinstance(elements, torch.Tensor)):
        return
    if others.numel() < 10 * elements.numel() ** 0.145:
        memory.borrow(elements.numel() * others.numel(), elements.numel())
        return
    with memory.blocks() as kept:
        both = elements.numel() + others.numel()
        with memory.blocks() as distinct:
            if not kwargs.get("assume_unique", False):
                sort_once(memory, elements, (distinct.take, kept.take, None))
                sort_once(memory, others, (distinct.take, None, None))
            kept.take(both * elements.itemsize)
        kept.take(both * elements.itemsize, both * INDEX)
        sort_slices(memory, 1, both, elements.itemsize)
        kept.take(both)
        memory.borrow(both)
        kept.take(both)


Keep = Callable[[int], object]
"""Takes so many bytes that are kept."""


def unique(memory: ScratchMemory, args: Args, out: Sequence[torch.Tensor]) -> None:
    """_unique and _unique2 of native/cuda/Unique.cu."""
    sort_once(memory, args[0], _kept_of(memory, out, args[2:]))


def unique_consecutive(memory: ScratchMemory, args: Args, out: Sequence[torch.Tensor]) -> None:
    """As `unique` and `unique_slices`, of what is in order."""
    tensor, asked, dim = args[0], args[1:3], args[3] if len(args) > 3 else None
    if dim is None:
        sort_once(memory, tensor, _kept_of(memory, out, asked), in_order=True)
    else:
        unique_slices(memory, (tensor, dim, True, *asked), out, in_order=True)


def unique_slices(
    memory: ScratchMemory, args: Args, out: Sequence[torch.Tensor], in_order: bool = False
) -> None:
    """unique_dim_cuda_template of native/cuda/Unique.cu: the slices' numbers are sorted."""
    tensor, dim = args[:2]
    n = tensor.shape[dim]
    keep_values, keep_inverse, keep_counts = _kept_of(memory, out, args[3:])
    with memory.blocks() as buffers:
        if not tensor.movedim(dim, 0).is_contiguous():
            buffers.take(tensor.nbytes)
        buffers.take(n * INDEX)
        if not in_order:
            memory.borrow(merge_sort_storage(n, (INDEX,)))
        if keep_inverse:
            keep_inverse(n * INDEX)
            with memory.blocks() as places:
                places.take(n * INDEX)
                memory.borrow(_aliased([]))
                memory.borrow(scan_storage(n, INDEX))
        if keep_counts:
            buffers.take((n + 1) * INDEX)
        memory.borrow(_aliased([1, 1, 1, (-(-n // _UNIQUE_SLICES) + 32) * 8]))
        if keep_counts:
            keep_counts(out[2].nbytes)
        keep_values(out[0].nbytes)


def sort_once(
    memory: ScratchMemory,
    tensor: torch.Tensor,
    kept: tuple[Keep, Keep | None, Keep | None],
    in_order: bool = False,
) -> None:
    """UniqueCub of native/cuda/UniqueCub.cu.

    kept: what keeps the values, where each element is among them and how many there are of each;
    None: not asked for.
    """
    keep_values, keep_inverse, keep_counts = kept
    n, key = tensor.numel(), tensor.itemsize
    if tensor.dtype is torch.bool:  # those that are true are counted
        for keep, size in ((keep_values, 2), (keep_counts, 2 * INDEX), (keep_inverse, n * INDEX)):
            if keep:
                keep(size)
        return
    with memory.blocks() as buffers:
        if not tensor.is_contiguous():
            buffers.take(tensor.nbytes)
        if not in_order:
            buffers.take(n * key)
            carried = INDEX if keep_inverse else 0
            with memory.blocks() as numbers:
                numbers.take(n * carried)
                buffers.take(n * carried)
                memory.borrow(radix_sort_storage(n, key, carried, memory.capability))
        if keep_inverse:
            keep_inverse(n * INDEX)
            memory.borrow(n * (4 if in_order else INDEX), scan_storage(n, 4))
        keep_values(n * key)
        buffers.take(INDEX)
        if keep_counts:
            keep_counts(n * INDEX)
            memory.borrow(_aliased([(n // _RUNS + 33) * 16]))
        else:
            memory.borrow(distinct_storage(n, key))


def _kept_of(
    memory: ScratchMemory, out: Sequence[torch.Tensor], asked: Sequence[bool]
) -> tuple[Keep, Keep | None, Keep | None]:
    """asked: whether for each result but the first, which are empty where not."""
    keeps: list[Keep | None] = [None, None]
    for place, (result, wanted) in enumerate(zip(out[1:], (*asked, False, False), strict=False)):
        if wanted:
            keeps[place] = functools.partial(memory.place_as, result)
        else:
            memory.place_as(result, 0)
    return functools.partial(memory.place_as, out[0]), keeps[0], keeps[1]


def permutation(memory: ScratchMemory, args: Args, kwargs: Kwargs) -> None:
    """Of `randperm`: its highest number first, to see whether the type has it
    (check_supported_max_int_with_precision of native/TensorFactories.h)."""
    memory.borrow((kwargs.get("dtype") or torch.int64).itemsize)
    memory.borrow(*permutation_buffers(args[0], memory.capability))


def top_buffers(tensor: torch.Tensor, k: int, dim: int, processors: Processors) -> tuple[int, ...]:
    """Of `topk`, where several blocks of threads share a slice; () where one block has each
    (native/cuda/TensorTopK.cu)."""
    length = tensor.shape[dim] if tensor.dim() else 1
    slices = tensor.numel() // max(1, length)
    least = next((n for most, n in _LONG_ENOUGH if slices <= most), _LONG_ENOUGH_FOR_MANY)
    if k == 0 or tensor.numel() == 0 or length < least:
        return ()
    items = math.ceil(slices * length / (processors.count * _BLOCKS_OF_A_PROCESSOR * _THREADS))
    items = max(_FEWEST_ITEMS, min(items, _MOST_ITEMS))
    blocks = slices * math.ceil(length / (items * _THREADS))
    value = tensor.dtype.itemsize
    return (
        slices * value,
        2 * slices * 4,
        2 * slices * max(4, value),
        blocks * _DIGITS * 2,
        slices * _DIGITS * 4,
        blocks * 4,
        blocks * 4,
    )


def permutation_buffers(n: int, capability: tuple[int, int]) -> tuple[int, ...]:
    """Of `randperm`: numbers in order, random keys, and both sorted (randperm_out_cuda of
    native/cuda/Randperm.cu)."""
    if n < 2:
        return ()
    distinct = n + (6 * n * n + 1) / (-12 * math.log(0.9))
    bits = min(64, math.ceil(math.log2(distinct)))
    key = 8 if bits > 32 else 4
    return n * 8, n * key, n * key, radix_sort_storage(n, key, 8, capability, bits)


def _sorted_dim(args: Args, kwargs: Kwargs) -> int:
    """The dimension that `sort` was asked for, in either of its overloads."""
    named = kwargs.get("dim")
    if named is None:
        named = next((a for a in args[1:] if isinstance(a, int) and not isinstance(a, bool)), -1)
    return int(named)
