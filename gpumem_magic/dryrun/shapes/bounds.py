"""What is known of small tensors whose values are not: the least and the greatest that they can be.
So `unknown | True` is True, and a loop that waits for a bound ends there."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from itertools import cycle, product
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from gpumem_magic.dryrun.shapes.valueless import Valueless, tensor_over
from gpumem_magic.virtual.storages import storage_id
from gpumem_magic.virtual.traits import tensors_among

Interval = tuple[torch.Tensor, torch.Tensor]
"""Two ends: what a tensor is where what it comes from is least, and where that is greatest. Of
`1 - mask` the one is the greater. What comes from more than one unknown tensor: least, greatest."""

_MOST = 2**12
"""Elements of operands up to which an operator is asked twice."""

_ALIKE = frozenset(
    f"aten::{name}"
    for name in (
        "add all any amax amin bitwise_not cat clone logical_and logical_not logical_or max "
        "maximum min minimum stack sum _to_copy"
    ).split()
)
"""Operators that rise, or fall, with all operands: their extremes lie where all have theirs."""

_EACH_ITS_WAY = frozenset(f"aten::{name}" for name in ("ge", "gt", "le", "lt", "rsub"))
"""Operators that rise or fall with each of two operands: their extremes lie at one of four ends."""

_OF_FLAGS = frozenset(f"aten::{name}" for name in ("bitwise_and", "bitwise_or", "eq", "mul", "ne"))
"""Operators that are so for values of 0 and 1 alone."""

_OF_TRUTH = frozenset(
    f"aten::{name}" for name in "all any logical_and logical_not logical_or _to_copy".split()
)
"""Operators that may ask whether a value is 0: that can lie between two that are not."""

_FOLLOWED = _ALIKE | _EACH_ITS_WAY | _OF_FLAGS

_CHECKING = frozenset(f"aten::{name}" for name in ("eq", "isinf", "isnan", "ne"))
"""Operators that checks of a number are made of."""

MAY_BE_BOUNDED = _FOLLOWED | _CHECKING
"""Those that `Bounds.of_result` may know something of."""

_PICKING = frozenset(f"aten::{name}" for name in ("gather", "index", "index_select"))
"""Operators whose results are values of their first operand, whatever the indices say."""

_PLACES = frozenset({"aten::argmax", "aten::argmin"})
"""Operators whose results are places along one dimension of their operand, or in all of it."""

_MOST_PICKED = 2**20
"""Elements up to which it is looked at, which values there are to pick."""


class Bounds:
    """The intervals that elements of valueless tensors lie in, as far as they are known."""

    def __init__(self, valueless: Valueless) -> None:
        self._valueless = valueless

    def of_result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The ends of what `func(*args, **kwargs)`, which has one result, can be; None where that
        is not told by those of its operands."""
        name, tensors = func._schema.name, tensors_among(args, kwargs)
        if (answer := _if_finite(name, args)) is not None:
            end = torch.full(args[0].shape, answer)
            return end, end
        if name not in _FOLLOWED or sum(tensor.numel() for tensor in tensors) > _MOST:
            return None
        found = {id(tensor): self._ends(tensor) for tensor in tensors}
        intervals = {key: each for key, each in found.items() if each is not None}
        if len(intervals) < len(found) or "alpha" in kwargs:
            return None
        if not _is_monotone(name, args, intervals.values()):
            return None
        unknown = [key for key, each in intervals.items() if each[0] is not each[1]]
        if several := len(unknown) > 1:
            intervals |= {key: _in_order(intervals[key]) for key in unknown}
        corners = product((0, 1), repeat=1 if name in _ALIKE else len(unknown))
        ends = (dict(zip(unknown, cycle(corner), strict=False)) for corner in corners)
        end_of = (functools.partial(_end, intervals, corner) for corner in ends)
        results = [func(*tree_map_only(torch.Tensor, end, args), **kwargs) for end in end_of]
        if not several and name not in _OF_FLAGS:  # which may rise here and fall there
            return results[0], results[-1]
        return functools.reduce(torch.minimum, results), functools.reduce(torch.maximum, results)

    def attach(self, tensor: torch.Tensor, interval: Interval) -> None:
        """Remember the ends of a new tensor, and write the first where a stand-in is read."""
        low, high = (end.untyped_storage() for end in interval)
        self._valueless.ends[storage_id(tensor)] = low, high
        torch.ops.aten.copy_.default(tensor, interval[0])

    def pick(self, func: Any, args: tuple[Any, ...], picked: Any) -> None:
        """Remember between which whole numbers elements of `picked` lie, which an operator has
        taken from its operand, or which are places in it."""
        name, source = func._schema.name, args[0]
        if name == "aten::nonzero" and source.numel():
            self._valueless.ends[storage_id(picked)] = 0, max(source.shape, default=1) - 1
        if name in _PLACES and source.numel():
            places = (
                source.numel() if len(args) == 1 or source.dim() == 0 else source.shape[args[1]]
            )
            self._valueless.ends[storage_id(picked)] = 0, places - 1
        if written := name == "aten::scatter_" and self._replaces_all(*args):
            source = args[3]
        if not (written or name in _PICKING) or source.is_floating_point():
            return
        if 0 < source.numel() <= _MOST_PICKED and (interval := self._interval(source)) is not None:
            least, most = interval[0].min().item(), interval[1].max().item()
            self._valueless.ends[storage_id(picked)] = least, most

    def go_through(self, places: torch.Tensor) -> None:
        """A loop goes over what `nonzero` found: one after the other, where all may be found."""
        known, count = self._valueless.ends.get(storage_id(places)), places.numel()
        is_whole = places.dtype is torch.int64 and count == len(places) > 0
        if is_whole and known == (0, count - 1):
            numbers = torch.arange(count).untyped_storage()
            self._valueless.ends[storage_id(places)] = numbers, numbers

    def _replaces_all(self, target: Any, dim: int, index: Any, source: Any, *_: Any) -> bool:
        """Whether `scatter_` leaves none of the values that were there."""
        told = isinstance(source, torch.Tensor) and index not in self._valueless
        return told and target.dim() == 1 and len(index.unique()) == target.numel()

    def most_different(self, tensor: torch.Tensor) -> int:
        """How many elements of a tensor can differ."""
        interval = None if tensor.is_floating_point() else self._interval(tensor)
        if interval is None or not tensor.numel():
            return tensor.numel()
        return min(tensor.numel(), int(interval[1].max()) - int(interval[0].min()) + 1)

    def greatest(self, tensor: torch.Tensor) -> Any:
        """The whole number in a tensor where there are as many as there can be; None where there
        is no telling. So the start of a slice is less if its end is greater."""
        interval = None if tensor.is_floating_point() else self._ends(tensor)
        return None if interval is None else interval[1].item()

    def _interval(self, tensor: torch.Tensor) -> Interval | None:
        """The least and the greatest."""
        ends = self._ends(tensor)
        return None if ends is None else _in_order(ends)

    def _ends(self, tensor: torch.Tensor) -> Interval | None:
        if tensor not in self._valueless:
            return tensor, tensor
        known = self._valueless.ends.get(storage_id(tensor))
        if known is None and tensor.dtype is torch.bool:
            known = False, True
        if known is None:
            return None
        if not isinstance(known[0], torch.UntypedStorage):
            low, high = (torch.full(tensor.shape, end, dtype=tensor.dtype) for end in known)
            return low, high
        geometry = tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset())
        low, high = (tensor_over(storage, *geometry) for storage in known)
        return low, high


