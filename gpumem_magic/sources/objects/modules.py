"""What modules hold in their tables, and how a user writes it, without running their code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpumem_magic.sources.objects.contents import fields

_NAMELESS = ("self", "cls")

OPTIMIZERS_OWN = frozenset({"state", "param_groups", "defaults"})
"""Attributes of an optimizer that it is read by; the others are like any object's."""


def items(table: Any) -> Iterable[tuple[Any, Any]]:
    """Entries of a dict, or of the tables that scripted modules have instead."""
    if type(table) is dict and not table:
        return ()
    if issubclass(type(table), dict):
        return list(dict.items(table))
    return list(table.items()) if hasattr(type(table), "items") else []


def member(torch: Any, module: object, path: str, name: str, table: str) -> str:
    """How to write the entry `name` of a table of a module that is written `path`."""
    nn, kind = torch.nn, type(module)
    if name.isdigit() and hasattr(kind, "__getitem__"):
        return f"{path}[{name}]"
    if issubclass(kind, (nn.ModuleDict, nn.ParameterDict)):
        return f"{path}[{name!r}]"
    return f"{path}.{name}" if name.isidentifier() else f"{path}.{table}[{name!r}]"


def by_preference(
    torch: Any, named: Iterable[tuple[str, Any]]
) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Names and what they stand for, the shortest name first; and apart from them, in the same
    order, those that name only what nothing else does: `self`, and modules that others list."""
    rows = sorted(named, key=lambda row: (len(row[0]), row[0]))
    inside = _listed_modules(torch, (thing for _, thing in rows))
    weak = {name for name, thing in rows if name in _NAMELESS or id(thing) in inside}
    return [row for row in rows if row[0] not in weak], [row for row in rows if row[0] in weak]


def _listed_modules(torch: Any, things: Iterable[object]) -> set[int]:
    """Ids of modules inside a ModuleList, Sequential or ModuleDict of a module among `things`."""
    nn = torch.nn
    lists = nn.ModuleList, nn.Sequential, nn.ModuleDict
    waiting = [thing for thing in things if issubclass(type(thing), nn.Module)]
    if len(waiting) < 2:
        return set()
    listed: set[int] = set()
    seen: set[int] = set()
    while waiting:
        module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        children = [child for _, child in items(fields(module).get("_modules"))]
        waiting += children
        if issubclass(type(module), lists):
            listed.update(map(id, children))
    return listed
