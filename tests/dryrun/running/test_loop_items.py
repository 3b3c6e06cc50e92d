"""Iterations unlike those that ran are found without running the others."""

from __future__ import annotations

import ast

import pytest
import torch

from gpumem_magic.dryrun.running.loop_items import Items, can_look_ahead, outcomes_of


def function(code):
    (made,) = outcomes_of(ast.parse(code).body[0])
    tree = ast.fix_missing_locations(ast.Expression(made))
    return eval(compile(tree, "<cell>", "eval"), {"every": 5})


def test_outcomes_of_the_loops_variable_tell():
    tests = function("for i, x in y:\n    if i % every == 4:\n        pass\n")
    assert [tests((i, None)) for i in (3, 4)] == [[(False,)], [(True,)]]


@pytest.mark.parametrize("test", ["x > best", "f(i)", "(i := 3) > 2", "best"])
def test_others_are_not_asked(test):
    loop = ast.parse(f"for i in y:\n    x = i\n    if {test}:\n        pass\n").body[0]
    assert outcomes_of(loop) == []


def test_the_next_item_of_another_kind_is_found_then_the_last():
    items = Items(lambda i: i % 50 == 49)
    rest = iter(range(100))
    for _ in range(3):
        items.ran(next(rest))
    assert items.next_unlike(rest) == (49, 50)
    items.ran(49)
    assert items.next_unlike(rest) == (99,)


def test_shapes_tell_and_numbers_where_they_did_not_change():
    items = Items(None)
    items.ran((torch.ones(3), 8))
    assert items.next_unlike(iter([(torch.ones(3), 8), (torch.ones(4), 8), 0]))[1:] == (0,)
    assert items.next_unlike(iter([(torch.ones(3), 8), (torch.ones(3), 9), 0]))[1:] == (0,)


def test_only_what_is_there_already_is_looked_at():
    assert can_look_ahead(enumerate(zip(range(3), [1, 2], strict=False)))
    assert not can_look_ahead(x for x in range(3))
    assert not can_look_ahead(enumerate(map(str, range(3))))
