"""Stacks and cells by hand, then the file names of real shells and of a real kernel."""

import json
import sys
import textwrap
from pathlib import Path

import pytest

from gpumem_magic.sources.stacks.callsite import (
    CellFiles,
    call_of,
    error_line,
    line_of,
    phase_of,
    unfold_all,
)
from gpumem_magic.values.recording import Cell, Frame, Phase

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # the first optimizer would import it, which changes torch

CELL = Cell("a\nb\nc", "cell.py", 5)
OTHER = Cell("def step():\n    ...", "other.py", 2)
CELLS = {"cell.py": CELL, "other.py": OTHER}
LIBRARY = Frame("/site-packages/torch/nn/functional.py", 900, "relu")


def test_the_innermost_frame_of_the_cell_names_the_line():
    stack = (LIBRARY, Frame("cell.py", 2, "f"), LIBRARY, Frame("cell.py", 7, "<module>"))

    assert line_of(stack, "cell.py") == 2
    assert line_of(stack, "absent.py") is None
    assert line_of((), "cell.py") is None


def test_a_call_into_another_cell_lies_inside_the_cells_line():
    called = (LIBRARY, Frame("other.py", 2, "step"), Frame("cell.py", 7, "<module>"))
    calling = (LIBRARY, Frame("cell.py", 2, "callback"), Frame("other.py", 2, "step"))

    assert call_of(called, "cell.py", CELLS) == (OTHER, 2, "step")
    assert call_of(calling, "cell.py", CELLS) is None
    assert call_of((LIBRARY,), "cell.py", CELLS) is None


def test_in_a_thread_the_whole_stack_counts_as_called():
    stack = (LIBRARY, Frame("other.py", 2, "step"), Frame("threading.py", 9, "_bootstrap"))

    assert call_of(stack, "cell.py", CELLS) == (OTHER, 2, "step")


ADAM = Frame("/x/torch/optim/adam.py", 250, "step")
WRAPPER = Frame("/x/torch/optim/optimizer.py", 500, "wrapper")
MODULE = Frame("/x/torch/nn/modules/module.py", 1790, "_call_impl")
USER = Frame("cell.py", 3, "<module>")


@pytest.mark.parametrize(
    ("stack", "phase"),
    [
        ((LIBRARY, MODULE, USER), Phase.FORWARD),
        ((Frame("/x/torch/optim/_functional.py", 9, "adam"), ADAM, WRAPPER, USER), Phase.OPTIMIZER),
        ((Frame("/x/lion/lion.py", 40, "step"), WRAPPER, USER), Phase.OPTIMIZER),
        ((LIBRARY, MODULE, Frame("cell.py", 8, "closure"), ADAM, WRAPPER, USER), Phase.FORWARD),
        ((Frame("cell.py", 8, "closure"), ADAM, WRAPPER, USER), Phase.FORWARD),
        ((Frame("/x/torch/optim/lr_scheduler.py", 9, "step"), USER), Phase.FORWARD),
        ((Frame("cell.py", 9, "step"), USER), Phase.FORWARD),
        ((), Phase.FORWARD),
    ],
)
def test_phase(stack, phase):
    assert phase_of(stack) is phase


def test_phase_of_what_torchs_optimizers_really_do():
    from torch.utils._python_dispatch import TorchDispatchMode

    from gpumem_magic.sources.stacks.callstacks import CallStacks

    stacks, seen = CallStacks(), []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            stack = stacks.resolve(stacks.capture(sys._getframe(1)))
            seen.append((phase_of(stack), func._schema.name))
            return func(*args, **(kwargs or {}))

    model = torch.nn.Linear(2, 2)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.linear(torch.ones(1, 2), model.weight).sum()
        loss.backward()
        return loss

    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.LBFGS):
        optimizer = kind(model.parameters(), lr=0.1)
        seen.clear()
        with Watch():
            optimizer.step(closure)
        phases = dict.fromkeys(phase for phase, _ in seen)
        assert {p for p, op in seen if op == "aten::ones"} == {Phase.FORWARD}
        assert Phase.OPTIMIZER in phases


def test_a_body_below_a_cell_magic_is_told_in_lines_of_the_cell():
    cell = Cell("%%gpumem\n%%time\n\nx = 1\ny = f()", "cell.py", 5)
    stack = (
        *(LIBRARY, Frame("<timed exec>", 2, "<module>"), Frame("/x/IPython/magics.py", 1, "time")),
        Frame("cell.py", 1, "<module>"),
    )

    moved = unfold_all([stack], cell, {})[0]

    assert moved[1] == Frame("cell.py", 5, "<module>")
    assert moved[3] == Frame("cell.py", 2, "<module>")
    assert (moved[0], moved[2]) == (stack[0], stack[2])


def test_unfold_leaves_cells_without_a_magic_alone():
    stack = (Frame("<timed exec>", 2, "f"), Frame("cell.py", 3, "<module>"))

    assert unfold_all([stack], Cell("%%gpumem --quiet\n\nf()", "cell.py"), {})[0] is stack
    assert unfold_all([stack], Cell("f()\n%%time", "cell.py"), {})[0] is stack
    assert unfold_all([stack[:1]], Cell("%%time\nf()", "cell.py"), {})[0] == stack[:1]


