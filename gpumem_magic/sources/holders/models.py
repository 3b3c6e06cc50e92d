"""What modules and optimizers hold, named as their users write it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpumem_magic.sources.holders.found import Node, cut
from gpumem_magic.sources.objects.contents import attribute, fields, is_plain
from gpumem_magic.sources.objects.modules import OPTIMIZERS_OWN, items, member
from gpumem_magic.sources.objects.ownership import Kind, Via
from gpumem_magic.values.inventory import HolderKind


class Models:
    """Reads modules and optimizers. names: what parameters are called, by id."""

    def __init__(self, torch: Any, names: Mapping[int, tuple[Via, str]]) -> None:
        self._torch = torch
        self._names = names
        self._bookkeeping = frozenset(fields(torch.nn.Module()))
        self._hooks = frozenset(name for name in self._bookkeeping if "hooks" in name)

    def module(self, node: Node) -> Iterable[Node]:
        """Parameters, buffers, modules, hooks, and its own attributes."""
        held, torch = fields(node.thing), self._torch
        for table, kind in (("_parameters", Kind.PARAMETER), ("_buffers", Kind.BUFFER)):
            for name, tensor in items(held.get(table)):
                if tensor is not None:
                    path = member(torch, node.thing, node.path, name, table)
                    yield Node(tensor, path, node.holder, kind, Via.MODULE)
        for name, module in items(held.get("_modules")):
            path = member(torch, node.thing, node.path, name, "_modules")
            yield node._replace(thing=module, path=cut(path), kind=Kind.NAMED)
        for name, thing in list(held.items()):
            path = attribute(node.path, name)
            if name in self._hooks:
                holder = node.holder.inner(HolderKind.HOOK, path)
                for key, hook in items(thing):
                    yield Node(hook, f"{path}[{key}]", holder)
            elif name not in self._bookkeeping and not is_plain(thing):
                yield node._replace(thing=thing, path=cut(path))

    def optimizer(self, node: Node) -> Iterable[Node]:
        """Parameters, settings that are tensors, states by their parameters' names, attributes."""
        held = fields(node.thing)
        groups: Any = held.get("param_groups") or ()
        for i, group in enumerate(groups):
            for key, value in items(group):
                path = f"{node.path}.param_groups[{i}][{key!r}]"
                if key != "params":
                    if not is_plain(value):
                        yield node._replace(thing=value, path=path, kind=Kind.STATE)
                    continue
                for j, tensor in enumerate(value):
                    here = f"{path}[{j}]"
                    yield Node(tensor, here, node.holder, Kind.PARAMETER, Via.OPTIMIZER)
        for i, (key, state) in enumerate(items(held.get("state"))):
            known = self._names.get(id(key))
            place = f"list({node.path}.state.values())[{i}]"
            if known is not None:
                place = f"{node.path}.state[{known[1]}]"
            for entry, value in items(state):
                if not is_plain(value):
                    yield node._replace(thing=value, path=f"{place}[{entry!r}]", kind=Kind.STATE)
        for name, thing in list(held.items()):
            if name not in OPTIMIZERS_OWN:
                path = attribute(node.path, name)
                yield node._replace(thing=thing, path=path, kind=Kind.STATE)
