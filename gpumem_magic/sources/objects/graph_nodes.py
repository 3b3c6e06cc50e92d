"""What a node of an autograd graph keeps, read past the hooks of saved_tensors_hooks, because to
unpack could run user code and recompute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_RAW: Final = "_raw_saved_"


def raw_names(kind: type) -> tuple[str, ...]:
    """The attributes of a kind of node that show what it has saved, without unpacking it."""
    return tuple(name for name in dir(kind) if name.startswith(_RAW))


def raw_saved(node: Any, names: tuple[str, ...] | None = None) -> Iterator[tuple[str, Any]]:
    """What the node has saved: ("self", SavedTensor) for each tensor. names: its raw_names."""
    for name in raw_names(type(node)) if names is None else names:
        raw = getattr(node, name, None)
        for each in raw if isinstance(raw, (tuple, list)) else (raw,):
            if each is not None:
                yield name.removeprefix(_RAW), each


def is_node_type(kind: type) -> bool:
    """Whether the class is that of an autograd node."""
    bases = type.__getattribute__(kind, "__mro__")  # past what a metaclass may do
    tables = [type.__getattribute__(base, "__dict__") for base in bases]
    return all(
        any(name in table for table in tables) for name in ("next_functions", "register_prehook")
    )
