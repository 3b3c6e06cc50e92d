"""Several changes made at once: the result is Python, and each change is still what it was."""

from __future__ import annotations

import ast

import pytest

from gpumem_magic.advice.changes.combined import combined
from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rewrite import (
    UnsafeError,
    applied,
    import_line,
    insert_after,
    insert_before,
    replace,
    wrap,
)
from gpumem_magic.values.recording import Cell

SOURCE = "a = 1\nb = 2\nc = 3\nd = 4\n"


@pytest.fixture
def code():
    return Code(Cell(SOURCE, "<cell>"))


def made(code, *changes):
    text = applied(code.source, combined(code.source, changes))
    ast.parse(text)
    return text


def test_two_wraps_of_one_statement_nest(code):
    body = code.tree.body
    text = made(code, wrap(code, body[1:2], "with x:"), wrap(code, body[1:2], "with y:"))
    assert text == "a = 1\nwith x:\n    with y:\n        b = 2\nc = 3\nd = 4\n"


@pytest.mark.parametrize("first", [0, 1])
def test_a_wrap_inside_a_wrap_is_indented_twice(code, first):
    body = code.tree.body
    changes = [wrap(code, body[0:3], "with x:"), wrap(code, body[1:2], "with y:")]
    text = made(code, *(changes if not first else changes[::-1]))
    assert text == "with x:\n    a = 1\n    with y:\n        b = 2\n    c = 3\nd = 4\n"


@pytest.mark.parametrize("first", [0, 1])
def test_a_line_inside_a_wrapped_block_is_indented_with_it(code, first):
    body = code.tree.body
    outer = wrap(code, body[0:3], "with x:")
    for inner in (insert_before(code, body[1], "new()"), insert_after(code, body[0], "new()")):
        changes = [outer, inner]
        text = made(code, *(changes if not first else changes[::-1]))
        assert text == "with x:\n    a = 1\n    new()\n    b = 2\n    c = 3\nd = 4\n"


def test_a_line_above_a_wrapped_block_stays_outside(code):
    body = code.tree.body
    line, block = insert_before(code, body[1], "new()"), wrap(code, body[1:2], "with x:")
    for changes in ((line, block), (block, line)):
        assert made(code, *changes) == "a = 1\nnew()\nwith x:\n    b = 2\nc = 3\nd = 4\n"


def test_a_statement_that_is_replaced_by_many_lines_keeps_its_block(code):
    body = code.tree.body
    text = made(code, wrap(code, body[1:3], "with x:"), replace(code, body[1], "b = 5\nb += 1"))
    assert text == "a = 1\nwith x:\n    b = 5\n    b += 1\n    c = 3\nd = 4\n"


def test_an_import_and_a_wrap_of_the_first_statement(code):
    body = code.tree.body
    top = (*import_line(code, "import x"), *wrap(code, body[0:1], "with x.y():"))
    text = made(code, top, wrap(code, body[0:1], "with z:"))
    assert text.startswith("import x\nwith x.y():\n    with z:\n        a = 1\nb = 2\n")


def test_one_change_alone_is_what_it_was(code):
    one = wrap(code, code.tree.body[0:2], "with x:")
    assert made(code, one) == applied(SOURCE, one)


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_blocks_that_begin_together_the_longer_is_the_outer(code, first):
    body = code.tree.body
    changes = [wrap(code, body[0:2], "with x:"), wrap(code, body[0:1], "with y:")]
    text = made(code, *(changes if not first else changes[::-1]))
    assert text == "with x:\n    with y:\n        a = 1\n    b = 2\nc = 3\nd = 4\n"


@pytest.mark.parametrize("first", [0, 1])
def test_blocks_that_overlap_are_refused(code, first):
    body = code.tree.body
    changes = [wrap(code, body[0:2], "with x:"), wrap(code, body[1:3], "with y:")]
    with pytest.raises(UnsafeError):
        made(code, *(changes if not first else changes[::-1]))


def test_one_change_with_several_blocks_nests_in_each(code):
    body = code.tree.body
    two = (*wrap(code, body[0:2], "with x:"), *wrap(code, body[3:4], "with x:"))
    other = (*wrap(code, body[1:2], "with y:"), *wrap(code, body[3:4], "with y:"))
    assert made(code, two, other) == (
        "with x:\n    a = 1\n    with y:\n        b = 2\nc = 3\n"
        "with x:\n    with y:\n        d = 4\n"
    )
