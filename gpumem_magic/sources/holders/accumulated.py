"""Tells losses that are added up with their graphs, where a number is all that is wanted."""

from __future__ import annotations

import re
from typing import Any, Final

_FEWEST: Final = 4
"""Equal terms of a sum from which it is an accumulation: fewer may be the parts of one loss."""

_LISTED: Final = re.compile(r"\[([1-9]\d*)\]$")


def kept_for_a_number(tensor: Any, function: Any, path: str) -> str | None:
    """Why nothing needs the graph of `tensor`, whose `grad_fn` is `function`; None: it may be."""
    if tensor.dim() != 0:
        return None
    losses = _terms(function)
    if losses >= _FEWEST:
        return f"{path} adds up {losses} losses with their graphs: add loss.item() instead"
    if _LISTED.search(path):
        return (
            f"{path.rpartition('[')[0]} keeps losses with their graphs: append loss.item() instead"
        )
    return None


def _terms(function: Any) -> int:
    """How many equal kinds of terms a sum has that was built one by one; 0 for no such sum."""
    while function is not None and _name(function) in ("DivBackward0", "MulBackward0"):
        function = function.next_functions[0][0]
    kinds: list[str] = []
    while function is not None and _name(function) == "AddBackward0":
        *rest, last = [before for before, _ in function.next_functions if before is not None] or [
            None
        ]
        if last is None:
            break
        if not rest:  # the first: a number plus a loss
            kinds.append(_name(last))
            break
        kinds.append(_name(last))
        function = rest[0]
        if _name(function) != "AddBackward0":
            kinds.append(_name(function))
    return len(kinds) if len(set(kinds)) == 1 else 0


def _name(function: Any) -> str:
    return type(function).__name__
