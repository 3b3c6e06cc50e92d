"""Tells when autograd would add two gradients in place: under a dispatch mode it never does."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic.sources.virtual.storages import storage_id

_Holds = tuple[int, int, int]
"""Python references, uses of the tensor and uses of its storage."""


class Accumulation:
    """Autograd reuses the first of two gradients when it alone holds it (can_accumulate_inplace in
    torch/csrc/autograd/input_buffer.cpp), but not where a dispatch mode watches.

    How many holds a tensor has when autograd alone has it, and the tracker looks at it, depends on
    the versions of Python and torch; it is measured once.
    """

    def __init__(self) -> None:
        self._alone = _measure()

    def is_in_place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether `aten.add(*args)` is autograd's own sum of two gradients, to be made in place."""
        if torch._C._current_graph_task_id() == -1 or kwargs or torch.is_grad_enabled():
            return False
        if not isinstance(args[1], torch.Tensor):
            return False
        if args[0].shape != args[1].shape or args[0].dtype is not args[1].dtype:
            return False
        return all(has <= alone for has, alone in zip(_holds(args), self._alone, strict=True))


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
        if func is torch.ops.aten.add.Tensor:
            self._look(args, kwargs)
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            out.untyped_storage()  # the tracker looks at every storage
        return out

    def _look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.seen.append(_holds(args))


def _measure() -> _Holds:
    witness = _Witness()
    with torch.enable_grad():
        scaled = torch.ones(2, requires_grad=True) * 1.0
        parts = torch.cat([scaled.exp(), scaled.sin()]).sum()
        del scaled
    with witness:
        parts.backward()
    return witness.seen[-1] if witness.seen else (0, 0, 0)
