"""How often a line ran: realistic allocations of loops, written by hand."""

from __future__ import annotations

import pytest

from gpumem_magic.trace import build_trace
from gpumem_magic.values.recording import Category, Cell, Frame, Phase

LOOP = "outs = []\nfor i in range(n):\n    outs.append(model(x))\n"
COMPREHENSION = "pass\npass\nouts = [model(x) for i in range(n)]\n"
TRAINING = """\
for step in range(20):
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
"""


def counts(recording):
    return {line.number: line.count for line in build_trace(recording).lines}


def linear(s, frames, key, line=3, size=1024):
    s.alloc(key, size, line, frames.module("linear"))


def relu(s, frames, key, line=3, size=1024):
    s.alloc(key, size, line, frames.module("activation"))


@pytest.mark.parametrize("source", [LOOP, COMPREHENSION, ""])
def test_a_loop_on_one_line_repeats_its_allocations(script, frames, source):
    """Sequential(Linear, ReLU, Linear): the linear layers share a stack."""
    s = script(source)
    for i in range(128):
        linear(s, frames, f"a{i}")
        relu(s, frames, f"b{i}")
        s.free(f"a{i}", 3)
        linear(s, frames, f"c{i}")
    assert counts(s.recording()) == {3: 128}


def test_layers_alike_are_told_apart_by_who_keeps_their_output(script, frames):
    """Sequential(Linear, ReLU, Linear, ReLU): only the last output has a name."""
    s = script(LOOP)
    for i in range(128):
        for half in "ab":
            linear(s, frames, f"{half}{i}")
            relu(s, frames, f"{half}r{i}")
            s.free(f"{half}{i}", 3)
    for i in range(128):
        s.label(f"br{i}", name=f"outs[{i}]", graph=True)
    assert counts(s.recording()) == {3: 128}


def test_layers_alike_are_told_apart_by_where_their_output_dies(script, frames):
    """The same without grad and with each result dropped in the next pass."""
    s = script(LOOP)
    sequential = (Frame("/lib/torch/nn/modules/container.py", 250, "forward"),)
    for i in range(50):
        linear(s, frames, f"a{i}")
        relu(s, frames, f"b{i}")
        s.free(f"a{i}", 3, sequential)
        linear(s, frames, f"c{i}")
        s.free(f"b{i}", 3, sequential)
        relu(s, frames, f"d{i}")
        s.free(f"c{i}", 3, sequential)
        if i:
            s.free(f"d{i - 1}", 3)
    assert counts(s.recording()) == {3: 50}


def test_a_workspace_is_no_sign_of_a_pass(script, frames):
    s = script(LOOP)
    for i in range(10):
        linear(s, frames, f"a{i}")
        if i == 0:
            linear(s, frames, "workspace", size=8519680)
            s.label("workspace", Category.WORKSPACE)
    assert counts(s.recording()) == {3: 10}


def test_a_statement_outside_loops_ran_once_however_often_its_layers_repeat(script, frames):
    s = script("out = model(x)\n")
    for i in range(12):
        linear(s, frames, f"a{i}", line=1)
    assert counts(s.recording()) == {1: 1}


def test_a_pass_may_repeat_its_layers_too(script, frames):
    """Twelve blocks between an embedding and a head, five times over."""
    s = script(LOOP)
    for i in range(5):
        s.alloc(f"e{i}", 512, 3, frames.module("sparse"))
        for block in range(12):
            linear(s, frames, f"a{i}.{block}")
            relu(s, frames, f"b{i}.{block}")
        s.alloc(f"h{i}", 512, 3, frames.module("head"))
    assert counts(s.recording()) == {3: 5}


def test_a_pass_cut_short_by_a_failure_counts(script, frames):
    s = script(LOOP)
    for i in range(9):
        linear(s, frames, f"a{i}")
        relu(s, frames, f"b{i}")
        linear(s, frames, f"c{i}", size=2048)
    linear(s, frames, "a9")
    s.fail(1024, 3)
    assert counts(s.recording(error="OutOfMemoryError")) == {3: 10}


def test_irregular_passes_count_by_their_rarest_stack(script, frames):
    s = script(LOOP)
    for i in range(7):
        linear(s, frames, f"a{i}")
        for k in range(1 + i * i % 5):
            relu(s, frames, f"b{i}.{k}")
    assert counts(s.recording()) == {3: 7}


def training(s, frames, steps, momentum=True):
    """Each line has events in some steps only: gradients are freed from the second step on."""
    for step in range(steps):
        if step:
            s.free("grad", 2)
        linear(s, frames, "out")
        if step:
            s.free("loss", 3)
        s.alloc("loss", 512, 3)
        s.alloc("root", 512, 4, frames.root, Phase.BACKWARD)
        s.alloc("grad", 4096, 4, frames.engine, Phase.BACKWARD)
        s.free("out", 4, frames.engine, Phase.BACKWARD)
        s.free("root", 4, frames.engine, Phase.BACKWARD)
        if momentum and step == 0:
            s.alloc("state", 4096, 5, phase=Phase.OPTIMIZER)
        if not momentum:
            s.alloc("scratch", 4096, 5, phase=Phase.OPTIMIZER)
            s.free("scratch", 5, phase=Phase.OPTIMIZER)


@pytest.mark.parametrize("momentum", [True, False])
def test_lines_of_a_training_loop_all_ran_once_a_step(script, frames, momentum):
    s = script(TRAINING)
    training(s, frames, 20, momentum)
    assert counts(s.recording()) == {2: 20, 3: 20, 4: 20, 5: 20}


