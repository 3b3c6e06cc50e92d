"""Graphs of dynamo's that are the same, as where an attribute that the code only asks for has
changed: what was compiled for the first one does for the others."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

_KINDS = ("cpu", "cuda")


def key_of(graph: torch.fx.GraphModule, inputs: Any) -> Hashable:
    """The same for graphs that are compiled to the same code; None if that cannot be told."""
    if any(node.op in ("get_attr", "call_module") for node in graph.graph.nodes):
        return None
    storages: dict[int, int] = {}
    given = tuple(_described(value, storages) for value in inputs)
    if None in given:
        return None
    casts = tuple(
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) for kind in _KINDS
    )
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()
    return _steps(graph.graph), given, casts, modes


def _steps(graph: torch.fx.Graph) -> Hashable:
    """What a graph does, without its names: these say by which way dynamo came to an input."""
    numbers = {node: f"%{number}" for number, node in enumerate(graph.nodes)}
    return tuple(
        (
            node.op != "placeholder" and node.target,
            repr(torch.fx.node.map_arg((node.args, node.kwargs), numbers.__getitem__)),
        )
        for node in graph.nodes
    )


def _described(value: Any, storages: dict[int, int]) -> Hashable:
    """An input, with the number of its storage among all that were met; None: it says not enough,
    as one whose sizes are symbols."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    sizes = (*value.shape, *value.stride(), value.storage_offset())
    if any(type(size) is not int for size in sizes):
        return None
    number = storages.setdefault(value.untyped_storage()._cdata, len(storages))
    traits = value.requires_grad, value.is_leaf, value.is_inference(), value.device
    return type(value), value.dtype, sizes, traits, number
