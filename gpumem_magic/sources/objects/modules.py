"""What modules and optimizers hold, and how a user writes it, without running their code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpumem_magic.sources.objects.contents import attribute, fields, is_plain
from gpumem_magic.sources.objects.ownership import Kind, Via

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


_TABLES = (
    ("_parameters", Kind.PARAMETER, Via.MODULE),
    ("_buffers", Kind.BUFFER, Via.MODULE),
    ("_modules", Kind.NAMED, Via.NAME),
)


@functools.cache
def bookkeeping(torch: Any) -> frozenset[str]:
    """Attributes that every module has."""
    return frozenset(fields(torch.nn.Module()))


def of_module(torch: Any, module: object, path: str) -> Iterator[tuple[str, Any, Kind, Via]]:
    """Parameters, buffers, modules, then its own attributes: how each is written, what it is, and
    how it was reached."""
    held = fields(module)
    for table, kind, via in _TABLES:
        for name, thing in items(held.get(table)):
            if thing is not None:
                yield member(torch, module, path, name, table), thing, kind, via
    known = bookkeeping(torch)
    for name, thing in list(held.items()):
        if name not in known and not is_plain(thing):
            yield attribute(path, name), thing, Kind.NAMED, Via.NAME


def of_groups(path: str, groups: Any) -> Iterator[tuple[str, Any, Kind]]:
    """Parameters of an optimizer's groups, and settings that may be tensors, such as a learning
    rate: how each is written, and what it is."""
    for i, group in enumerate(groups or ()):
        for key, value in items(group):
            here = f"{path}.param_groups[{i}][{key!r}]"
            if key == "params":
                for j, parameter in enumerate(value):
                    yield f"{here}[{j}]", parameter, Kind.PARAMETER
            elif not is_plain(value):
                yield here, value, Kind.STATE


def of_states(
    path: str, states: Any, name_of: Callable[[object], str | None]
) -> Iterator[tuple[str, Any]]:
    """What an optimizer keeps for each parameter: how it is written, by the parameter's name."""
    for i, (key, state) in enumerate(items(states)):
        name = repr(key) if type(key) is str else name_of(key)
        place = f"{path}.state[{name}]" if name else f"list({path}.state.values())[{i}]"
        for entry, value in items(state):
            yield f"{place}[{entry!r}]", value


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
    modules = [thing for thing in things if issubclass(type(thing), nn.Module)]
    if len(modules) < 2:
        return set()
    found = [m for _, m in all_inside(*modules) if issubclass(type(m), lists)]
    return {id(child) for m in found for _, child in items(fields(m).get("_modules"))}


def all_inside(*modules: Any) -> Iterator[tuple[str, Any]]:
    """The modules and all inside of them, each once, by path."""
    waiting, seen = [("", module) for module in modules], set()
    while waiting:
        here, found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield here, found
        children = items(fields(found).get("_modules"))
        prefix = f"{here}." if here else ""
        waiting += [(f"{prefix}{name}", child) for name, child in children if child is not None]
