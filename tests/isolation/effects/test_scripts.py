"""Scripts that a cell runs: which command starts which, and what they see and leave."""

from __future__ import annotations

import sys

import pytest

from gpumem_magic.isolation.effects.scripts import (
    Launch,
    NotFollowedError,
    Scripts,
    _simple_commands,
    launch_of,
)

from .forked import Unbound, run_cell
from .forked import shell as shell_effects

SCRIPT = """\
import os, sys
from beside import NAME
print(__name__, sys.argv[1:], NAME, os.path.basename(os.getcwd()), os.environ.get("SET"))
print(sorted(name for name in globals() if not name.startswith("__")))
made = [*sys.argv[1:]]
"""


@pytest.fixture
def run(shell, tmp_path, monkeypatch):
    """Runs a cell beside the scripts, in a child."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "bad.py").write_text("def f():\n    return 1 / 0\nf()\n")
    (tmp_path / "ends.py").write_text("import sys\nx = 1\nsys.exit(int(sys.argv[1]))\n")
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "__main__.py").write_text("from . import other\nprint(__package__, other.X)")
    (folder / "other.py").write_text("X = 7\nif __name__ == '__main__':\n    print('main')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(cell):
        return run_cell(cell, shell_effects, prepare=shell.transform_cell, names=shell.user_ns)

    return run


def test_run_leaves_its_names_and_begins_without_the_notebooks(run):
    after = run("mine = 1\n%run train.py a 'b c'\nx = made, mine")
    assert (after.error, after.told, after.x) == (None, [], (["a", "b c"], 1))
    assert after.output.startswith("__main__ ['a', 'b c'] beside ")
    assert "mine" not in after.output


def test_run_takes_names_in_braces_and_the_notebooks_with_i(run):
    after = run("size = 3\nhow = 'fast'\n%run -i train --size {size} $how\nx = made")
    assert after.x == ["--size", "3", "fast"]
    assert "'how'" in after.output


def test_a_command_runs_as_another_process(run):
    after = run(
        "import beside\nbeside.NAME = 'changed'\nn = 2\n"
        "!cd package && SET=1 python -u ../train.py {n} 2>&1 | tee log.txt > /dev/null\n"
        "import os, sys\nx = beside.NAME, 'made' in globals(), 'SET' in os.environ, len(sys.argv)"
    )
    assert after.error is None
    assert after.x == ("changed", False, False, len(sys.argv))
    assert after.told == ["!tee log.txt (line 4)"]
    assert after.output.startswith("__main__ ['2'] beside package 1\n['NAME', 'os', 'sys']\n")


def test_modules_and_code_run_too(run):
    after = run(
        "!python -m package\n!python -m package.other\n"
        "lines = !python -c 'print(1); print(2)'\nx = [*lines]"
    )
    assert (after.error, after.told) == (None, [])
    assert (after.output, after.x) == ("package 7\nmain\n", ["1", "2"])


def test_a_shells_cell_runs_line_by_line(run):
    after = run("%%bash\n# first\nls\npython train.py \\\n  --a 1\n")
    assert (after.error, after.told) == (None, ["!ls (line 1)"])
    assert after.output.startswith("__main__ ['--a', '1']")


def test_an_error_is_the_cells(run):
    after = run("x = 1\n!python bad.py")
    assert (after.error, after.lines) == ("ZeroDivisionError: division by zero", [2])
    assert run("!python ends.py 3").error == "SystemExit: 3"
    after = run("!python ends.py 0\n%run ends.py 0\nx += 1")
    assert (after.error, after.x) == (None, 2)


@pytest.mark.parametrize("cell", ["!python nix.py", "%run nix.py", "!python -m nix", "%run", "!ls"])
def test_what_cannot_be_followed_is_named(run, cell):
    after = run(f"x = 1\n{cell}")
    assert (after.error, after.told) == (None, [f"{cell} (line 2)"])


@pytest.mark.parametrize(
    ("command", "launch"),
    [
        ("python train.py", Launch("train.py")),
        ("python3.11 -W ignore -u -m a.b -c", Launch("a.b", ("-c",), "-m")),
        (f"{sys.executable} -c pass x", Launch("pass", ("x",), "-c")),
        ("A=1 nohup env B='2 3' python t.py", Launch("t.py", environ={"A": "1", "B": "2 3"})),
        ("ls train.py", None),
        ("python", None),
        ("python -V", None),
        ("accelerate config", None),
        ("pip install python", None),
    ],
)
def test_a_command_is_read(command, launch):
    assert launch_of(*_simple_commands(command)) == launch


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --standalone --nproc_per_node 1 t.py --nproc_per_node 8",
        "torchrun --nnodes=1:1 --nproc-per-node=gpu t.py --nproc_per_node 8",
        "python -m torch.distributed.run t.py --nproc_per_node 8",
    ],
)
def test_one_process_of_a_launcher_is_the_script(command):
    launch = launch_of(*_simple_commands(command))
    assert (launch.target, launch.arguments) == ("t.py", ("--nproc_per_node", "8"))
    assert launch.environ["WORLD_SIZE"] == "1"


def test_accelerate_hands_on_its_precision():
    launch = launch_of(
        "accelerate launch --mixed_precision fp16 --num_processes=1 -m a.b x".split()
    )
    assert launch == Launch("a.b", ("x",), "-m", {"ACCELERATE_MIXED_PRECISION": "fp16"})


@pytest.mark.parametrize(
    "command",
    [
        *("torchrun --nproc_per_node=2 t.py", "torchrun --nnodes 2 t.py"),
        *("accelerate launch --multi_gpu t.py", "accelerate launch --config_file a.yaml t.py"),
        *("/another/python t.py", "accelerate launch"),
    ],
)
def test_several_processes_and_another_python_are_not_followed(command):
    with pytest.raises(NotFollowedError):
        launch_of(command.split())


def test_a_line_is_taken_apart():
    line = "cd 'a b'; X=1 python t.py <in >>out 2>&1 && (ls | cat) # python no.py"
    words = [["cd", "a b"], ["X=1", "python", "t.py"], ["ls"], ["cat"]]
    assert _simple_commands(line) == words
    assert _simple_commands("echo 'open") == []


def test_lines_of_scripts_are_told_by_name(tmp_path):
    """Their code is bound, and kept as a cell, under the name of their file."""

    class Program(Unbound):
        def bind(self, tree, place="line "):
            self.place = place
            return tree

        def names(self):
            return {"given": 5}

    class Effects:
        places = {}  # noqa: RUF012

    script = tmp_path / "train.py"
    script.write_text("made = given + 1\n")
    scripts, names = Scripts(Effects, program := Program()), {}
    assert scripts.run_magic(str(script), names)
    assert (names["made"], program.place) == (6, "train.py:")
    (cell,) = scripts.cells.values()
    assert (cell.title, cell.source, Effects.places) == (
        "train.py",
        "made = given + 1\n",
        {str(script): "train.py:"},
    )
