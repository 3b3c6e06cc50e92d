"""An operator's call: the tensors it is given, and what does its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Compute = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Does what an operator does, given it and its arguments."""


def run_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let torch run the operator's kernel."""
    return func(*args, **kwargs)


def tensors_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments, those in lists included."""
    found = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, torch.Tensor)]
    return found
