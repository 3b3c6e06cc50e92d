from __future__ import annotations

import pytest

from gpumem_magic.trace.cell_flow import Repeats, read_flow

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
    flow = read_flow(LOOP)
    assert flow is not None
    assert kind(flow, line) is repeats
    assert (flow.places[line].always, flow.places[line].body) == (always, body)


def test_functions_comprehensions_and_lambdas_repeat():
    flow = read_flow("def f(x):\n    return x\nys = [f(x) for x in xs]\nz = map(lambda x: x, xs)\n")
    assert flow is not None
    found = [kind(flow, line) for line in (2, 3, 4)]
    assert found == [Repeats.CALL, Repeats.INLINE, Repeats.INLINE]


def test_a_body_on_the_line_of_its_loop_is_a_body():
    flow = read_flow("for x in xs: f(x)\n")
    assert flow is not None
    assert kind(flow, 1) is Repeats.LOOP
    assert flow.places[1].body


@pytest.mark.parametrize(
    ("body", "straight"),
    [("f(x)", True), ("if x: break\n  f(x)", False), ("if x: continue\n  f(x)", False)],
)
def test_a_loop_that_can_be_left_halfway_is_not_straight(body, straight):
    flow = read_flow(f"for x in xs:\n  {body}\n")
    assert flow is not None
    assert flow.regions[1].straight is straight


def test_a_nested_loop_runs_within_each_pass_of_the_outer_one():
    flow = read_flow("for a in b:\n  for c in a:\n    f(c)\n  if a:\n    g(a)\n")
    assert flow is not None
    outer, inner = flow.places[1].region, flow.places[3].region
    assert flow.within(3, outer)
    assert not flow.within(1, inner)
    assert not flow.within(5, outer)
    assert not flow.within(99, outer)


def test_ipython_syntax_is_set_aside_without_moving_lines():
    source = (
        "%%gpumem\n!nvidia-smi\nfiles = !ls\nnet?\nx = await f()\nfor x in xs:\n    %time g(x)\n"
    )
    flow = read_flow(source)
    assert flow is not None
    assert [kind(flow, line) for line in (5, 7)] == [Repeats.NEVER, Repeats.LOOP]


def test_a_percent_sign_that_continues_an_expression_is_python():
    flow = read_flow('x = ("%d"\n  % 3)\nfor x in xs:\n  f(x)\n')
    assert flow is not None
    assert kind(flow, 4) is Repeats.LOOP


def test_what_is_not_python_has_no_flow():
    assert read_flow("for for for") is None


def test_a_comprehension_that_prepares_a_call_does_not_repeat_its_line():
    flow = read_flow(
        "net = Sequential(*[Linear(2, 2) for _ in range(8)]).cuda()\nys = sum([f(x) for x in xs])\n"
    )
    assert flow is not None
    assert [kind(flow, line) for line in (1, 2)] == [Repeats.NEVER, Repeats.INLINE]
