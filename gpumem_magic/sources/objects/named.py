"""Reads what the notebook's names are (models, optimizers, tensors) without running their code."""

from __future__ import annotations

import itertools
import re
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpumem_magic.sources.objects.contents import Contents, fields, package_of
from gpumem_magic.sources.objects.modules import all_inside, items
from gpumem_magic.sources.objects.namespaces import is_spoken_of
from gpumem_magic.sources.objects.ownership import parts_of
from gpumem_magic.values.names import (
    ModuleFacts,
    Names,
    OptimizerFacts,
    Part,
    TensorFacts,
)

Locate = Callable[[Any], "int | None"]
_MOST_ITEMS = 10_000  # of one container; what lies further is not looked at
_LIBRARIES = frozenset(
    "torch numpy gc IPython contextlib transformers accelerate peft trl sentence_transformers "
    "lightning pytorch_lightning".split()
)


def read_names(names: Mapping[str, object], locate: Locate) -> Names:
    """What `names` are, of those that a cell's code may mean; those with an underscore are not.

    locate(tensor): the address of its storage on the device, None where it lies elsewhere. Nothing
    of the user's runs, and nothing is kept.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return Names()
    reader = _Reader(torch, locate)
    with torch._C.DisableTorchFunction():
        own = {k: v for k, v in names.items() if is_spoken_of(k)}
        reader.optimized = frozenset(_optimized(own.values(), torch.optim.Optimizer))
        cells = names.get("In")
        reader.cells = cells if isinstance(cells, list) else []
        default = str(torch.get_default_dtype()).removeprefix("torch.")
        for name, thing in own.items():
            reader.read(name, thing)
    if default == "float32":
        return reader.names
    set_in = _last(reader.cells, r"\bset_default_(?:dtype|tensor_type)\b")
    return replace(reader.names, default=(default, set_in))


def dotted(kind: Any) -> str:
    """The full name of a class or function: "torch.optim.adam.Adam"; "" where it has none."""
    module, name = getattr(kind, "__module__", None), getattr(kind, "__qualname__", None)
    return f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else ""


class _Reader:
    def __init__(self, torch: Any, locate: Locate) -> None:
        self.names = Names({}, {}, {}, {}, {}, {}, {}, loaded={})
        self.optimized: frozenset[int] = frozenset()
        self.cells: list[object] = []
        self._torch = torch
        self._locate = locate

    def read(self, name: str, thing: Any) -> None:
        kind, torch, names = type(thing), self._torch, self.names
        if issubclass(kind, types.ModuleType):
            _add(names.known, name, types.ModuleType.__getattribute__(thing, "__name__"))
        elif kind in (type, types.FunctionType, types.BuiltinFunctionType):
            if (full := dotted(thing)).split(".")[0] in _LIBRARIES:
                _add(names.known, name, full)
            elif kind is types.FunctionType and thing.__closure__:
                _add(names.others, name, dotted(kind))
        elif issubclass(kind, torch.Tensor):
            _add(names.tensors, name, self._tensor(thing))
        elif issubclass(kind, torch.nn.Module):
            _add(names.modules, name, self._module(thing))
        elif issubclass(kind, torch.optim.Optimizer):
            _add(names.optimizers, name, self._optimizer(thing))
        elif kind in (list, tuple, dict, set):
            self._container(name, thing)
        elif (kind is str and thing == "cpu") or (kind is torch.device and thing.type == "cpu"):
            _add(names.host, name, _assigned_in(name, self.cells))
        elif kind not in (int, float, str, bool, type(None)):
            _add(names.others, name, dotted(kind))
            if kind is torch.utils.data.DataLoader and (read := self._read_by(thing)) is not None:
                _add(names.loaded, name, read)

    def _read_by(self, loader: Any) -> frozenset[int] | None:
        """Addresses of the tensors that a loader leads to; None where code of the user's, or of
        another library, may lead to more."""
        own, contents = fields(loader), Contents()
        given = own.get("collate_fn")
        if package_of(type(given)) != "torch" and getattr(given, "__module__", "")[:6] != "torch.":
            return None
        waiting, found, seen = [own.get("dataset")], set[int](), set[int]()
        while waiting and len(seen) < _MOST_ITEMS:
            thing = waiting.pop()
            if isinstance(thing, self._torch.Tensor):
                found.add(self._locate(thing) or 0)
            elif package_of(type(thing)) not in ("torch", "builtins"):
                return None
            elif id(thing) not in seen:
                seen.add(id(thing))
                waiting += [inside for _, inside in contents.of(thing, "")]
        return None if waiting else frozenset(found)

    def _sizes(self, tensors: Iterable[Any]) -> list[int]:
        """Bytes of each one's storage; 0 where it is not on the device, or was counted before."""
        sizes: list[int] = []
        seen: set[int | None] = {None}
        for tensor in tensors:
            address = self._locate(tensor)
            sizes.append(0 if address in seen else int(tensor.untyped_storage().nbytes()))
            seen.add(address)
        return sizes

    def _size(self, tensors: Iterable[Any]) -> int:
        return sum(self._sizes(tensors))

    def _tensor(self, tensor: Any) -> TensorFacts:
        dense = [part for _, part in parts_of(self._torch, tensor)] or [tensor]
        on_device = any(self._locate(part) is not None for part in dense)
        return TensorFacts(
            size=self._size(dense) if on_device else sum(int(part.nbytes) for part in dense),
            shape=tuple(int(n) for n in tensor.shape if isinstance(n, int)),  # not a ragged one's
            dtype=str(tensor.dtype).removeprefix("torch."),
            on_device=on_device,
            requires_grad=bool(tensor.requires_grad),
            has_graph=tensor.grad_fn is not None,
        )

    def _container(self, name: str, thing: Any) -> None:
        values = thing.values() if type(thing) is dict else thing
        held = list(values)[:_MOST_ITEMS]
        tensors = [item for item in held if issubclass(type(item), self._torch.Tensor)]
        if not tensors:
            _add(self.names.others, name, dotted(type(thing)))
            return
        graphs = sum(tensor.grad_fn is not None for tensor in tensors)
        _add(self.names.containers, name, graphs)

    def _module(self, module: Any) -> ModuleFacts:
        inside = dict(all_inside(module))
        parameters = [p for m in inside.values() for p in _table(m, "_parameters")]
        dtypes, trainable = Counter[str](), 0
        for parameter, size in zip(parameters, self._sizes(parameters), strict=True):
            dtypes[str(parameter.dtype).removeprefix("torch.")] += size
            trainable += size if parameter.requires_grad else 0
        buffers = (b for m in inside.values() for b in _table(m, "_buffers"))
        return ModuleFacts(
            type=dotted(type(module)),
            training=bool(fields(module).get("training", True)),
            parameters=dtypes.total(),
            trainable=trainable,
            gradients=self._size(p.grad for p in parameters if p.grad is not None),
            buffers=self._size(buffers),
            dtypes={dtype: size for dtype, size in dtypes.items() if size},
            parts=tuple(self._parts(module)),
            repeated=_repeated(inside),
            kinds=frozenset(type(m).__name__ for m in inside.values()),
            optimized=self._size(p for p in parameters if id(p) in self.optimized),
        )

    def _parts(self, module: Any) -> Iterator[Part]:
        for name, child in items(fields(module).get("_modules")):
            if child is None:
                continue
            parameters = [p for _, m in all_inside(child) for p in _table(m, "_parameters")]
            trainable = [p for p in parameters if p.requires_grad]
            yield Part(
                path=str(name),
                type=dotted(type(child)),
                trainable=self._size(trainable),
                gradients=self._size(p.grad for p in parameters if p.grad is not None),
                optimized=self._size(p for p in parameters if id(p) in self.optimized),
            )

    def _optimizer(self, optimizer: Any) -> OptimizerFacts:
        own = fields(optimizer)
        groups: Any = own.get("param_groups", [])
        parameters = [p for group in groups for p in group.get("params", [])]
        by_parameter: Any = own.get("state", {})
        states = [dict(state) for state in by_parameter.values()]
        tensor = self._torch.Tensor
        held = [(k, v) for state in states for k, v in state.items() if isinstance(v, tensor)]
        options = {
            key: value
            for key, value in (groups[0] if groups else {}).items()
            if value is None or isinstance(value, bool | int | float)
        }
        return OptimizerFacts(
            type=dotted(type(optimizer)),
            parameters=self._size(parameters),
            tensors=tuple(dict.fromkeys(str(k) for k, v in held if v.dim())),
            options=options,
        )