SETUP = """
    import sys
    from gpumem_magic.sources.stacks.callsite import CellFiles, call_of, line_of, unfold_all
    from gpumem_magic.sources.stacks.callstacks import CallStacks
    shell = get_ipython()
    files, stacks, seen = CellFiles(shell), CallStacks(), []
    def before(info):
        stacks.begin(sys._getframe())
    def after(result):
        if raw := getattr(result.info, "raw_cell", None):
            number = result.execution_count or shell.execution_count
            cell = files.cell(raw, shell.transform_cell(raw), number)
            cells = files.cells()
            seen.append((cell, cells))
    shell.events.register("pre_run_cell", before)
    shell.events.register("post_run_cell", after)
    def told(index, position):
        cell, cells = seen[position]
        stack = unfold_all([stacks.resolve(index)], cell, cells)[0]
        called, at, function = call_of(stack, cell.filename, cells)
        line = line_of(stack, cell.filename)
        return {
            "line": line, "text": cell.source.splitlines()[line - 1].strip(),
            "call": [called.number, at, function, called.source.splitlines()[at - 1].strip()],
            "number": cell.number, "listed": cells[cell.filename] == cell,
            "bottom": stack[-1].filename == cell.filename,
        }
"""
CELLS_RUN = (
    textwrap.dedent(SETUP).strip(),
    "\n\n# two blank lines above\ndef leaf():\n    return stacks.capture(sys._getframe())\n",
    "x = 1\nfor _ in range(2):\n    plain = leaf()",
    "def local():\n    return leaf()\nlocal_call = local()",
    "%%time\n\nx = 1\ntimed = leaf()\nx = 2",
    "%%capture\nx = 1\ncaptured = leaf()",
    "import asyncio\nawait asyncio.sleep(0)\nawaited = leaf()",
    "!true \\\n  && true\nshelled = leaf()",
)
RESULTS = ("plain", "local_call", "timed", "captured", "awaited", "shelled")
LINES = (
    *((3, "plain = leaf()"), (2, "return leaf()"), (4, "timed = leaf()"), (3, "captured = leaf()")),
    *((3, "awaited = leaf()"), (2, "shelled = leaf()")),
)
# `seen` also holds the nested cell of %%capture; ask by number, the last of each
QUESTION = f"""
import json
shell.events.unregister("pre_run_cell", before)
shell.events.unregister("post_run_cell", after)
places = [max(i for i, (cell, _) in enumerate(seen) if cell.number == n) for n in range(3, 9)]
answer = json.dumps([told(r, p) for r, p in zip(({", ".join(RESULTS)}), places)])
"""


def check(answers, positions):
    """Every cell's line and the call into the second cell, whatever the shell calls its files."""
    call = [2, 3, "leaf", "return stacks.capture(sys._getframe())"]
    for answer, (line, text), position in zip(answers, LINES, positions, strict=True):
        assert (answer["line"], answer["text"]) == (line, text)
        assert (answer["call"], answer["number"]) == (call, position)
        assert answer["listed"]
        assert answer["bottom"]


def test_file_names_of_a_plain_shell(shell):
    for cell in (*CELLS_RUN, QUESTION):
        assert shell.run_cell(cell, store_history=True).success

    check(json.loads(shell.user_ns["answer"]), range(3, 9))


def test_file_names_of_a_kernel(tmp_path, monkeypatch):
    manager = pytest.importorskip("jupyter_client.manager")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    kernel, client = manager.start_new_kernel(startup_timeout=120)
    try:
        for cell in (*CELLS_RUN, QUESTION):
            reply = client.execute_interactive(cell, timeout=60, output_hook=lambda message: None)
            assert reply["content"]["status"] == "ok", reply["content"]
        answers = []
        client.execute_interactive(
            "print(answer)",
            timeout=60,
            output_hook=lambda message: answers.append(message["content"].get("text", "")),
        )
        check(json.loads("".join(answers)), range(3, 9))
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def test_a_cell_outside_history_has_no_number(shell):
    shell.run_cell("hidden = 1", store_history=False)
    shell.run_cell("shown = 2", store_history=True)
    files = CellFiles(shell)

    by_source = {cell.source: cell for cell in files.cells().values()}

    assert by_source["hidden = 1"].number is None
    assert by_source["shown = 2"].number == 1
    assert all(cell.filename == name for name, cell in files.cells().items())


def test_an_error_left_the_cell_from_the_line_that_called():
    # GIVEN a cell that calls a function of another cell, below a magic and without one
    other = compile("def fail():\n    raise ValueError", "<other>", "exec")
    names = {}
    exec(other, names)
    cell = Cell("x = 1\n\nfail()\n", "<this>")
    timed = Cell("%%gpucheck --gpu T4\n%%time\nx = 1\nfail()\n", "<this>")
    for code, ran, line in (
        (compile("x = 1\n\nfail()\n", "<this>", "exec"), cell, 3),
        (compile("x = 1\nfail()\n", "<timed exec>", "exec"), timed, 4),
    ):
        outer = compile("\nexec(code, names)", "<this>", "exec") if ran is timed else code
        try:
            exec(outer, {**names, "code": code, "names": names})
        except ValueError as raised:
            error = raised
        # THEN the line is the cell's own
        assert error_line(error, ran, {}) == line
    assert error_line(error, Cell("", "<elsewhere>"), {}) is None
    assert error_line(None, cell, {}) is None


def test_a_dry_run_has_true_lines_below_a_magic():
    cell = Cell("%%gpucheck\n%%time\nx = 1\ny = 2", "<this>")
    stack = (Frame("<this>", 4, "<module>"), Frame("<this>", 2, "<module>"))
    assert unfold_all([stack], cell, {})[0] == stack


def test_cells_are_read_when_they_are_asked_for(shell, monkeypatch):
    for number in range(5):
        shell.run_cell(f"x = {number}", store_history=True)
    files, read = CellFiles(shell), []
    make = CellFiles._read

    def noted(self, name, number):
        read.append(name)
        return make(self, name, number)

    monkeypatch.setattr(CellFiles, "_read", noted)
    cells = files.cells()
    last = list(cells)[-1]
    assert cells[last].source == cells[last].source == "x = 4"
    assert read == [last]
    assert cells.get("elsewhere.py") is None
