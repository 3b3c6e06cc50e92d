"""Copies of Python's containers and of instances of Python classes, item by item."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from gpumem_magic.sources.virtual.dryrun.atoms import ATOMS
from gpumem_magic.sources.virtual.dryrun.paths import ATTRIBUTE, ITEM, PART, Path, Step

if TYPE_CHECKING:
    from gpumem_magic.sources.virtual.dryrun.copier import Copier

Handler = Callable[["Copier", Any, Path], Any]


def copy_list(copier: Copier, thing: list[Any], path: Path) -> list[Any]:
    """A list of copies; one of a million numbers is not looked through one by one."""
    if ATOMS.issuperset(map(type, thing)):
        return thing[:]
    made: list[Any] = []
    copier.memo[id(thing)] = made
    _extend(copier, made.append, thing, path)
    return made


def copy_tuple(copier: Copier, thing: tuple[Any, ...], path: Path) -> tuple[Any, ...]:
    """A tuple of copies; itself where none of its items has one."""
    if ATOMS.issuperset(map(type, thing)):
        return thing
    items: list[Any] = []
    _extend(copier, items.append, thing, path)
    if all(a is b for a, b in zip(items, thing, strict=True)):
        return thing
    # an item that refers back to the tuple has made the copy by now
    found: tuple[Any, ...] = copier.memo.get(id(thing)) or tuple(items)
    return found


def copy_dict(copier: Copier, thing: dict[Any, Any], path: Path) -> dict[Any, Any]:
    """A dict of copies, keys included: optimizers have parameters for keys."""
    if ATOMS.issuperset(map(type, thing.values())) and ATOMS.issuperset(map(type, thing)):
        return thing.copy()
    made: dict[Any, Any] = {}
    copier.memo[id(thing)] = made
    _fill(copier, made.__setitem__, list(thing.items()), path)
    return made


def copy_ordered(copier: Copier, thing: OrderedDict[Any, Any], path: Path) -> Any:
    """The same for an OrderedDict, of which a module has several, mostly empty."""
    made: OrderedDict[Any, Any] = OrderedDict()
    copier.memo[id(thing)] = made
    if thing:
        _fill(copier, made.__setitem__, list(thing.items()), path)
    return made


def copy_default(copier: Copier, thing: defaultdict[Any, Any], path: Path) -> Any:
    """A defaultdict with its factory."""
    made: defaultdict[Any, Any] = defaultdict()
    copier.memo[id(thing)] = made
    made.default_factory = copier.copy(thing.default_factory, path)
    _fill(copier, made.__setitem__, list(thing.items()), path)
    return made


def copy_set(copier: Copier, thing: set[Any], path: Path) -> set[Any]:
    """A set of copies."""
    if ATOMS.issuperset(map(type, thing)):
        return thing.copy()
    made: set[Any] = set()
    copier.memo[id(thing)] = made
    _extend(copier, made.add, thing, path)
    return made


def copy_frozenset(copier: Copier, thing: frozenset[Any], path: Path) -> frozenset[Any]:
    """A frozenset of copies."""
    if ATOMS.issuperset(map(type, thing)):
        return thing
    items: list[Any] = []
    _extend(copier, items.append, thing, path)
    return frozenset(items)


def copy_deque(copier: Copier, thing: deque[Any], path: Path) -> deque[Any]:
    """A deque of copies, of the same greatest length."""
    made: deque[Any] = deque(maxlen=thing.maxlen)
    copier.memo[id(thing)] = made
    _extend(copier, made.append, thing, path)
    return made


def copy_bytes(copier: Copier, thing: bytearray, path: Path) -> bytearray:
    """Bytes that can be written."""
    return thing[:]


def instances_of(kind: type) -> Handler | None:
    """How to copy instances of a class written in Python; None where its C base is another.

    Attributes are copied as they are, past `__getstate__` and `__setattr__`: what a class leaves
    out of a pickle (hooks, locks, caches) belongs to a copy that the code runs on.
    """
    if _pickles_itself(kind):
        return None
    base: Any = next((b for b in _BASES if issubclass(kind, b)), object)
    slots = tuple(_slots_of(kind))
    fill = _FILLS.get(base)

    def copy_instance(copier: Copier, thing: Any, path: Path) -> Any:
        made = base.__new__(kind)
        copier.memo[id(thing)] = made
        try:
            held = object.__getattribute__(thing, "__dict__")
        except AttributeError:
            held = None
        if held:
            own = object.__getattribute__(made, "__dict__")
            for name, value in list(held.items()):
                own[name] = (
                    value
                    if type(value) in ATOMS
                    else copier.copy(value, Step(path, ATTRIBUTE, name))
                )
        for name, slot in slots:
            try:
                value = slot.__get__(thing)
            except AttributeError:  # never assigned
                continue
            slot.__set__(made, copier.copy(value, Step(path, ATTRIBUTE, name)))
        if fill is not None:
            fill(copier, thing, made, path)
        return made

    def copy_record(copier: Copier, thing: Any, path: Path) -> Any:
        """Subclasses of tuple: named tuples and the like."""
        items: list[Any] = []
        _extend(copier, items.append, tuple.__iter__(thing), path)
        if not hasattr(thing, "__dict__") and all(map(_same, items, tuple.__iter__(thing))):
            return thing
        made = kind(items) if hasattr(kind, "n_fields") else tuple.__new__(kind, items)
        if getattr(thing, "__dict__", None):
            made.__dict__.update(copier.copy(dict(thing.__dict__), path))
        return made

    return copy_record if base is tuple else copy_instance


def _same(a: object, b: object) -> bool:
    return a is b


def _pickles_itself(kind: type) -> bool:
    if issubclass(kind, _BASES):
        return False
    made_in_c = types.BuiltinMethodType  # classes written in Python have a static method
    if any(type(vars(base).get("__new__")) is made_in_c for base in kind.__mro__[:-1]):
        return True
    own: Any = kind
    return (
        own.__reduce_ex__ is not object.__reduce_ex__
        or own.__reduce__ is not object.__reduce__
        or hasattr(kind, "__getnewargs_ex__")
        or hasattr(kind, "__getnewargs__")
    )


def _slots_of(kind: type) -> Iterator[tuple[str, Any]]:
    for base in kind.__mro__:
        if "__slots__" in base.__dict__:
            for name, value in base.__dict__.items():
                if type(value) is types.MemberDescriptorType:
                    yield name, value


def _extend(copier: Copier, add: Callable[[Any], Any], items: Any, path: Path) -> None:
    for i, item in enumerate(items):
        add(item if type(item) in ATOMS else copier.copy(item, Step(path, ITEM, i)))


def _fill(copier: Copier, put: Callable[[Any, Any], Any], entries: Any, path: Path) -> None:
    for key, value in entries:
        put(
            key if type(key) in ATOMS else copier.copy(key, Step(path, PART, "key")),
            value if type(value) in ATOMS else copier.copy(value, Step(path, ITEM, key)),
        )


def _fill_list(copier: Copier, thing: Any, made: Any, path: Path) -> None:
    _extend(copier, lambda item: list.append(made, item), list.__iter__(thing), path)


def _fill_set(copier: Copier, thing: Any, made: Any, path: Path) -> None:
    _extend(copier, lambda item: set.add(made, item), set.__iter__(thing), path)


def _fill_deque(copier: Copier, thing: Any, made: Any, path: Path) -> None:
    deque.__init__(made, (), thing.maxlen)
    _extend(copier, lambda item: deque.append(made, item), deque.__iter__(thing), path)


def _fill_dict(copier: Copier, thing: Any, made: Any, path: Path) -> None:
    entries = list(dict.items(thing))
    _fill(copier, lambda key, value: dict.__setitem__(made, key, value), entries, path)


def _fill_ordered(copier: Copier, thing: Any, made: Any, path: Path) -> None:
    entries = list(OrderedDict.items(thing))
    _fill(copier, lambda key, value: OrderedDict.__setitem__(made, key, value), entries, path)


def _fill_default(copier: Copier, thing: Any, made: Any, path: Path) -> None:
    made.default_factory = copier.copy(thing.default_factory, path)
    _fill_dict(copier, thing, made, path)


_BASES: Final = (OrderedDict, defaultdict, dict, list, set, deque, tuple)
"""Built-in bases whose contents are copied apart; the more special ones first."""

_FILLS: Final[dict[type, Any]] = {
    OrderedDict: _fill_ordered,
    defaultdict: _fill_default,
    dict: _fill_dict,
    list: _fill_list,
    set: _fill_set,
    deque: _fill_deque,
}

CONTAINERS: Final[dict[type, Handler]] = {
    list: copy_list,
    tuple: copy_tuple,
    dict: copy_dict,
    OrderedDict: copy_ordered,
    defaultdict: copy_default,
    set: copy_set,
    frozenset: copy_frozenset,
    deque: copy_deque,
    bytearray: copy_bytes,
}