def test_a_failure_in_the_middle_of_a_step_leaves_later_lines_one_short(script, frames):
    s = script(TRAINING)
    training(s, frames, 3, momentum=False)
    s.free("grad", 2)
    linear(s, frames, "out")
    s.fail(1 << 30, 3)
    assert counts(s.recording(error="OutOfMemoryError")) == {2: 4, 3: 4, 4: 3, 5: 3}


def test_a_condition_that_seldom_holds_neither_hides_nor_adds_passes(script, frames):
    s = script("for i in range(100):\n  outs.append(model(x))\n  if i % 10 == 9:\n    y = f(x)\n")
    for i in range(100):
        linear(s, frames, f"a{i}", 2)
        relu(s, frames, f"b{i}", 2)
        if i % 10 == 9:
            s.alloc(f"y{i}", 512, 4)
    assert counts(s.recording()) == {2: 100, 4: 10}


def test_an_inner_loop_adds_up_over_the_outer_one(script, frames):
    s = script("for b in data:\n  x, y = b.cuda(), b.cuda()\n  for k in range(5):\n    f(x)\n")
    for b in range(4):
        s.alloc(f"x{b}", 512, 2)
        s.alloc(f"y{b}", 512, 2)
        for k in range(5):
            linear(s, frames, f"f{b}.{k}", 4)
    assert counts(s.recording()) == {2: 4, 4: 20}


def test_a_function_of_the_cell_counts_its_calls(script, frames):
    s = script("def f(x):\n  return model(x)\nfor i in range(20):\n  y = f(x) * 2\n")
    for i in range(20):
        linear(s, frames, f"a{i}", 1 + 1)
        linear(s, frames, f"b{i}", 1 + 1)
        s.alloc(f"y{i}", 512, 4)
    assert counts(s.recording()) == {2: 20, 4: 20}


def test_a_function_called_once_ran_once(script, frames):
    """Its layers are built by one stack, and no loop is what repeats it."""
    s = script("def build():\n  return Sequential(Linear(), Linear())\nnet = build()\n")
    for i in range(4):
        s.alloc(f"a{i}", 1024, 3, (*frames.moved, Frame("<cell>", 2, "build")))
    assert counts(s.recording()) == {2: 1, 3: 1}


def test_a_forward_that_a_container_repeats_is_counted(script, frames):
    """A line that torch's Sequential calls may run many times for one statement of the cell."""
    s = script("class Block(Module):\n  def forward(self, x):\n    return f(x)\ny = net(x)\n")
    container = Frame("/lib/torch/nn/modules/container.py", 250, "forward")
    way = frames.module()[1:]
    for i in range(12):
        s.alloc(f"a{i}", 1024, 4, (Frame("<cell>", 3, "forward"), *way, container, *way))
    assert counts(s.recording()) == {3: 12, 4: 1}


def test_a_line_still_runs_while_functions_of_the_cell_run_for_it(script, frames):
    """Its own allocations come before the call and its frees after it: one pass, not two."""
    source = "def train(x):\n  out = model(x)\n  out.backward()\nfor i in range(6):\n  train(f())\n"
    s = script(source)

    def inner(line, *deeper):
        return (*deeper, Frame("<cell>", line, "train"))

    for i in range(6):
        s.alloc("x", 512, 5)
        s.alloc("out", 1024, 5, inner(2, *frames.module()))
        s.alloc(f"grad{i}", 2048, 5, inner(3, *frames.engine), Phase.BACKWARD)
        s.free("out", 5, inner(3, *frames.engine), Phase.BACKWARD)
        s.free("x", 5)
    recording = s.recording()
    assert counts(recording) == {2: 6, 3: 6, 5: 6}
    assert build_trace(recording).at_peak[Category.TEMPORARY] == 512  # x died in its line's pass


def test_lines_of_a_function_of_another_cell_are_counted_by_their_own_source(script, frames):
    source = "def train_step(x):\n    loss = model(x)\n    loss.backward()\n    optimizer.step()\n"
    s = script("for x in loader:\n    train_step(x)\n", {"<other>": Cell(source, "<other>", 3)})

    def inner(line, *deeper):
        return (*deeper, Frame("<other>", line, "train_step"))

    for step in range(6):
        s.alloc("out", 1024, 2, inner(2, *frames.module()))
        s.alloc("grad", 2048, 2, inner(3, *frames.engine), Phase.BACKWARD)
        s.free("out", 2, inner(3, *frames.engine), Phase.BACKWARD)
        if step == 0:
            s.alloc("state", 4096, 2, inner(4), Phase.OPTIMIZER)
        s.free("grad", 2, inner(4))
    (line,) = build_trace(s.recording()).lines
    assert line.count == 6
    found = [(c.cell, c.line, c.function, c.source, c.count) for c in line.calls]
    assert found == [
        (3, 2, "train_step", "loss = model(x)", 6),
        (3, 3, "train_step", "loss.backward()", 6),
        (3, 4, "train_step", "optimizer.step()", 6),
    ]
    assert [(c.allocated, c.freed, c.net) for c in line.calls] == [
        (6 * 1024, 0, 6 * 1024),
        (6 * 2048, 6 * 1024, 6 * 1024),
        (4096, 6 * 2048, 4096 - 6 * 2048),
    ]
