"""What the index of a tree says, against a walk of the same tree."""

from __future__ import annotations

import ast

import pytest

from gpumem_magic.advice.tree import Tree
from gpumem_magic.advice.work import TooMuchWorkError, Work

SOURCE = """\
x = f(a)
for b in c:
    if b:
        x = g(x, b)
    else:
        y = x
def h(x):
    return x + b
print(x)
"""


@pytest.fixture
def tree():
    return Tree(ast.parse(SOURCE))


def lines(nodes):
    return [node.lineno for node in nodes]


def test_nodes_come_in_the_order_of_the_text_and_of_a_part_only(tree):
    loop = tree.tree.body[1]
    assert lines(tree.nodes(ast.Assign)) == [1, 4, 6]
    assert lines(tree.nodes(ast.Assign, within=loop)) == [4, 6]
    assert lines(tree.nodes(ast.For, ast.Assign)) == [1, 2, 4, 6]
    assert {node for node in tree.walk(loop) if isinstance(node, ast.expr)} == {
        node for node in ast.walk(loop) if isinstance(node, ast.expr)
    }


def test_names_are_looked_up(tree):
    loop, function = tree.tree.body[1:3]
    assert lines(tree.reads("x")) == [4, 6, 8, 9]
    assert lines(tree.reads("x", function)) == [8]
    assert lines(tree.assigned("x")) == [1, 4]
    assert tree.spoken(loop) == {"b", "c", "g", "x", "y"}


def test_statements_know_their_lines_and_blocks(tree):
    first, loop, function, last = tree.tree.body
    assert [tree.statement_at(n).lineno for n in range(1, 10)] == [1, 2, 3, 4, 3, 6, 7, 8, 9]
    assert tree.after(first, until=last) == [loop, function]
    assert tree.before(last) == [first, loop, function]
    reads = tree.reads("x")
    assert [tree.beside(read, first) for read in reads] == [1, 1, 2, 3]
    assert lines(tree.above(reads, last)) == [8, 6, 4]
    assert tree.inside(reads[0], loop)
    assert not tree.inside(reads[0], function)


def test_what_is_looked_at_is_counted():
    tree = Tree(ast.parse(SOURCE), Work(limit=20))
    assert len(tree.reads("x")) == 4
    with pytest.raises(TooMuchWorkError):
        tree.walk()
