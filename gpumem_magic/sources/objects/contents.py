"""What Python objects hold, and how a user writes it, told without running any of their code."""

from __future__ import annotations

import collections
import gc
import keyword
import sys
import types
import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

_PLAIN: Final = (
    *(object, type(None), type(...), bool, int, float, complex, str, bytes, bytearray, range),
    *(types.ModuleType, types.CodeType, slice, weakref.ref, memoryview, types.GenericAlias),
)
_CODE: Final = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, property),
    *(types.FrameType, types.TracebackType, types.GeneratorType),
)
_LEAVES: Final = (*_PLAIN, *_CODE)
PLAIN_IDS: Final = frozenset(map(id, _PLAIN))
_LEAF_IDS: Final = frozenset(map(id, _LEAVES))
FOREIGN: Final = frozenset(
    (
        *("IPython", "ipykernel", "ipywidgets", "traitlets", "jupyter_client", "zmq", "tornado"),
        *("numpy", "pandas", "pyarrow", "scipy", "sympy", "matplotlib", "PIL"),
        *("logging", "threading", "asyncio", "concurrent", "multiprocessing", "pathlib", "re"),
    )
)
"""Packages whose objects abound in notebooks and hold no tensors: not worth the walk."""

_HOLDING: Final = frozenset(
    {
        ("logging", "LogRecord"),
        ("concurrent.futures._base", "Future"),
        ("multiprocessing.pool", "ApplyResult"),
        ("multiprocessing.pool", "MapResult"),
    }
)
"""Classes of theirs that hold what they were given, or what a task returned."""

SNIFF: Final = 256
"""A container that begins and ends with so many plain things is taken to hold nothing else: numbers
and texts, and records of such."""

_SNIFF_INSIDE: Final = 32
_RECORDS_DEEP: Final = 2
_BUILT_IN: Final = frozenset(map(id, (list, dict, tuple, set, frozenset)))

_PLAIN_KEYS: Final = frozenset(map(id, (str, int, float, bool, bytes, type(None))))
_LONGEST_KEY: Final = 80

Found = Iterator[tuple[str, object]]


def attribute(path: str, name: str) -> str:
    """How to write the attribute `name` of what is written `path`."""
    if name.isidentifier() and not keyword.iskeyword(name):
        return f"{path}.{name}"
    return f"getattr({path}, {name!r})"


def is_leaf(thing: object) -> bool:
    """Whether it certainly holds nothing (numbers, texts) or is not to be entered (functions)."""
    return id(type(thing)) in _LEAF_IDS


def is_plain(thing: object) -> bool:
    """Whether it certainly holds nothing; of classes and modules, what they hold is not its."""
    return id(type(thing)) in PLAIN_IDS


def is_empty(thing: Any) -> bool:
    """Whether it is a container without contents, or with nothing but numbers and texts: that is
    what the garbage collector does not track."""
    kind = type(thing)
    if kind is list or kind is set:
        return not thing
    return (kind is dict or kind is tuple) and not gc.is_tracked(thing)


