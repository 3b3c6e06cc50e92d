"""Commands and magics of a cell: what is code runs, the rest is named."""

from __future__ import annotations

import os
import sys

import pytest

from .forked import audit, run_cell
from .forked import shell as shell_effects


@pytest.fixture
def run(shell, tmp_path, monkeypatch):
    """Runs a cell in the shell's namespace, in a child."""
    monkeypatch.chdir(tmp_path)
    shell.transform_cell("%%time\nx")  # the shell keeps the last such line

    def run(cell):
        names = shell.user_ns
        return run_cell(cell, shell_effects, audit, prepare=shell.transform_cell, names=names)

    yield run
    assert list(tmp_path.iterdir()) == []


def test_commands_are_named_and_give_nothing(run):
    cell = "!touch a\nx = !ls\nx = [x, x.n]\n!!ls\n%sx ls\nassert _exit_code == 0"
    after = run(cell)
    assert after.told == ["!touch a (line 1)", "!ls (line 2)", "!ls (line 4)", "%sx ls (line 5)"]
    assert (after.error, after.x) == (None, [[], ""])


@pytest.mark.parametrize(
    "magic",
    [
        *("%pip install torch", "%run script.py", "%debug", "%store x", "%reset -f"),
        *("%%bash -x\ntouch a", "%%writefile a.py\nx = 1", "%%file a.py\nx = 1", "%%sh\nls"),
        *("%%javascript\nx", "%unknown", "%%unknown\nx", "%gpumem --device T4", "%gpucheck"),
        *("%conda install torch", "%save a 1", "%logstart a.log", "%tensorboard --logdir a"),
    ],
)
def test_magics_that_act_outside_are_named(run, magic):
    after = run(f"x = 1\n{magic}" if not magic.startswith("%%") else magic)
    line = 1 if magic.startswith("%%") else 2
    assert (after.error, after.told) == (None, [f"{magic.partition(chr(10))[0]} (line {line})"])


def test_magics_that_change_only_the_process_are_carried_out_there(run, tmp_path):
    after = run(
        "import os\n%env GPUMEM_A=1\n%set_env GPUMEM_B 2\n%cd ..\n%load_ext autoreload\n"
        "%autoreload 2\n%config InlineBackend.figure_format = 'png'\n%precision 3\n"
        "x = [os.environ['GPUMEM_A'], os.environ['GPUMEM_B'], os.getcwd()]"
    )
    assert (after.error, after.told) == (None, [])
    assert after.x == ["1", "2", str(tmp_path.parent)]
    assert os.getcwd() == str(tmp_path)  # noqa: PTH109
    assert "GPUMEM_A" not in os.environ
    assert "autoreload" not in sys.modules.get("IPython").get_ipython().magics_manager.magics


@pytest.mark.parametrize(
    "cell",
    [
        "%time x = 1 + 1",
        "%%time\nx = 1\nx += 1",
        "x = %time 1 + 1",
        "%timeit -n 100 -r3 x = 2",
        "%timeit -n100 x = 2",
        "%%timeit -q x = 1\nx += 1",
        "%%timeit\nx = 2",
        "%prun -l 10 -s cumtime -q x = 2",
        "%%prun -T prof.txt\nx = 2",
        "%%capture\nprint(3); x = 2",
        "%%capture y --no-stderr\nx = 2",
        "%gpumem -q -o report x = 2",
        "%gpumem --name 'my run' --no-plot x = 2",
        "%%gpumem --device T4\nx = 2",
        "%%time\n%time x = 2",
        "for i in range(3):\n    %time x = i",
    ],
)
def test_magics_around_code_run_it_once(run, cell):
    after = run(cell)
    assert (after.error, after.x, after.told) == (None, 2, [])


def test_the_code_keeps_its_place_in_the_cell(run):
    after = run("%%time\nx = 1\n\nx / 0")
    assert (after.error[:17], after.lines[-1]) == ("ZeroDivisionError", 4)
    after = run("x = 1\n%time x / 0")
    assert (after.error[:17], after.lines[-1]) == ("ZeroDivisionError", 2)


def test_a_magic_in_a_function_sees_its_names(run):
    cell = "def f(a):\n    return get_ipython().run_line_magic('time', 'a + 1')\nx = f(1)"
    assert run(cell).x == 2


def test_captured_output_is_in_its_variable(run):
    after = run("%%capture y\nprint('hidden')\nget_ipython().user_ns['x'] = 3")
    assert (after.error, after.x, after.output) == (None, 3, "")
    after = run("get_ipython().run_cell_magic('capture', 'y', 'print(1)')\nx = y.stdout")
    assert (after.error, after.x, after.output) == (None, "1\n", "")


def test_what_only_displays_is_done(run):
    after = run("%who\n%pwd\n%env HOME\n%lsmagic")
    assert (after.error, after.told) == (None, [])
    assert "namespace is empty" in after.output


def test_the_kernel_is_not_left(run, shell, monkeypatch):
    monkeypatch.setattr(type(shell), "ask_exit", lambda shell: None, raising=False)
    assert run("get_ipython().ask_exit()").error == "SystemExit: 0"
