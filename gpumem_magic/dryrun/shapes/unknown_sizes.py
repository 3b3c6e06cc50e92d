"""Operators whose results are as large as values say: what is assumed where a dry run has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.dryrun.shapes.bounds import Bounds
from gpumem_magic.dryrun.shapes.mostly_one import MASKS, MostlyOne
from gpumem_magic.dryrun.shapes.valueless import Valueless
from gpumem_magic.virtual.kernels.geometry import Geometry
from gpumem_magic.virtual.workspaces.layouts import Layout

_INT64 = torch.int64


def _vector(n: int, dtype: torch.dtype = _INT64) -> Layout:
    return Layout(torch.Size((n,)), (1,), dtype)


def _unique(tensor: torch.Tensor, *options: Any, most: int | None = None, **named: Any) -> Any:
    """All elements differ, or as many as can. Of inverse and counts, what is asked for."""
    n = tensor.numel() if most is None else most
    flags = [option for option in (*options, *named.values()) if isinstance(option, bool)]
    inverse, counts = flags[-2:] if len(flags) > 1 else (False, False)
    shape = Layout(tensor.shape, _dense(tensor.shape), _INT64) if inverse else _vector(0)
    return _vector(n, tensor.dtype), shape, _vector(n if counts else 0)


def _unique_consecutive(
    tensor: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    return _unique(tensor, return_inverse, return_counts)


def _unique_dim(tensor: torch.Tensor, dim: int, *options: Any, **named: Any) -> Any:
    n = _vector(tensor.shape[dim])
    return Layout(tensor.shape, _dense(tensor.shape), tensor.dtype), n, n


def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> Any:
    return _vector(repeats.numel() if output_size is None else output_size, repeats.dtype)


def _bincount(tensor: torch.Tensor, weights: Any = None, minlength: int = 0) -> Any:
    return _vector(max(minlength, 1), _INT64 if weights is None else torch.float64)


def _dense(size: torch.Size) -> tuple[int, ...]:
    return torch.empty(size, device="meta").stride()


_ASSUMED: dict[str, Callable[..., Any]] = {
    "aten::unique_consecutive": _unique_consecutive,
    "aten::unique_dim": _unique_dim,
    "aten::repeat_interleave": _repeat_interleave,
    "aten::bincount": _bincount,
    "torchvision::nms": lambda boxes, scores, threshold: _vector(len(boxes)),
    "aten::equal": lambda a, b: a.shape == b.shape and (a.dtype != torch.bool or bool(a.ndim or a)),
}

_SELECTING = ("aten::index", "aten::masked_select")
"""Operators that may select by masks."""

SIZED_BY_VALUES = frozenset((*_ASSUMED, *_SELECTING, "aten::nonzero", "aten::_unique2"))


def packed_sequence(
    func: Any, padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool, *, are_known: bool
) -> Any:
    """The shape of a packed sequence, and how many of the sequences reach each time step; all are
    the longest where their lengths are not known."""
    if not are_known:
        lengths = torch.full(lengths.shape, padded.shape[1 if batch_first else 0])
    data, sizes = func(torch.empty((*padded.shape[:2], 1)), lengths, batch_first)
    size = torch.Size((data.shape[0], *padded.shape[2:]))
    return Layout(size, _dense(size), padded.dtype), sizes


class UnknownSizes:
    """What such operators are assumed to return; None for operators that need no values."""

    def __init__(self, geometry: Geometry, valueless: Valueless) -> None:
        self._geometry = geometry
        self._most_nonzero = MostlyOne(valueless).most_nonzero
        self._bounds = Bounds(valueless)
        self._valueless = valueless

    def told_by_values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The shapes of what is selected, or repeated, by masks or counts whose values are known;
        None for all else."""
        if func._schema.name == "aten::repeat_interleave" and args[0] not in self._valueless:
            return _vector(int(args[0].sum()), args[0].dtype)
        masks = _masks(func, args)
        if not masks or any(mask in self._valueless for mask in masks):
            return None
        return self._selected(func, args, kwargs)

    def assumed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The shapes that `func(*args, **kwargs)` is assumed to return; None: they follow from
        those of its arguments."""
        name = func._schema.name
        if _masks(func, args):
            return self._selected(func, args, kwargs)
        if name == "aten::nonzero":  # the layout is that of CUDA's kernel, transposed
            n = self._most_nonzero(args[0])
            return Layout(torch.Size((n, args[0].dim())), (1, max(n, 1)), _INT64)
        if name == "aten::_unique2":
            return _unique(*args, most=self._bounds.most_different(args[0]), **kwargs)
        known = _ASSUMED.get(name)
        return known and known(*args, **kwargs)

    def _selected(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Of masks as many as they can find: what `masked_select` and `index` return."""
        if isinstance(args[1], torch.Tensor):
            size = torch.broadcast_shapes(args[0].shape, args[1].shape)
            return _vector(self._most_nonzero(args[1].broadcast_to(size)), args[0].dtype)
        indices: list[Any] = []
        for index in args[1]:
            if isinstance(index, torch.Tensor) and index.dtype in MASKS:
                found = index.new_empty(self._most_nonzero(index), dtype=_INT64)
                indices += [found] * index.dim()
            else:
                indices.append(index)
        return self._geometry.results(func, (args[0], indices), kwargs)


def _masks(func: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The masks that an operator selects by."""
    if func._schema.name not in _SELECTING:
        return []
    given = [args[1]] if isinstance(args[1], torch.Tensor) else args[1]
    return [i for i in given if isinstance(i, torch.Tensor) and i.dtype in MASKS]
