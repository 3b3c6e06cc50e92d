"""Tensors that hold one number in all but a few elements, as masks of a class in each row do: they
tell how much is selected at most, by one of them and by all masks of one tensor."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import zip_longest
from operator import itemgetter
from types import CodeType
from typing import Any, Final

import torch

from gpumem_magic.dryrun.shapes.valueless import Valueless
from gpumem_magic.sources.stacks.frames import outwards
from gpumem_magic.virtual.storages import storage_id

_MADE_OF = {"zeros": 0, "ones": 1}
_WRITING = frozenset({"index_fill_", "index_put_", "scatter", "scatter_"})
_ONE_BY_ONE = frozenset("_to_copy bitwise_not clone eq ge gt le logical_not lt ne".split())
_JOINING = frozenset("bitwise_and bitwise_or cat logical_and logical_or".split())
_CHOOSING: Final[dict[str, Callable[[Any], Any]]] = {
    "aten::argmax": lambda places: places,
    "aten::topk": itemgetter(1),
}
"""Operators that choose places, and these among their results."""

_Known = tuple[float, int, Any]
"""A number, how many elements at most are others, and of which elements this is a mask."""
MASKS = frozenset({torch.bool, torch.uint8})


class MostlyOne:
    """Knows of valueless storages the number, and how many elements at most are others."""

    def __init__(self, valueless: Valueless) -> None:
        self._valueless = valueless

    def most_nonzero(self, tensor: torch.Tensor) -> int:
        """How many elements can differ from zero; exact where the values are known."""
        if tensor not in self._valueless:
            return int(tensor.count_nonzero())
        number, others, part = self._of(tensor) or (1, 0, None)
        if number or 0 in tensor.stride():
            return tensor.numel()
        key, *mask = part or (storage_id(tensor), None, (tensor.storage_offset(), tensor.shape))
        most = min(others, tensor.numel())
        return self._share(key, tuple(mask), most, others) if key in self._valueless.asked else most

    def of_result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `keep` is to be given for what `func(*args, **kwargs)` makes or writes to; None
        where that is not known. To be asked before it happens."""
        name = func._schema.name.removeprefix("aten::")
        if (made := _MADE_OF.get(name.removeprefix("new_").removesuffix("_like"))) is not None:
            return made, 0, None
        if name in _WRITING:
            known = self._of(args[0])
            return known and (known[0], known[1] + _written(name, *args[:3]), None)
        if name == "any" and args[0].dtype is torch.bool:
            known = self._of(args[0])
            return known if len(args) > 1 or (known and self._is_one_of_many(known[2])) else None
        if name in _JOINING:
            return self._joined(name, args[0] if name == "cat" else args[:2])
        if name not in _ONE_BY_ONE or any(isinstance(a, torch.Tensor) for a in args[1:]):
            return None
        if args[0] not in self._valueless:
            return None
        if (known := self._of(args[0])) is None:
            return self._equal(*args) if name == "eq" else None
        one = torch.full((), known[0], dtype=args[0].dtype)
        of_values = {name: value for name, value in kwargs.items() if name != "memory_format"}
        return func(one, *args[1:], **of_values).item(), known[1], None

    def keep(self, tensor: torch.Tensor, known: _Known) -> None:
        """Remember this of a valueless tensor's storage until something else is written to it."""
        self._valueless.numbers[storage_id(tensor)] = (tensor.dtype, *known)

    def chosen(self, name: str, args: tuple[Any, ...], results: Any) -> None:
        """Remember results that are choices of a model, as of experts, and masks of them."""
        asked = self._valueless.asked
        if name in _CHOOSING and isinstance(places := _CHOOSING[name](results), torch.Tensor):
            asked[storage_id(places)] = {}
        elif name == "aten::scatter_" and storage_id(args[2]) in asked:
            asked[storage_id(results)] = {}
        elif name == "aten::sum" and storage_id(args[0]) in asked and (known := self._of(args[0])):
            each = torch.full_like(results, known[1] // max(1, results.numel()))
            results.copy_(each)
            ends = each.untyped_storage()
            self._valueless.ends[storage_id(results)] = ends, ends

    def _joined(self, name: str, masks: Any) -> _Known | None:
        """Of masks that are put together: what one of them selects, or what all of them do."""
        known = [self._of(mask) for mask in masks if isinstance(mask, torch.Tensor)]
        selected = [each[1] for each in known if each and not each[0]]
        if len(selected) < len(masks):
            return (0, min(selected), None) if selected and name.endswith("and") else None
        return 0, min(selected) if name.endswith("and") else sum(selected), None

    def _equal(self, tensor: torch.Tensor, number: float) -> _Known | None:
        """Of `tensor == number`, which is one of the masks of these elements of a storage."""
        key, elements = storage_id(tensor), (tensor.storage_offset(), tensor.shape, tensor.stride())
        if key not in self._valueless.asked:
            return None
        self._valueless.asked[key].setdefault((elements, _place()), set()).add(number)
        return 0, tensor.numel(), (key, elements, number)

    def _is_one_of_many(self, part: Any) -> bool:
        """Whether one place in the code asks for several numbers, this one among them: then it is
        taken to be there."""
        key, elements, number = part or (0, None, None)
        asked = self._valueless.asked.get(key, {}).items()
        return any(of == elements and {number} < numbers for (of, _), numbers in asked)

    def _share(self, key: int, mask: tuple[Any, Any], most: int, of_all: int) -> int:
        """What is left for a mask of a tensor when others, by which one place in the code selects,
        have had theirs: experts share the tokens, and the first ones take the most."""
        shares = self._valueless.shares.setdefault(key, {})
        if mask not in shares:
            place = _place()
            had = (n for (of, _), (n, at) in shares.items() if (of, at) == (mask[0], place))
            shares[mask] = max(0, min(most, of_all - sum(had))), place
        return shares[mask][0]

    def _of(self, tensor: torch.Tensor) -> _Known | None:
        if tensor in self._valueless:
            found = self._valueless.numbers.get(storage_id(tensor))
            return found[1:] if found and found[0] is tensor.dtype else None
        if not tensor.numel() or tensor.nbytes < tensor.untyped_storage().nbytes():
            return None
        number = tensor.reshape(-1)[0]
        return number.item(), int((tensor != number).count_nonzero()), None


def _place() -> tuple[CodeType, int] | None:
    """The instruction that called torch."""
    for frame in outwards(sys._getframe(1)):
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in ("torch", "gpumem_magic"):
            return frame.f_code, frame.f_lasti
    return None


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
