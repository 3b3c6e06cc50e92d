"""What nothing needs any more, with the reason: old models, used gradients, graphs of numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from gpumem_magic.events import Category
from gpumem_magic.inventory import HolderKind
from gpumem_magic.sources.holders.assembly import Item

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
    rebound = {item.root: item.birth.cell for item in items if item.kind is HolderKind.VARIABLE}

    def reason(item: Item) -> str | None:
        if item.unneeded is not None:
            return item.unneeded
        if item.kind is HolderKind.GRAPH and item.root in accumulated:
            return accumulated[item.root]
        if item.kind is HolderKind.OPTIMIZER and item.root in old:
            return f"no name leads to the parameters any more, only {item.root}"
        name = _root(item.birth.name)
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
    begin = (name or "").partition(".")[0].partition("[")[0]
    return begin if begin.isidentifier() else None


def _lost(name: str, names: Collection[str], cell: int | None) -> str | None:
    if name not in names:
        return f"the name {name} was deleted"
    where = "" if cell is None else f" in In[{cell}]"
    return f"the name {name} stands for something else since{where}"
