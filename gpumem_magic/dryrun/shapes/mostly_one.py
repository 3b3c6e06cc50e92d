"""Tensors that hold one number in all but a few elements, as masks of a class in each row do: they
tell how much is selected at most."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Any

import torch

from gpumem_magic.dryrun.shapes.valueless import Valueless
from gpumem_magic.virtual.storages import storage_id

_MADE_OF = {"zeros": 0, "ones": 1}
_WRITING = frozenset({"index_fill_", "index_put_", "scatter", "scatter_"})
_ONE_BY_ONE = frozenset("_to_copy bitwise_not clone eq ge gt le logical_not lt ne".split())
MASKS = frozenset({torch.bool, torch.uint8})


class MostlyOne:
    """Knows of valueless storages the number, and how many elements at most are others."""

    def __init__(self, valueless: Valueless) -> None:
        self._valueless = valueless

    def most_nonzero(self, tensor: torch.Tensor) -> int:
        """How many elements can differ from zero; exact where the values are known."""
        if tensor not in self._valueless:
            return int(tensor.count_nonzero())
        number, others = self._of(tensor) or (1, 0)
        return tensor.numel() if number or 0 in tensor.stride() else min(others, tensor.numel())

    def of_result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `keep` is to be given for what `func(*args, **kwargs)` makes or writes to; None
        where that is not known. To be asked before it happens."""
        name = func._schema.name.removeprefix("aten::")
        if (made := _MADE_OF.get(name.removeprefix("new_").removesuffix("_like"))) is not None:
            return made, 0
        if name in _WRITING:
            known = self._of(args[0])
            return known and (known[0], known[1] + _written(name, *args[:3]))
        if name not in _ONE_BY_ONE or any(isinstance(a, torch.Tensor) for a in args[1:]):
            return None
        if args[0] not in self._valueless or (known := self._of(args[0])) is None:
            return None
        one = torch.full((), known[0], dtype=args[0].dtype)
        return func(one, *args[1:], **kwargs).item(), known[1]

    def keep(self, tensor: torch.Tensor, known: tuple[float, int]) -> None:
        """Remember this of a valueless tensor's storage until something else is written to it."""
        self._valueless.numbers[storage_id(tensor)] = (tensor.dtype, *known)

    def _of(self, tensor: torch.Tensor) -> tuple[float, int] | None:
        if tensor in self._valueless:
            found = self._valueless.numbers.get(storage_id(tensor))
            return found[1:] if found and found[0] is tensor.dtype else None
        if not tensor.numel() or tensor.nbytes < tensor.untyped_storage().nbytes():
            return None
        number = tensor.reshape(-1)[0]
        return number.item(), int((tensor != number).count_nonzero())


def _written(name: str, tensor: torch.Tensor, place: Any, index: Any) -> int:
    """How many elements are written to by `_WRITING`, at most. place: a dimension, or indices."""
    if isinstance(place, int):
        each = tensor.numel() // max(tensor.shape[place], 1) if name == "index_fill_" else 1
        return int(each * index.numel())
    given = [i for i in place if i is not None]
    if any(i.dtype in MASKS for i in given):
        return tensor.numel()
    whole = (n for n, i in zip_longest(tensor.shape, place) if i is None)
    return int(torch.broadcast_shapes(*(i.shape for i in given)).numel() * math.prod(whole))
