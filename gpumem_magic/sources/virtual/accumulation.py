"""Tells when torch's own code would add in place: under a dispatch mode it never does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic.sources.virtual.storages import storage_id

_Holds = tuple[int, int, int]
"""Python references, uses of the tensor and uses of its storage."""


_aten = torch.ops.aten
_WRITES_INTO_ZEROS = {
    _aten.index_put.default: _aten.index_put_.default,
    _aten.index_add.default: _aten.index_add_.default,
    _aten.put.default: _aten.put_.default,
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter_add.default: _aten.scatter_add_.default,
    _aten.masked_scatter.default: _aten.masked_scatter_.default,
}
"""What fills a gradient of zeros in torch/csrc/autograd/FunctionsManual.cpp and native code called
there: out of place where areAnyTensorSubclassLike says so, as under a dispatch mode."""

_MAY_ADD = frozenset({_aten.index_put.default, _aten.put.default})


class Accumulation:
    """What torch does in place where nobody else holds the first argument, but not where a dispatch
    mode watches: the sum of two gradients (can_accumulate_inplace in
    torch/csrc/autograd/input_buffer.cpp), that of the bias of a linear layer whose input is not
    contiguous (linear in native/Linear.cpp), and writes into a new gradient of zeros.

    How many holds a tensor has when torch's code alone has it, and the tracker looks at it, depends
    on the versions of Python and torch; it is measured once.
    """

    def __init__(self) -> None:
        self._gradient = _measure(_add_gradients)
        self._product = _measure(_add_bias)
        self._zeros = _measure(_index)

    @staticmethod
    def concerns(func: Any) -> bool:
        """Whether the operator is one of those."""
        return func is _aten.add.Tensor or func in _WRITES_INTO_ZEROS

    def in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator that torch would call in place of `func(*args, **kwargs)`; None: the
        same."""
        if func is _aten.add.Tensor:
            return _aten.add_.Tensor if self._is_sum_in_place(args, kwargs) else None
        if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
            return None
        if func in _MAY_ADD and not (args[3] if len(args) > 3 else kwargs.get("accumulate", False)):
            return None  # zeros in place of a gradient's values, which torch puts into a copy
        if any(has > most for has, most in zip(_holds(args), self._zeros, strict=True)):
            return None
        return _WRITES_INTO_ZEROS[func]

    def _is_sum_in_place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether `aten.add(*args)` is such a sum, to be made in place."""
        if kwargs or not isinstance(args[1], torch.Tensor):
            return False
        first, second = args
        if first.dtype is not second.dtype:
            return False
        if torch._C._current_graph_task_id() == -1:
            alone, same = self._product, first.shape[-1:] == second.shape
        elif torch.is_grad_enabled():
            return False
        else:
            alone, same = self._gradient, first.shape == second.shape
        del first  # one hold less
        if not same or any(has > most for has, most in zip(_holds(args), alone, strict=True)):
            return False
        return _is_dense(args[0])


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether no two elements share memory and none is left out (is_non_overlapping_and_dense): a
    gradient of a sum, which is one number for all elements, is not."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _holds(args: tuple[Any, ...]) -> _Holds:
    first = args[0]
    uses = torch._C._storage_Use_Count(storage_id(first))
    return sys.getrefcount(first), first._use_count(), uses


class _Witness(TorchDispatchMode):
    """Looks at the sum of two gradients that nobody else holds, from where the tracker looks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[_Holds] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if Accumulation.concerns(func):
            self._look(args, kwargs)
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            out.untyped_storage()  # the tracker looks at every storage
        return out

    def _look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.seen.append(_holds(args))


def _measure(add: Callable[[_Witness], None]) -> _Holds:
    witness = _Witness()
    with torch.enable_grad():
        add(witness)
    return witness.seen[-1] if witness.seen else (0, 0, 0)


def _add_gradients(witness: _Witness) -> None:
    scaled = torch.ones(2, requires_grad=True) * 1.0
    parts = torch.cat([scaled.exp(), scaled.sin()]).sum()
    del scaled
    with witness:
        parts.backward()


def _add_bias(witness: _Witness) -> None:
    weight, bias = torch.ones(2, 2, requires_grad=True), torch.ones(2, requires_grad=True)
    inputs = torch.ones(2, 3, 2).transpose(0, 1)
    with witness:
        torch.nn.functional.linear(inputs, weight, bias)


def _index(witness: _Witness) -> None:
    part = torch.ones(4, requires_grad=True)[torch.tensor([0, 1])].sum()
    with witness:
        part.backward()
