"""Tells when torch's own code would add in place: under a dispatch mode it never does."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic.sources.objects.ownership import sparse_parts
from gpumem_magic.virtual.storages import storage_id
from gpumem_magic.virtual.workspaces.layouts import is_dense

_Holds = tuple[int, int, int]
"""Python references, uses of the tensor and uses of its storage."""


_WRITES_INTO_ZEROS = {
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.index_add.default: torch.ops.aten.index_add_.default,
    torch.ops.aten.put.default: torch.ops.aten.put_.default,
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
    torch.ops.aten.masked_scatter.default: torch.ops.aten.masked_scatter_.default,
}
"""What fills a gradient of zeros in torch/csrc/autograd/FunctionsManual.cpp and native code called
there: out of place where areAnyTensorSubclassLike says so, as under a dispatch mode."""

_COUNTS = frozenset({"ScatterReduceBackward0", "IndexReduceBackward0"})
"""Backward passes that add to a count of equal values, which is no gradient: out of place."""

_SUMMING = frozenset({"StdMeanBackward0", "VarMeanBackward0"})
"""Backward passes whose own code adds two gradients, never in place."""

_CHAINED = {
    torch.ops.aten.sub.Tensor: torch.ops.aten.sub_.Tensor,
    torch.ops.aten.mul.Tensor: torch.ops.aten.mul_.Tensor,
    torch.ops.aten.logical_and.default: torch.ops.aten.logical_and_.default,
    torch.ops.aten.logical_or.default: torch.ops.aten.logical_or_.default,
}
_ARITHMETIC = frozenset({torch.ops.aten.sub.Tensor, torch.ops.aten.mul.Tensor})
_CHAINS = {
    **dict.fromkeys(
        ("BinaryCrossEntropyBackward0", "BinaryCrossEntropyWithLogitsBackward0"), _ARITHMETIC
    ),
    **dict.fromkeys(
        (
            *("ClampBackward0", "MaxBackward1", "MedianBackward0", "MinBackward1"),
            "NanmedianBackward0",
        ),
        frozenset(_CHAINED) - _ARITHMETIC,
    ),
}
"""Backward passes that go on in the result of their first step, for the same reason, and the steps
that do."""

_ADD, _CLONE = torch.ops.aten.add.Tensor, torch.ops.aten.clone.default

_MAY_ADD = frozenset({torch.ops.aten.index_put.default, torch.ops.aten.put.default})


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
        self._sparse = _measure(_embed)
        self._zeros_on_device = False

    def makes_indices(self, func: Any, on_device: bool) -> bool:
        """Whether the operator makes, on the device, the indices by which the gradient of
        overlapping views is added to zeros; there, if those are. on_device: its operands are
        (as_strided_backward in torch/csrc/autograd/FunctionsManual.cpp)."""
        if func is torch.ops.aten.new_zeros.default:
            self._zeros_on_device = on_device
        is_arange = self._zeros_on_device and func.overloadpacket is torch.ops.aten.arange
        return is_arange and running_node() == "AsStridedBackward0"

    @staticmethod
    def concerns(func: Any) -> bool:
        """Whether the operator is one of those."""
        return func in (_ADD, _CLONE) or func in _WRITES_INTO_ZEROS or func in _CHAINED

    def taken_over(self, func: Any, args: tuple[Any, ...]) -> torch.Tensor | None:
        """What stands for the clone of a sparse gradient where torch would take over its parts
        (accumulateGrad in torch/csrc/autograd/functions/accumulate_grad.h); None: elsewhere."""
        if func is not _CLONE or args[0].layout is not torch.sparse_coo:
            return None
        if torch.is_grad_enabled() or "AccumulateGrad" not in running_node():
            return None
        gradient, most = args[0], self._sparse[1]
        (_, indices), (_, values) = sparse_parts(torch, gradient)
        if gradient._use_count() > most or not (indices.is_contiguous() and values.is_contiguous()):
            return None
        shape = gradient.shape
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False)

    def in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator that torch would call in place of `func(*args, **kwargs)`; None: the
        same."""
        if func is _CLONE or not torch._C._has_storage(args[0]):  # sparse sums are made anew
            return None
        if func is _ADD:
            return torch.ops.aten.add_.Tensor if self._is_sum_in_place(args, kwargs) else None
        if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
            return None
        if running_node() in _COUNTS or (func in _CHAINED and not _is_chained(func, args)):
            return None
        if func is torch.ops.aten.sub.Tensor:  # never the first step; its operand has several names
            return _CHAINED[func]
        if func in _MAY_ADD and not (args[3] if len(args) > 3 else kwargs.get("accumulate", False)):
            return None  # zeros in place of a gradient's values, which torch puts into a copy
        if any(has > most for has, most in zip(_holds(args), self._zeros, strict=True)):
            return None
        return _CHAINED.get(func) or _WRITES_INTO_ZEROS[func]

    def _is_sum_in_place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether `aten.add(*args)` is such a sum, to be made in place."""
        if kwargs or not isinstance(args[1], torch.Tensor):
            return False
        first, second = args
        if first.dtype is not second.dtype:
            return False
        if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
            alone, same = self._product, first.dim() > 1 and first.shape[-1:] == second.shape
        else:
            alone, same = self._gradient, first.shape == second.shape
            if running_node() in _SUMMING:
                return False
        del first  # one hold less
        if not same or any(has > most for has, most in zip(_holds(args), alone, strict=True)):
            return False
        return is_dense(args[0])


def _is_chained(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a step may go on in the first operand: it has the size of the result."""
    if func not in _CHAINS.get(running_node(), ()) or not isinstance(args[1], torch.Tensor):
        return False
    return bool(args[0].shape == torch.broadcast_shapes(args[0].shape, args[1].shape))


def running_node() -> str:
    """The name of the node whose backward runs; empty elsewhere."""
    node = torch._C._current_autograd_node()
    return "" if node is None else node.name()


def _holds(args: tuple[Any, ...]) -> _Holds:
    first = args[0]
    stored = torch._C._has_storage(first)
    uses = torch._C._storage_Use_Count(storage_id(first)) if stored else 0
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
            self.seen.append(_holds(args))
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor) and torch._C._has_storage(out):
            out.untyped_storage()  # the tracker looks at every storage
        return out


@contextlib.contextmanager
def as_in_new_thread() -> Iterator[None]:
    """Autograd as it begins, whatever modes and hooks an earlier cell has left on."""
    of_autograd: Any = torch._C._autograd
    hooks: list[Any] = []
    uppermost = getattr(of_autograd, "_top_saved_tensors_default_hooks", None)  # from 2.8 on
    while uppermost and (top := uppermost(True)):
        hooks.append(top)
        of_autograd._pop_saved_tensors_default_hooks()
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for pack, unpack in reversed(hooks):
            of_autograd._push_saved_tensors_default_hooks(pack, unpack)


@functools.cache
def _measure(add: Callable[[_Witness], None]) -> _Holds:
    witness = _Witness()
    with as_in_new_thread(), torch.device("cpu"):
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


def _embed(witness: _Witness) -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    vectors = torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True) * 1.0
    total = vectors.sum()  # with a gradient of its own, torch would import sympy to compare shapes
    with witness:
        total.backward()
