"""What nothing needs any more, with the reason: old models, used gradients, graphs of numbers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, Final

from gpumem_magic.sources.holders.assembly import Item
from gpumem_magic.values.inventory import HolderKind
from gpumem_magic.values.names import variable_of
from gpumem_magic.values.recording import Category

_NAMED: Final = (HolderKind.VARIABLE, HolderKind.MODULE_STATE, HolderKind.RUNNING)

_GONE_ANYHOW: Final = (HolderKind.OUTPUT_HISTORY, HolderKind.EXCEPTION, HolderKind.CYCLE)
"""What `%gpucheck --free` or its options let go of: see sources/holders/letting_go.py."""

_STEPPED: Final = "gradients after the last optimizer step: optimizer.zero_grad() lets them go"


def with_reasons(items: Iterable[Item], names: Collection[str], stepped: bool | None) -> list[Item]:
    """The items, each with why it could go, and the statement that does it where no step of letting
    go does. names: of the namespace. stepped: nothing has used the gradients since an optimizer's
    last step."""
    items = list(items)
    accumulated = {i.root: i.unneeded for i in items if i.kind is HolderKind.GRAPH and i.unneeded}
    old = _old_optimizers(items)
    rebound = {item.root: item.site.cell for item in items if item.kind is HolderKind.VARIABLE}

    def reason(item: Item) -> str | None:
        if item.unneeded is not None:
            return item.unneeded
        if item.kind is HolderKind.GRAPH and item.root in accumulated:
            return accumulated[item.root]
        if item.kind is HolderKind.OPTIMIZER and item.root in old:
            return f"no name leads to the parameters any more, only {item.root}"
        name = _root(item.site.name)
        if name is not None and item.kind not in _NAMED and name != item.root:
            return _lost(name, names, rebound.get(name))
        if item.category is Category.GRADIENT and stepped and item.kind is HolderKind.VARIABLE:
            return _STEPPED
        return None

    reasons = [reason(item) for item in items]
    return [
        item if why is None else replace(item, unneeded=why, cure=_cure(item, why, names))
        for item, why in zip(items, reasons, strict=True)
    ]


def _cure(item: Item, why: str, names: Collection[str]) -> str:
    """What a user types to let go of it; empty where a step of letting go does, or it is unclear"""
    if item.kind in _GONE_ANYHOW or why is _STEPPED or item.root not in names:
        return ""
    return f"del {item.root}" if item.root.isidentifier() else ""


def _old_optimizers(items: Iterable[Item]) -> set[str]:
    """Optimizers of parameters that nothing else leads to, all of them."""
    items = [item for item in items if item.category is Category.PARAMETER]
    alone = {i.root for i in items if i.kind is HolderKind.OPTIMIZER and not i.also}
    used = {name for item in items if item.kind in _NAMED for name in item.also}
    return alone - used


def _root(name: str | None) -> str | None:
    """The variable that a block's last name began with."""
    begin = variable_of(name or "")
    return begin if begin.isidentifier() else None


def _lost(name: str, names: Collection[str], cell: int | None) -> str | None:
    if name not in names:
        return f"the name {name} was deleted"
    where = "" if cell is None else f" in In[{cell}]"
    return f"the name {name} stands for something else since{where}"


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
