"""Rewrites on generated cells: what need not change stays byte for byte, and means the same."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest
from IPython.core.inputtransformer2 import TransformerManager

pytest.importorskip("hypothesis")
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rewrite import (
    UnsafeError,
    agree,
    applied,
    enclose,
    import_line,
    insert_after,
    insert_before,
    remove,
    remove_keyword,
    replace,
    set_keyword,
    unwrap,
    wrap,
)
from gpumem_magic.sources.stacks.callsite import CellFiles
from gpumem_magic.values.advice import Edit
from gpumem_magic.values.recording import Cell

SIMPLE = (
    "x = f(1)",
    "y = 'schön  #  no comment'  # a comment, gemütlich",
    'z = """first\n   second\n\n  third"""',
    "model(\n    x,  # one\n  y)",
    "a = b = [i for i in range(3)]",
    "s = f'{x!r:>{10}} {y}'",
    "t = ('one'\n     'two')",
    "u = 1 + \\\n    2",
    "print('λ', x, sep='')  ",
    "del x",
    "# only a comment\npass",
    "opt.step()",
    "w = f('''a\n  b''', k=2)",
)
BLOCKS = (
    "for i in range(3):",
    "while x:  # wait",
    "if x == 'ä':",
    "with open(p) as f, lock:",
    "try:",
    "def f(a, *, k=1):",
    "class A:",
    "@decorated(1)\n@other\nasync def g(a):",
)
FILES = CellFiles(SimpleNamespace(transform_cell=TransformerManager().transform_cell))


def cell_of(source):
    """The cell as a notebook knows it, with its Python code."""
    return FILES.with_code(Cell(source, "c"))


HEADERS = ("", "%%gpumem -q\n", "%matplotlib inline\n", "!pip list\n\n", "\n# title\n")


def indented(text, indent):
    """A whole block deeper, but not what lies inside strings."""
    code = Code(cell_of(text))
    inside = code.lines_inside_strings()
    return "\n".join(
        line if number in inside or not line.strip() else indent + line
        for number, line in enumerate(text.split("\n"), 1)
    )


@st.composite
def bodies(draw, depth=0):
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        if depth < 2 and draw(st.booleans()):
            head = draw(st.sampled_from(BLOCKS))
            body = indented(draw(bodies(depth=depth + 1)), draw(st.sampled_from(("  ", "    "))))
            tail = "\nfinally:\n    pass" if head == "try:" else ""
            parts.append(f"{head}\n{body}{tail}")
        else:
            parts.append(draw(st.sampled_from(SIMPLE)))
        if draw(st.booleans()):
            parts.append("")
    return "\n".join(parts)


@st.composite
def codes(draw):
    source = draw(st.sampled_from(HEADERS)) + draw(bodies()) + draw(st.sampled_from(("", "\n")))
    code = Code(cell_of(source))
    assume(code.tree.body)
    return code


def statements(code):
    return [node for node in ast.walk(code.tree) if isinstance(node, ast.stmt)]


def unmarked(code, statement):
    """Not a line of IPython's own."""
    return code.lines[code.first_line(statement) - 1].lstrip()[:1] not in ("%", "!")


def pick(data, code, kind=ast.stmt):
    found = [s for s in statements(code) if isinstance(s, kind) and unmarked(code, s)]
    assume(found)
    return data.draw(st.sampled_from(found))


def outside_of(source, edits):
    """The text that no edit replaces."""
    kept, done = [], 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        kept.append(source[done : edit.start])
        done = edit.end
    return "".join([*kept, source[done:]])


def dump(nodes):
    return [ast.dump(node) for node in nodes]


def tree_of(source):
    return Code(cell_of(source)).tree


@settings(max_examples=150, deadline=None)
@given(codes(), st.data())
def test_wrapped_statements_mean_what_they_meant(code, data):
    first = pick(data, code)
    block = code.block(first)
    place = block.index(first)
    chosen = block[place : place + data.draw(st.integers(1, 3))]
    try:
        edits = wrap(code, chosen, "with torch.no_grad():")
    except UnsafeError:
        return
    source = applied(code.source, edits)
    # THEN only insertions were made, so that every character of the cell is still there, in order
    assert all(edit.start == edit.end for edit in edits)
    assert outside_of(code.source, edits) == code.source

    # AND taking the `with` away again gives the same tree
    class Unwrap(ast.NodeTransformer):
        def visit_With(self, node):
            self.generic_visit(node)
            return node.body if "no_grad" in ast.dump(node.items[0]) else node

    assert ast.dump(Unwrap().visit(tree_of(source))) == ast.dump(code.tree)

    # AND the cell itself, as it was
    wrapped = Code(cell_of(source))
    (around,) = (n for n in wrapped.nodes(ast.With) if "no_grad" in ast.dump(n.items[0]))
    assert applied(source, unwrap(wrapped, around)) == code.source


@settings(max_examples=100, deadline=None)
@given(codes(), st.data(), st.sampled_from((insert_before, insert_after)))
def test_a_new_line_changes_nothing_else(code, data, insert):
    statement = pick(data, code)
    try:
        edits = insert(code, statement, "del old")
    except UnsafeError:
        return
    source = applied(code.source, edits)
    assert outside_of(code.source, edits) == code.source
    lines = [line for line in source.split("\n") if line.strip() != "del old"]
    assert lines == code.lines
    assert len(statements(Code(cell_of(source)))) == len(statements(code)) + 1


