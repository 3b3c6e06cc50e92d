"""What is passed by holds nothing, and what may hold something is not passed by."""

from __future__ import annotations

import collections
import gc
import sys
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.sources.holders.tensorless import Tensorless  # noqa: E402
from gpumem_magic.sources.holders.walk import _sort  # noqa: E402


class Thing:
    def __init__(self, *held):
        self.number = 1
        self.held = list(held)


class Slots:
    __slots__ = ("held",)


def passed_by(*things):
    """Which of the things are taken to lead to no tensor."""
    tensorless = Tensorless(partial(_sort, torch, lambda tensor: tensor.data_ptr()))
    others = list(tensorless.others(things, lambda thing: thing))
    return [all(thing is not other for other in others) for thing in things]


def ring():
    thing = Thing()
    thing.held.append(thing)
    return thing


def slotted(held):
    thing = Slots()
    thing.held = held
    return thing


@pytest.mark.parametrize(
    "thing",
    [
        1,
        "a",
        lambda: TENSOR,
        [1, [2, {"a": (3,)}]],
        Thing(Thing(), {}),
        ring(),
        slotted("a"),
        list(range(10**6)),
    ],
)
def test_numbers_texts_and_objects_of_these_are_passed_by(thing):
    assert passed_by(thing) == [True]


TENSOR = torch.ones(1)
HOLDERS = {
    "tensor": TENSOR,
    "list": [[[TENSOR]]],
    "object": Thing(Thing({"a": TENSOR})),
    "slot": slotted([TENSOR]),
    "key": {(1, TENSOR): 1},
    "deque": collections.deque([TENSOR]),
    "iterator": iter([TENSOR]),
    "module": [torch.nn.Linear(1, 1)],
    "function": [(lambda t: lambda: t)(TENSOR)],
    "default": [lambda t=TENSOR: t],
    "bound method": [TENSOR.add],
    "class": [Thing],
    "error": [ValueError(TENSOR)],
    "storage": [TENSOR.untyped_storage()],
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_leads_to_a_tensor_or_to_code_is_not(name):
    assert passed_by(HOLDERS[name]) == [False]


def test_among_many_the_one_is_found():
    things = [Thing(Thing()) for _ in range(300)]
    things[217].held.append(TENSOR)

    assert [i for i, passed in enumerate(passed_by(*things)) if not passed] == [217]


def test_what_two_share_is_no_reason_to_pass_by():
    shared = Thing(TENSOR)

    assert passed_by(Thing(shared), Thing(shared), shared, Thing()) == [False, False, False, True]


def test_looking_for_nothing_comes_to_an_end():
    chain = [TENSOR]
    for _ in range(3000):
        chain = [1, chain]
    things = [[chain] for _ in range(200)]

    assert passed_by(*things) == [False] * 200


def test_no_attribute_dictionary_comes_to_be():
    things = [Thing() for _ in range(10)]
    assert all(passed_by(*things))
    if sys.version_info >= (3, 11):
        made = [thing for thing in things if any(type(r) is dict for r in gc.get_referents(thing))]
        assert made == []
