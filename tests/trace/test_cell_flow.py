from __future__ import annotations

from types import SimpleNamespace

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from gpumem_magic.sources.stacks.callsite import CellFiles
from gpumem_magic.trace.cell_flow import Repeats, parse_cell, read_flow
from gpumem_magic.values.recording import Cell

LOOP = """\
for x in loader:
    loss = f(x)
    if loss > 1:
        log(loss)
    try:
        g(loss)
    finally:
        h(loss)
else:
    done()
with context():
    once()
"""

FILES = CellFiles(SimpleNamespace(transform_cell=TransformerManager().transform_cell))


def flow_of(source):
    """That of a cell as a notebook knows it, with its Python code."""
    return read_flow(parse_cell(FILES.with_code(Cell(source, "<cell>"))))


def kind(flow, line):
    return flow.regions[flow.places[line].region].repeats


@pytest.mark.parametrize(
    ("line", "repeats", "always", "body"),
    [
        (1, Repeats.LOOP, True, False),
        (2, Repeats.LOOP, True, True),
        (3, Repeats.LOOP, True, True),
        (4, Repeats.LOOP, False, True),
        (6, Repeats.LOOP, True, True),
        (8, Repeats.LOOP, True, True),
        (10, Repeats.NEVER, True, True),
        (12, Repeats.NEVER, True, True),
    ],
)
def test_the_place_of_each_line(line, repeats, always, body):
    flow = flow_of(LOOP)
    assert flow is not None
    assert kind(flow, line) is repeats
    assert (flow.places[line].always, flow.places[line].body) == (always, body)


def test_functions_comprehensions_and_lambdas_repeat():
    flow = flow_of("def f(x):\n    return x\nys = [f(x) for x in xs]\nz = map(lambda x: x, xs)\n")
    assert flow is not None
    found = [kind(flow, line) for line in (2, 3, 4)]
    assert found == [Repeats.CALL, Repeats.INLINE, Repeats.INLINE]


def test_a_body_on_the_line_of_its_loop_is_a_body():
    flow = flow_of("for x in xs: f(x)\n")
    assert flow is not None
    assert kind(flow, 1) is Repeats.LOOP
    assert flow.places[1].body


@pytest.mark.parametrize(
    ("body", "straight"),
    [("f(x)", True), ("if x: break\n  f(x)", False), ("if x: continue\n  f(x)", False)],
)
def test_a_loop_that_can_be_left_halfway_is_not_straight(body, straight):
    flow = flow_of(f"for x in xs:\n  {body}\n")
    assert flow is not None
    assert flow.regions[1].straight is straight


def test_a_nested_loop_runs_within_each_pass_of_the_outer_one():
    flow = flow_of("for a in b:\n  for c in a:\n    f(c)\n  if a:\n    g(a)\n")
    assert flow is not None
    outer, inner = flow.places[1].region, flow.places[3].region
    assert outer in flow.around(3)
    assert inner not in flow.around(1)
    assert outer not in flow.around(5)
    assert not list(flow.around(99))


def test_ipython_syntax_is_set_aside_without_moving_lines():
    source = (
        "%%gpumem\n!nvidia-smi\nfiles = !ls\nnet?\nx = await f()\nfor x in xs:\n    %time g(x)\n"
    )
    flow = flow_of(source)
    assert flow is not None
    assert [kind(flow, line) for line in (5, 7)] == [Repeats.NEVER, Repeats.LOOP]


def test_a_percent_sign_that_continues_an_expression_is_python():
    flow = flow_of('x = ("%d"\n  % 3)\nfor x in xs:\n  f(x)\n')
    assert flow is not None
    assert kind(flow, 4) is Repeats.LOOP


def test_what_is_not_python_has_no_flow():
    assert flow_of("for for for") is None


def test_a_comprehension_that_prepares_a_call_does_not_repeat_its_line():
    flow = flow_of(
        "net = Sequential(*[Linear(2, 2) for _ in range(8)]).cuda()\nys = sum([f(x) for x in xs])\n"
    )
    assert flow is not None
    assert [kind(flow, line) for line in (1, 2)] == [Repeats.NEVER, Repeats.INLINE]