def _assigned_in(name: str, cells: list[object]) -> int | None:
    """The number of the last cell that assigns a name at the beginning of a line."""
    return _last(cells, rf"^\s*{re.escape(name)}\s*(?::[^=\n]+)?=(?!=)")


def _last(cells: list[object], pattern: str) -> int | None:
    """The number of the last cell in which a pattern is found."""
    numbers = range(len(cells) - 1, 0, -1)
    found = re.compile(pattern, re.MULTILINE).search
    return next((number for number in numbers if found(str(cells[number]))), None)


def _add(table: Any, name: str, value: object) -> None:
    table[name] = value


def _with_contents(thing: object) -> Iterator[object]:
    yield thing
    if type(thing) in (list, tuple):
        yield from itertools.islice(thing, _MOST_ITEMS)  # type: ignore[call-overload]
    elif isinstance(own := thing if type(thing) is dict else fields(thing), dict):
        yield from list(own.values())[:_MOST_ITEMS]


def _optimized(things: Iterable[object], optimizer: type) -> Iterator[int]:
    """Identities of the parameters that optimizers have, also those held by an object."""
    for thing in itertools.chain.from_iterable(map(_with_contents, things)):
        if issubclass(type(thing), optimizer):
            groups: Any = fields(thing).get("param_groups", [])
            yield from (id(p) for group in groups for p in group.get("params", []))


def _table(module: Any, name: str) -> list[Any]:
    return [value for _, value in items(fields(module).get(name)) if value is not None]


def _repeated(inside: Mapping[str, Any]) -> str:
    """The path of the longest list of compound modules of one class."""
    longest, found = 1, ""
    for path, module in inside.items():
        children = _table(module, "_modules")
        alike = len({type(child) for child in children}) == 1
        if alike and len(children) > longest and _table(children[0], "_modules"):
            longest, found = len(children), path
    return found