def _if_finite(name: str, args: tuple[Any, ...]) -> bool | None:
    """What a check of one number for NaN or infinity finds where it is neither, as is assumed of a
    loss; None of other operators. torch.isfinite asks `x == x` and `abs(x) != inf`."""
    if name not in _CHECKING or args[0].numel() != 1:
        return None
    if len(args) == 1:
        return False
    itself = args[1] is args[0]
    of_infinity = isinstance(args[1], float) and args[1] == math.inf
    return itself == (name == "aten::eq") if itself or of_infinity else None


def _is_monotone(name: str, args: tuple[Any, ...], intervals: Collection[Interval]) -> bool:
    """Whether an operator of `_FOLLOWED` is so between these ends."""
    if name in _OF_FLAGS:
        numbers = (arg for arg in args if isinstance(arg, (int, float)))
        return all(map(_is_flags, intervals)) and all(number in (0, 1) for number in numbers)
    ends = (end for interval in intervals for end in interval)
    return name not in _OF_TRUTH or all(bool((end >= 0).all()) for end in ends)


def _is_flags(interval: Interval) -> bool:
    return all(bool(((end >= 0) & (end <= 1)).all()) for end in interval)


def _in_order(ends: Interval) -> Interval:
    if ends[0] is ends[1]:
        return ends
    return torch.minimum(*ends), torch.maximum(*ends)


def _end(intervals: dict[int, Any], ends: dict[int, int], tensor: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = intervals[id(tensor)][ends.get(id(tensor), 0)]
    return found
