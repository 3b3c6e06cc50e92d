"""Where values leave tensors for the host: what is unknown gets a stand-in, and is named."""

from __future__ import annotations

import sys
from typing import Any

import torch

from gpumem_magic.dryrun.shapes.bounds import Bounds
from gpumem_magic.dryrun.shapes.stand_ins import Guesses
from gpumem_magic.dryrun.shapes.valueless import Valueless
from gpumem_magic.virtual.patches import Patches


class ReadValues:
    """Replaces the methods of `torch.Tensor` that tell values."""

    def __init__(self, valueless: Valueless, guesses: Guesses) -> None:
        self._valueless = valueless
        self._guesses = guesses

    def install(self, patches: Patches) -> None:
        """Watch them until the patches are taken back."""
        tensor: Any = torch.Tensor
        for name in ("tolist", "numpy", "__array__"):
            patches.set(tensor, name, self._reading(name, getattr(tensor, name)))
        patches.set(tensor, "__iter__", self._iteration(tensor.__iter__))
        patches.set(tensor, "item", self._item(tensor.item))
        patches.set(tensor, "__bool__", self._decision(tensor.__bool__))
        for owner in (torch, tensor):
            patches.set(owner, "allclose", self._comparison(owner.allclose))
        tracing: Any = torch.jit._trace  # whose check compares what was done twice, and no more
        patches.set(tracing, "_check_trace", self._guesses.unasked()(tracing._check_trace))

    def _item(self, item: Any) -> Any:
        def stand_in_for_item(tensor: torch.Tensor) -> Any:
            value = item(tensor)
            return self._guesses.number(value) if tensor in self._valueless else value

        return stand_in_for_item

    def _iteration(self, iterate: Any) -> Any:
        bounds = Bounds(self._valueless)

        def go_through(tensor: torch.Tensor) -> Any:
            if tensor in self._valueless:
                bounds.go_through(tensor)
            return iterate(tensor)

        return go_through

    def _decision(self, truth: Any) -> Any:
        def decide(tensor: torch.Tensor) -> bool:
            if tensor not in self._valueless or tensor.numel() != 1:
                return bool(truth(tensor))
            self._guesses.needed("whether a tensor is true", decides=True)
            with self._guesses.unasked():
                usual = bool(truth(tensor))  # what checks are taken to find lies in their memory
            return self._guesses.decision(sys._getframe(1), usual=usual)

        return decide

    def _comparison(self, allclose: Any) -> Any:
        """torch takes it apart, down to a number of which it tells no more than what it is."""

        def compare(one: torch.Tensor, other: torch.Tensor, *args: Any, **kwargs: Any) -> bool:
            found = bool(allclose(one, other, *args, **kwargs))
            if one not in self._valueless and other not in self._valueless:
                return found
            self._guesses.needed("whether tensors are equal", decides=True)
            return True

        return compare

    def _reading(self, name: str, read: Any) -> Any:
        def read_values(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor in self._valueless:
                self._guesses.needed(f"the values of a tensor, by {name.strip('_')}()")
            return read(tensor, *args, **kwargs)

        return read_values
