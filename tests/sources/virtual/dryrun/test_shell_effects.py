"""Commands and magics of a cell: what is code runs, the rest is named."""

# Users write what is not written elsewhere here.
# ruff: noqa: PTH109

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from gpumem_magic.sources.virtual.dryrun.side_effects import without_side_effects


@pytest.fixture
def run(shell, tmp_path, monkeypatch):
    """Runs a cell as a dry run does, in the shell's namespace; tells what was not done."""
    monkeypatch.chdir(tmp_path)
    shell.transform_cell("%%time\nx")  # the shell keeps the last such line
    told, before = [], dict(vars(shell))

    def run(cell):
        code = compile(shell.transform_cell(cell), "<cell>", "exec")
        with without_side_effects(told.append):
            exec(code, shell.user_ns)
        return SimpleNamespace(told=told, **{k: shell.user_ns.get(k) for k in ("x", "lines", "y")})

    yield run
    assert list(tmp_path.iterdir()) == []
    assert os.getcwd() == str(tmp_path)
    assert {k: v for k, v in vars(shell).items() if k not in before} == {}


def test_commands_are_named_and_give_nothing(run):
    after = run("!touch a\nx = !ls\ny = x.n\n!!ls\n%sx ls\nassert _exit_code == 0")
    assert after.told == ["!touch a", "!ls", "!ls", "%sx ls"]
    assert (after.x, after.y) == ([], "")


@pytest.mark.parametrize(
    "magic",
    [
        *("%pip install torch", "%cd ..", "%env A=1", "%set_env A 1", "%run script.py", "%debug"),
        *("%load_ext autoreload", "%matplotlib inline", "%store x", "%reset -f", "%autoreload 2"),
        *("%%bash -x\ntouch a", "%%writefile a.py\nx = 1", "%%file a.py\nx = 1", "%%sh\nls"),
        *("%%javascript\nx", "%unknown", "%%unknown\nx", "%gpumem --device T4", "%gpucheck"),
        *("%conda install torch", "%save a 1", "%logstart a.log", "%colors nocolor"),
    ],
)
def test_magics_that_act_outside_are_named(run, magic, monkeypatch):
    monkeypatch.delenv("A", raising=False)
    after = run(f"x = 1\n{magic}" if not magic.startswith("%%") else magic)
    assert after.told == [magic.partition("\n")[0]]
    assert "A" not in os.environ
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
    assert (after.x, after.told) == (2, [])


def test_the_code_keeps_its_place_in_the_cell(run):
    with pytest.raises(ZeroDivisionError) as raised:
        run("%%time\nx = 1\n\nx / 0")
    last = raised.traceback[-1]
    assert (str(last.frame.code.raw.co_filename), last.lineno + 1) == ("<cell>", 4)
    with pytest.raises(ZeroDivisionError) as raised:
        run("x = 1\n%time x / 0")
    last = raised.traceback[-1]
    assert (str(last.frame.code.raw.co_filename), last.lineno + 1) == ("<cell>", 2)


def test_a_magic_in_a_function_sees_its_names(run):
    assert (
        run("def f(a):\n    return get_ipython().run_line_magic('time', 'a + 1')\nx = f(1)").x == 2
    )


def test_captured_output_is_in_its_variable(run, capsys):
    after = run("%%capture y\nprint('hidden')")
    assert after.y.stdout == "hidden\n"
    assert capsys.readouterr().out == ""


def test_what_only_displays_is_done(run, capsys):
    assert run("%who\n%pwd\n%env HOME\n%lsmagic").told == []
    assert "namespace is empty" in capsys.readouterr().out


def test_the_kernel_is_not_left(run, shell, monkeypatch):
    asked = []
    monkeypatch.setattr(type(shell), "ask_exit", lambda shell: asked.append(True), raising=False)
    with pytest.raises(SystemExit):
        run("get_ipython().ask_exit()")
    assert asked == []