def fields(thing: object) -> dict[str, object]:
    """The instance's own `__dict__`, without asking its class's `__getattr__`; empty if none."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


class Contents:
    """Lists what an object holds: (path, thing) for items first, then for attributes.

    Reads items of built-in containers and `__dict__` or slots of all else, never a property. What
    each type offers is remembered, so use one for many objects and let it go. code: list functions,
    generators and frames too, and keys of dicts.
    """

    def __init__(self, code: bool = False) -> None:
        self._slots: dict[int, tuple[tuple[str, Any], ...]] = {}
        self._leaves = PLAIN_IDS if code else _LEAF_IDS
        self._lists_keys = code

    def of(self, thing: Any, path: str) -> Found:
        """What `thing`, written `path`, holds. May raise whatever a changing container raises."""
        kind = type(thing)
        if issubclass(kind, _LEAVES[1:]) or package_of(kind) in FOREIGN:
            return
        held = fields(thing)
        if issubclass(kind, dict):
            yield from self._attributes(held, path)  # outputs.logits reads better than its item
            yield from self._entries(thing, path)
        elif issubclass(kind, tuple):
            yield from self._elements(tuple, thing, path, _own(kind, "_fields"))
        elif issubclass(kind, list):
            yield from self._elements(list, thing, path)
        elif issubclass(kind, collections.deque):
            yield from self._elements(collections.deque, thing, path)
        elif issubclass(kind, set):
            yield from self._elements(set, thing, f"list({path})")
        elif issubclass(kind, frozenset):
            yield from self._elements(frozenset, thing, f"list({path})")
        elif _is_user_dict(kind) and issubclass(type(held.get("data")), dict):
            yield from self._entries(held["data"], path)
        if not issubclass(kind, dict):
            yield from self._attributes(held, path)
        yield from self._slotted(thing, kind, path)

    def _attributes(self, held: dict[str, object], path: str) -> Found:
        for name, value in list(held.items()):
            if id(type(value)) not in self._leaves and type(name) is str:
                yield attribute(path, name), value

    def _slotted(self, thing: object, kind: type, path: str) -> Found:
        slots = self._slots.get(id(kind))
        if slots is None:
            slots = self._slots[id(kind)] = tuple(_slots_of(kind))
        for name, slot in slots:
            try:
                value = slot.__get__(thing)
            except AttributeError:  # never assigned
                continue
            if id(type(value)) not in self._leaves:
                yield attribute(path, name), value

    def _elements(self, base: Any, thing: object, path: str, names: object = ()) -> Found:
        if _seems_plain(base, thing):
            return
        labels = names if type(names) is tuple else ()
        for i, value in enumerate(list(base.__iter__(thing))):
            if id(type(value)) not in self._leaves:
                yield (f"{path}.{labels[i]}" if i < len(labels) else f"{path}[{i}]"), value

    def _entries(self, held: Any, path: str) -> Found:
        if self._lists_keys:
            yield from self._elements(dict, held, f"list({path})")
        values = dict.values(held)
        if _seems_plain(type(values), values):
            return
        for i, (key, value) in enumerate(list(dict.items(held))):
            if id(type(value)) not in self._leaves:
                text = repr(key) if id(type(key)) in _PLAIN_KEYS else ""
                short = 0 < len(text) <= _LONGEST_KEY
                yield (f"{path}[{text}]" if short else f"list({path}.values())[{i}]"), value


def _is_user_dict(kind: type) -> bool:
    """As issubclass, which here would ask an abstract class, and that the hash of `kind`."""
    return type.__subclasscheck__(collections.UserDict, kind)


def package_of(kind: type) -> str:
    """The top package that a class says it is from; "" where it does not say."""
    name = _own(kind, "__module__")
    if type(name) is not str or (name, _own(kind, "__name__")) in _HOLDING:
        return ""
    return name.partition(".")[0]


def _own(kind: type, name: str) -> object:
    """An attribute of a class, past what its metaclass may do."""
    try:
        return type.__getattribute__(kind, name)
    except AttributeError:
        return None


def _slots_of(kind: type) -> Iterator[tuple[str, Any]]:
    for base in type.__getattribute__(kind, "__mro__"):
        own = type.__getattribute__(base, "__dict__")
        if "__slots__" in own:
            for name, value in own.items():
                if type(value) is types.MemberDescriptorType:
                    yield name, value


def seems_plain(thing: Any) -> bool:
    """Whether a list, dict, tuple or set of `SNIFF` entries or more is taken to hold nothing."""
    if type(thing) is dict and not _seems_plain(type(thing.values()), thing.values()):
        return False
    return _seems_plain(type(thing), thing)


def _seems_plain(base: Any, thing: Any) -> bool:
    """The same of what is a `base` or derived from it; of a dict, of its keys."""
    return base.__len__(thing) >= SNIFF and all(map(_is_record, _ends(base, thing, SNIFF)))


def _ends(base: Any, thing: Any, most: int) -> Iterator[Any]:
    """The first entries, and the last ones where they can be had; `most` of each."""
    yield from islice(base.__iter__(thing), most)
    backwards = getattr(base, "__reversed__", None)
    if backwards is not None:
        yield from islice(backwards(thing), most)


def _is_record(thing: Any, deep: int = _RECORDS_DEEP) -> bool:
    """Whether it is plain, or a container of such; of a large one its ends are looked at."""
    kind = type(thing)
    if id(kind) in _LEAF_IDS:
        return True
    if not deep or id(kind) not in _BUILT_IN:
        return False
    parts = (thing, thing.values()) if kind is dict else (thing,)
    return all(
        _is_record(one, deep - 1)
        for part in parts
        for one in _ends(type(part), part, _SNIFF_INSIDE)
    )


_RAW: Final = "_raw_saved_"


def raw_names(kind: type) -> tuple[str, ...]:
    """The attributes of a kind of node that show what it has saved, without unpacking it."""
    return tuple(name for name in dir(kind) if name.startswith(_RAW))


def raw_saved(node: Any, names: tuple[str, ...] | None = None) -> Iterator[tuple[str, Any]]:
    """What a node of an autograd graph has saved, not unpacked, as that could run user code and
    recompute: ("self", SavedTensor) for each tensor. names: its raw_names."""
    for name in raw_names(type(node)) if names is None else names:
        try:
            raw = getattr(node, name, None)
        except RuntimeError:  # a Function's, which a backward pass has freed
            continue
        given = raw if isinstance(raw, (tuple, list)) else (raw,)
        if any(each is not None and not hasattr(type(each), "data") for each in given):
            shown = name.replace(_RAW, "_saved_")  # of a Function it is saved_tensors
            given = _unpacked(node, shown if hasattr(type(node), shown) else shown[1:]) or given
        for each in given:
            if each is not None:
                yield name.removeprefix(_RAW), each


class _Unpacked(NamedTuple):
    data: Any
    unpack_hook: None = None


def _unpacked(node: Any, name: str) -> list[_Unpacked]:
    """What a node has saved as PyTorch from 2.10 on shows it, for those before; none where a hook
    stands before it, which the thread's profiler keeps from running, or it was freed."""
    import torch

    def refuse(frame: types.FrameType, event: str, argument: object) -> None:
        if event == "call":
            raise RuntimeError("a hook")

    if sys.getprofile() is not None:
        return []
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        sys.setprofile(refuse)
        try:
            found = getattr(node, name, None)
        except RuntimeError:
            return []
        finally:
            sys.setprofile(None)
        tensors = found if isinstance(found, (tuple, list)) else (found,)
        return [
            _Unpacked(each if each is None or each.is_leaf else each.detach()) for each in tensors
        ]


def with_derived(kind: type[Any]) -> Iterator[type[Any]]:
    """A class and all that are derived from it: to ask an object could run its `__class__`."""
    yield kind
    for derived in type.__subclasses__(kind):
        yield from with_derived(derived)


def is_node_type(kind: type) -> bool:
    """Whether the class is that of an autograd node."""
    bases = type.__getattribute__(kind, "__mro__")  # past what a metaclass may do
    tables = [type.__getattribute__(base, "__dict__") for base in bases]
    return all(
        any(name in table for table in tables) for name in ("next_functions", "register_prehook")
    )
