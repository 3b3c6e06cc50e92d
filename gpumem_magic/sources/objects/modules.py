"""What modules hold in their tables, and how a user writes it, without running their code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpumem_magic.sources.objects.contents import fields


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


def listed_modules(torch: Any, things: Iterable[object]) -> set[int]:
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
