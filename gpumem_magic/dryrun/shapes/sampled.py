"""Places that are sampled by what a tensor holds there, as detectors sample boxes of the background
and a few of objects: what is read at these places is one number in all but a few."""

from __future__ import annotations

from typing import Any, cast

import torch

from gpumem_magic.dryrun.shapes.mostly_one import MostlyOne
from gpumem_magic.dryrun.shapes.valueless import Valueless
from gpumem_magic.virtual.storages import storage_id

_Places = tuple[object, float, int]
"""Contents of a storage, the number that they are at these places, and at how many at most not."""


class Sampled:
    """Knows of masks and of indices which places they are."""

    def __init__(self, valueless: Valueless, mostly_one: MostlyOne) -> None:
        self._valueless = valueless
        self._mostly_one = mostly_one

    def follow(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Remember it of what an operator has returned."""
        if name == "aten::index" and (read := self._read(*args)) is not None:
            self._mostly_one.keep(result, read)
        elif (places := self._places(name, args, result)) is not None:
            self._valueless.places[storage_id(result)] = places

    def _places(self, name: str, args: tuple[Any, ...], result: Any) -> _Places | None:
        if name == "aten::eq" and args[0] in self._valueless and not _is_tensor(args[1]):
            contents = self._valueless.contents.setdefault(storage_id(args[0]), object())
            return contents, args[1], 0
        if name in ("aten::index", "aten::nonzero"):
            return self._of(args[0])
        if (written := _written_at(name, args)) is not None:
            all_are_there = self._mostly_one.most_nonzero(result) == written.numel()
            return self._of(written) if all_are_there else None
        return self._joined(args) if name in ("aten::bitwise_or", "aten::logical_or") else None

    def _joined(self, masks: tuple[Any, ...]) -> _Places | None:
        """Of masks of which at least one is known; places in others may hold anything."""
        if not all(map(_is_tensor, masks)):
            return None
        known = [self._of(mask) for mask in masks]
        if (found := next(filter(None, known), None)) is None:
            return None
        others = (
            each[2] if each and each[:2] == found[:2] else self._mostly_one.most_nonzero(mask)
            for mask, each in zip(masks, known, strict=True)
        )
        return *found[:2], sum(others)

    def _read(self, tensor: torch.Tensor, indices: Any) -> Any:
        """What `MostlyOne` is to keep of `tensor[indices]`."""
        places = self._of(indices[0]) if len(indices) == 1 and indices[0] is not None else None
        contents = self._valueless.contents.get(storage_id(tensor))
        return (*places[1:], None) if places and places[0] is contents else None

    def _of(self, tensor: torch.Tensor) -> _Places | None:
        return self._valueless.places.get(storage_id(tensor))


def _written_at(name: str, args: tuple[Any, ...]) -> torch.Tensor | None:
    """The places that an operator writes to: a number, from PyTorch 2.15 on, by `index_fill_`."""
    if name == "aten::index_put_" and len(args[1]) == 1:
        return cast("torch.Tensor | None", args[1][0])
    if name == "aten::index_fill_" and args[0].dim() == 1:
        return cast(torch.Tensor, args[2])
    return None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
