from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from collections import OrderedDict, defaultdict, deque
from typing import NamedTuple

import pytest


class Point(NamedTuple):
    x: list
    y: int = 2


class Slotted:
    __slots__ = ("__weakref__", "a", "b")


class Base:
    def __init__(self, **held):
        self.__dict__.update(held)

    def __getstate__(self):
        raise AssertionError("copies are not pickles")

    def method(self):
        return self


class Listed(list):
    pass


class Ordered(OrderedDict):
    pass


class Fallback(defaultdict):
    pass


class Frozen(frozenset):
    pass


@dataclasses.dataclass(frozen=True)
class Record:
    items: list


@pytest.mark.parametrize(
    "thing",
    [
        [1, [2]],
        (1, [2]),
        {"a": [1], 2: {"b": ()}},
        {1, (2, 3)},
        frozenset({(1, 2)}),
        deque([[1]], maxlen=3),
        OrderedDict(a=[1]),
        defaultdict(list, a=[1]),
        collections.Counter("aab"),
        collections.ChainMap({"a": [1]}),
        collections.UserDict(a=[1]),
        Point([1]),
        Record([1]),
        Listed([[1]]),
        Ordered(a=[1]),
        Fallback(list, a=[1]),
        bytearray(b"ab"),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_containers_are_copied_with_their_types(lend, thing):
    with lend(space := {"it": thing}) as found:
        copied = space["it"]
        assert type(copied) is type(thing)
        assert copied == thing
        assert found.notes == ()
        if not isinstance(thing, (frozenset, set)):
            assert _inner(copied) is not _inner(thing)
        assert getattr(copied, "maxlen", None) == getattr(thing, "maxlen", None)
        assert getattr(copied, "default_factory", None) is getattr(thing, "default_factory", None)


def _inner(thing):
    """The first list inside, or the thing itself."""
    if isinstance(thing, Record):
        return thing.items
    values = thing.values() if hasattr(thing, "values") else thing
    return next((value for value in values if isinstance(value, list)), thing)


def test_cycles_and_shared_parts_stay_cycles_and_shared(lend):
    shared = [1]
    knot = [shared, shared]
    knot.append(knot)
    pair = ([],)
    pair[0].append(pair)
    with lend(space := {"knot": knot, "shared": shared, "pair": pair}):
        copied = space["knot"]
        assert copied[2] is copied is not knot
        assert copied[0] is copied[1] is space["shared"] is not shared
        assert space["pair"][0][0] is space["pair"] is not pair


def test_instances_slots_and_bound_methods(lend):
    slotted = Slotted()
    slotted.a = [1]
    thing = Base(items=[1], slotted=slotted)
    space = {"thing": thing, "method": thing.method, "part": functools.partial(thing.method)}
    space["append"] = thing.items.append
    with lend(space) as found:
        assert space["thing"] is not thing
        assert space["thing"].slotted.a == [1]
        assert not hasattr(space["thing"].slotted, "b")
        assert space["method"]() is space["part"]() is space["thing"]
        space["append"](2)
        assert space["thing"].items == [1, 2]
        assert found.notes == ()
    assert thing.items == [1]


class Color(enum.Enum):
    RED = 1


def test_what_is_one_of_a_kind_is_shared_without_a_word(lend):
    import logging
    import pathlib
    import re

    kept = [Color.RED, logging.getLogger("x"), pathlib.Path("a"), re.compile("a"), object(), int]
    kept += [len, pytest, Ellipsis, range(3), Base, lambda: None]
    with lend(space := {"kept": list(kept)}) as found:
        assert all(a is b for a, b in zip(space["kept"], kept, strict=True))
        assert found.notes == ()


def test_keys_are_copied_too(lend):
    key = Base()
    with lend(space := {"table": {key: 1}, "key": key}):
        assert space["table"][space["key"]] == 1
        assert key not in space["table"]


def test_lists_of_numbers_are_not_looked_through_one_by_one(lend):
    numbers = list(range(100_000))
    with lend(space := {"numbers": numbers}):
        assert space["numbers"] == numbers
        space["numbers"].clear()
    assert len(numbers) == 100_000


def test_deep_nests_do_not_end_the_copying(lend):
    deep = []
    for _ in range(3000):
        deep = [deep]
    with lend({"deep": deep}):
        pass