@settings(max_examples=100, deadline=None)
@given(codes(), st.data())
def test_a_removed_statement_is_all_that_goes(code, data):
    statement = pick(data, code)
    try:
        edits = remove(code, statement)
    except UnsafeError:
        return
    assume(len(code.tree.body) > 1 or statement is not code.tree.body[0])
    source = applied(code.source, edits)
    alone = len(code.block(statement)) == 1
    inner = [node for node in ast.walk(statement) if isinstance(node, ast.stmt)]
    left = len(statements(code)) - len(inner) + alone
    assert len(statements(Code(cell_of(source)))) == left
    (edit,) = edits
    first, last = code.first_line(statement), statement.end_lineno
    # AND nothing outside its lines is touched, and of these no comment where `pass` is put
    assert code.offset(first, 0) - 1 <= edit.start
    assert edit.end <= code.offset(last, 0) + len(code.lines[last - 1]) + 1
    if edit.text == "pass":
        assert edit.end == code.span(statement)[1]


@settings(max_examples=100, deadline=None)
@given(codes(), st.data())
def test_an_expression_is_enclosed_or_replaced_where_it_stands(code, data):
    found = [n for n in ast.walk(code.tree) if isinstance(n, (ast.Call, ast.Name))]
    found = [n for n in found if unmarked(code, n)]
    found = [n for n in found if not any(isinstance(a, ast.JoinedStr) for a in code.ancestors(n))]
    found = [n for n in found if isinstance(getattr(n, "ctx", ast.Load()), ast.Load)]
    assume(found)
    node = data.draw(st.sampled_from(found))
    text = code.text(node)
    assert ast.dump(ast.parse(f"({text})").body[0].value) == ast.dump(node)
    enclosed = applied(code.source, enclose(code, node, "keep(", ")"))
    assert f"keep({text})" in enclosed
    assert tree_of(enclosed).body
    replaced = applied(code.source, replace(code, node, "other"))
    assert len(replaced) == len(code.source) - len(text) + len("other")
    assert tree_of(replaced).body


CALLS = (
    ("f()", "f(k=1)"),
    ("f(a)", "f(a, k=1)"),
    ("f(a,)", "f(a, k=1,)"),
    ("f(\n    a,  # first\n    b=2,\n)", "f(\n    a,  # first\n    b=2, k=1,\n)"),
    ("f((a))", "f((a), k=1)"),
    ("f((a for a in b))", "f((a for a in b), k=1)"),
    ("f(*a)", "f(*a, k=1)"),
    ("f(k=2)", "f(k=1)"),
    ("f(g(x), k = 'ü', b=3)", "f(g(x), k = 1, b=3)"),
    ("f(lambda: (1, 2))", "f(lambda: (1, 2), k=1)"),
)


@pytest.mark.parametrize(("before", "after"), CALLS)
def test_a_keyword_is_set(before, after):
    code = Code(cell_of(before))
    assert applied(before, set_keyword(code, code.tree.body[0].value, "k", "1")) == after


@pytest.mark.parametrize("text", ["f(**options)", "f(a for a in b)"])
def test_a_keyword_that_cannot_be_set_safely_is_not(text):
    code = Code(cell_of(text))
    with pytest.raises(UnsafeError):
        set_keyword(code, code.tree.body[0].value, "k", "1")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a, k=1)", "f(a)"),
        ("f(k=1)", "f()"),
        ("f(k=1, b=2)", "f(b=2)"),
        ("f(a,\n  k=(1),\n  b=2)", "f(a,\n  b=2)"),
    ],
)
def test_a_keyword_is_removed(before, after):
    code = Code(cell_of(before))
    assert applied(before, remove_keyword(code, code.tree.body[0].value, "k")) == after


@pytest.mark.parametrize("text", ["a = 1; b = 2", "for i in x: f(i)", "if a: b; c"])
def test_lines_with_several_statements_are_left_alone(text):
    code = Code(cell_of(text))
    inner = statements(code)[-1]
    for change in (lambda: wrap(code, [inner], "with a:"), lambda: remove(code, inner)):
        with pytest.raises(UnsafeError):
            change()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = 1; b = 2  # two", "a = 1; del c; b = 2  # two"),
        ("for i in x: a = 1; b = 2", "for i in x: a = 1; del c; b = 2"),
        ("if x:\n\tf(); a = 1; b = f(\n    2)", "if x:\n\tf(); a = 1; del c; b = f(\n    2)"),
    ],
)
def test_a_short_statement_joins_those_that_share_a_line(before, after):
    code = Code(cell_of(before))
    first, second = [s for s in statements(code) if isinstance(s, ast.Assign)]
    assert applied(before, insert_after(code, first, "del c")) == after
    assert applied(before, insert_before(code, second, "del c")) == after
    for text in ("with a:", "del c\ndel d", "    del c"):
        with pytest.raises(UnsafeError):
            insert_after(code, first, text)


def test_an_import_goes_below_the_magics():
    source = "%%gpumem\n# title\nx = 1"
    code = Code(cell_of(source))
    assert applied(source, import_line(code, "import torch")) == (
        "%%gpumem\n# title\nimport torch\nx = 1"
    )


def test_changes_to_the_same_text_do_not_go_together():
    one, other, third = (Edit(0, 5, "a"),), (Edit(4, 8, "b"),), (Edit(5, 5, "c"),)
    assert not agree(one, other)
    assert agree(one, third)
    with pytest.raises(UnsafeError):
        applied("0123456789", [*one, *other])
    assert applied("0123456789", [*one, *third]) == "ac56789"
    assert applied("0123456789", [Edit(2, 5, ""), Edit(4, 8, "")]) == "0189"
