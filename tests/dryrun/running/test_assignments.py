"""Other values for a cell's variables: at the right places, on the same lines."""

from __future__ import annotations

import ast

import pytest

from gpumem_magic.dryrun.running.assignments import with_values


def put(code, **values):
    tree, elsewhere = with_values(ast.parse(code), values)
    return ast.unparse(tree), elsewhere


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("n = 4\nf(n)", "n = 9\nf(n)"),
        ("n: int = 4", "n: int = 9"),
        ("m = n = g()", "m = n = 9"),
        ("n = 4\nn = n * 2\nf(n)", "n = 9\nn = 9\nf(n)"),
        ("if a:\n    n = 4\nelse:\n    n = 5", "if a:\n    n = 9\nelse:\n    n = 9"),
        ("n = 4\nf(n)\nn = 5\ng(n)", "n = 9\nf(n)\nn = 5\ng(n)"),
        ("def f():\n    n = 4\n    g(n)", "def f():\n    n = 9\n    g(n)"),
        ("n = 4\ndef f():\n    n = 5", "n = 9\ndef f():\n    n = 5"),
        ("def f():\n    global n\n    n = 4", "def f():\n    global n\n    n = 9"),
        ("def f():\n    g(n)\nn = 4\nf()", "def f():\n    g(n)\nn = 9\nf()"),
        ("x = [n for n in y]\nn = 4", "x = [n for n in y]\nn = 9"),
        ("load(x, n=4)\ntest(n=4, m=4)", "load(x, n=9)\ntest(n=9, m=4)"),
        ("def f():\n    g(h(n=4))", "def f():\n    g(h(n=9))"),
        ("n = 4\nload(n=5)", "n = 9\nload(n=5)"),
    ],
)
def test_what_the_first_use_sees_is_replaced(code, expected):
    text, elsewhere = put(code, n=9)
    assert text == ast.unparse(ast.parse(expected))
    assert elsewhere == frozenset()


@pytest.mark.parametrize(
    "code",
    [
        "f(n)",
        "f(n)\ng(n=4)",
        "def f():\n    g(n, n=4)",
        "f(n=m)",
        "f(n=True)",
        "f(n)\nn = 4",
        "def f(n=4):\n    n = n or 5",
        "class A:\n    n = 4",
        "n: int",
    ],
)
def test_what_the_cell_does_not_assign_lives_elsewhere(code):
    text, elsewhere = put(code, n=9)
    assert text == ast.unparse(ast.parse(code))
    assert elsewhere == {"n"}


@pytest.mark.parametrize(
    "code",
    [
        "for n in x: pass",
        "n = 1\nn += 1\nf(n)",
        "n, m = 1, 2",
        "if (n := 4): pass",
        "with a as n: pass",
        "def f():\n    n, m = 1, 2",
        "load(n=4)\ntest(n=5)",
    ],
)
def test_what_cannot_be_replaced_is_named(code):
    with pytest.raises(ValueError, match=r"line \d .*'n'|'n' .*line \d"):
        put(code, n=9)


def test_lines_stay_and_the_tree_given_too():
    tree = ast.parse("n = (\n    4 +\n    5\n)\nf(n)")
    other, _ = with_values(tree, {"n": 9})
    assert [node.lineno for node in other.body] == [1, 5]
    assert other.body[0].value.lineno == 2
    assert ast.unparse(tree).startswith("n = 4 + 5")
    compile(other, "<cell>", "exec")
