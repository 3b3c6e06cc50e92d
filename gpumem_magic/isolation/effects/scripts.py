"""Scripts that a cell runs (`%run train.py`, `!python train.py`): their code is a part of the dry
run, in the names, the arguments and the folder that it would have."""

from __future__ import annotations

import ast
import contextlib
import gc
import getopt
import importlib.util
import os
import re
import shlex
import sys
import tokenize
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from gpumem_magic.isolation.telling import Effects, users_modules
from gpumem_magic.values.recording import Cell

_PYTHON = re.compile(r"python(\d(\.\d+)?)?(\.exe)?")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OPERATORS = re.compile(r"[;|&()]+")
_WRAPPERS = ("env", "exec", "nohup", "time")
_WITH_VALUE = ("-W", "-X")
"""Python's options that take a value."""

_LAUNCHERS = {
    ("torchrun",): "torch",
    ("python", "-m", "torch.distributed.run"): "torch",
    ("python", "-m", "torch.distributed.launch"): "torch",
    ("accelerate", "launch"): "accelerate",
    ("python", "-m", "accelerate.commands.launch"): "accelerate",
}
_PROCESSES = ("nproc-per-node", "nnodes", "num-processes", "num-machines")
_ONE = ("1", "1:1", "auto", "gpu")
_OTHER_WAYS = ("multi-gpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "tpu", "config-file")
_ONE_OF_TORCH = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
}
_OPTIONS_OF_RUN = "nidtN:b:pD:l:rs:T:em:G"
"""Those of IPython's %run."""


class NotFollowedError(Exception):
    """A command or magic that runs a script which cannot be found or followed, and why."""


class Program(Protocol):
    """What code of a dry run is prepared by; see dryrun.running.loops.Loops."""

    def bind(self, tree: ast.Module, place: str = "line ") -> ast.Module:
        """`tree` with its loops bounded; place: what a line's number is told after."""

    def names(self) -> Mapping[str, object]:
        """What such code finds among its globals."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A script to run. target: its file, its module's name, or its code, as `kind` says ("file",
    "-m", "-c"). environ: variables that are set for it."""

    target: str
    arguments: tuple[str, ...] = ()
    kind: str = "file"
    environ: Mapping[str, str] = field(default_factory=dict)


class Scripts:
    """Runs scripts inside of a dry run, once it has a `program`. cells: those that ran, by the file
    name of their frames."""

    def __init__(self, effects: Effects, program: Program | None = None) -> None:
        self._effects = effects
        self.program = program
        self.cells: dict[str, Cell] = {}
        self.notes: list[str] = []

    def run_magic(self, line: str, names: dict[str, Any]) -> bool:
        """`%run line` in a notebook whose names these are: always True. Raises NotFollowedError."""
        try:
            given, rest = getopt.getopt(shlex.split(line), _OPTIONS_OF_RUN)
        except (getopt.GetoptError, ValueError) as error:
            raise NotFollowedError(str(error)) from None
        options = dict(given)
        module = options.get("-m")
        if module is None and not rest:
            raise NotFollowedError("it names no file")
        launch = Launch(module, tuple(rest), "-m") if module else Launch(rest[0], tuple(rest[1:]))
        name = "__main__" if "-n" not in options else Path(launch.target).stem
        made = self._run(launch, name, names if "-i" in options else None)
        names.update({key: value for key, value in made.items() if not key.startswith("__")})
        return True

    def run_command(self, command: str) -> bool:
        """Lines of a shell: run the Python scripts in it, each as a process of its own would;
        whether there is any. Raises NotFollowedError."""
        lines = command.replace("\\\n", " ").splitlines()
        parts = [words for line in lines for words in _simple_commands(line)]
        launches = [launch_of(words) for words in parts]
        if not any(launches):
            return False
        with contextlib.ExitStack() as stack:
            stack.callback(os.chdir, Path.cwd())
            for words, launch in zip(parts, launches, strict=True):
                if launch is not None:
                    self._run_alone(launch)
                elif words[0] == "cd" and len(words) == 2:
                    os.chdir(os.path.expanduser(words[1]))  # noqa: PTH111
                else:
                    self._effects.blocked(f"!{shlex.join(words)}")
        return True

    def _run_alone(self, launch: Launch) -> None:
        """Run it as another process: without what the notebook has imported and named, and what it
        takes on the card is given back at its end."""
        held = torch.cuda.memory_reserved() if torch.cuda.is_available() else 0
        with _another_process(launch.environ):
            names = self._run(launch)
            names.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
        if held:
            self.notes.append(
                f"{launch.target} is a process of its own: what the notebook holds on the card "
                "stays in use beside it, and a second CUDA context, which is not in the figures."
            )

    def _run(
        self, launch: Launch, name: str = "__main__", names: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run it, with these names or with its own; its names. Raises what it raises."""
        spec, path = _found(launch)
        text, filename, title, folder = launch.target, "<string>", "-c", Path.cwd()
        if path is not None:
            with tokenize.open(path) as file:
                text = file.read()
            filename, title = str(path.resolve()), path.name
            folder = path.resolve().parent if spec is None else folder
        self.cells[filename] = Cell(text, filename, name=title)
        self._effects.places[filename] = f"{title}:"
        assert self.program is not None
        tree = self.program.bind(ast.parse(text, filename), f"{title}:")
        module = types.ModuleType(name)
        names = vars(module) if names is None else names
        own = {"__file__": filename, "__spec__": spec, "__name__": name}
        package = spec.parent if spec is not None else None
        before = {key: names[key] for key in own if key in names}
        names.update({**own, "__package__": package, **self.program.names()})
        with _as_main(module, [filename, *launch.arguments], str(folder)):
            try:
                exec(compile(tree, filename, "exec", dont_inherit=True), names)
            except SystemExit as ended:
                if ended.code not in (None, 0):
                    raise
        names.update(before)
        return names


def _found(launch: Launch) -> tuple[Any, Path | None]:
    """The module's spec, if it is one, and the file."""
    if launch.kind == "-c":
        return None, None
    if launch.kind == "-m":
        return _module(launch.target)
    path = Path(launch.target).expanduser()
    tried = (path, path.with_name(f"{path.name}.py"), path / "__main__.py")
    path = next((each for each in tried if each.is_file()), path)
    if not path.is_file():
        raise NotFollowedError(f"there is no file {launch.target}")
    if path.suffix in (".ipynb", ".ipy"):
        raise NotFollowedError("it is no Python script; copy its cells to predict them")
    return None, path


def _module(name: str) -> tuple[Any, Path]:
    with _first_in_path(str(Path.cwd())):
        try:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{name}.__main__")
        except (ImportError, ValueError):
            spec = None
    if spec is None or not (spec.origin or "").endswith(".py"):
        raise NotFollowedError(f"there is no module {name} in Python")
    return spec, Path(str(spec.origin))


@contextlib.contextmanager
def _first_in_path(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextlib.contextmanager
def _as_main(module: types.ModuleType, arguments: list[str], folder: str) -> Iterator[None]:
    """Within, `module` is the one that runs; after an error it stays, for who asks for it."""
    main, given = sys.modules["__main__"], list(sys.argv)
    sys.modules["__main__"], sys.argv[:] = module, arguments
    with _first_in_path(folder):
        yield
    sys.modules["__main__"], sys.argv[:] = main, given


@contextlib.contextmanager
def _another_process(environ: Mapping[str, str]) -> Iterator[None]:
    """Within, the modules of the user are not imported yet, and these variables are set."""
    variables = dict(os.environ)
    mine = {name: sys.modules.pop(name) for name in users_modules()}
    os.environ.update(environ)
    yield
    for name in users_modules():
        del sys.modules[name]
    sys.modules.update(mine)
    os.environ.clear()
    os.environ.update(variables)


def _simple_commands(text: str) -> list[list[str]]:
    """The commands of a line, without what redirects their output; none where it is no such line,
    as it may be anything that a shell takes."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:
        return []
    commands: list[list[str]] = [[]]
    skips = False
    for word in words:
        if skips:
            skips = False
        elif word.startswith("#"):
            break
        elif re.fullmatch(r"&?[<>]+&?", word):
            skips = True
            if commands[-1] and commands[-1][-1].isdigit():
                commands[-1].pop()  # 2>&1
        elif _OPERATORS.fullmatch(word):
            commands.append([])
        else:
            commands[-1].append(os.path.expandvars(word))
    return [words for words in commands if words]


def launch_of(words: list[str]) -> Launch | None:
    """The script that a command starts in this process' Python, if it is such a command. Raises
    NotFollowedError where it starts one that cannot be followed."""
    words, environ = list(words), {}
    while words and (words[0] in _WRAPPERS or _ASSIGNED.fullmatch(words[0])):
        if match := _ASSIGNED.fullmatch(words[0]):
            environ[match[1]] = match[2]
        del words[0]
    if not words:
        return None
    if _PYTHON.fullmatch(Path(words[0]).name):
        _check_is_ours(words[0])
        words[0] = "python"
    for start, kind in _LAUNCHERS.items():
        if tuple(words[: len(start)]) == start:
            launch = _launched(words[len(start) :], kind)
            return replace(launch, environ={**environ, **launch.environ})
    if words[0] != "python":
        return None
    found = _of_python(words[1:])
    return replace(found, environ=environ) if found else None


def _check_is_ours(python: str) -> None:
    here = Path(sys.executable).resolve()
    if "/" in python and Path(python).expanduser().resolve() != here:
        raise NotFollowedError(f"it runs in another Python, {python}, not in {sys.executable}")


def _of_python(words: list[str]) -> Launch | None:
    while words:
        word, *words = words
        if word in ("-m", "-c"):
            return Launch(words[0], tuple(words[1:]), word) if words else None
        if word in _WITH_VALUE:
            words = words[1:]
        elif not word.startswith("-"):
            return Launch(word, tuple(words))
    return None


def _launched(words: list[str], kind: str) -> Launch:
    """What a launcher of several processes starts, if it is one process."""
    options: dict[str, str] = {}
    while words and words[0].startswith("-"):
        word, *words = words
        if word in ("-m", "--module"):
            options["module"] = ""
            continue
        name, equals, value = word.lstrip("-").partition("=")
        takes = not equals and len(words) > 1 and not words[0].startswith("-")
        if takes and not words[0].endswith(".py"):
            value, *words = words
        options[name.replace("_", "-")] = value
    many = [
        f"--{name} {options[name]}" for name in _PROCESSES if options.get(name, "1") not in _ONE
    ]
    other = [f"--{name}" for name in _OTHER_WAYS if name in options]
    if many or other or not words:
        what = ", ".join((*many, *other)) or "no script"
        raise NotFollowedError(f"it starts with {what}; predict the script of one process")
    environ = dict(_ONE_OF_TORCH) if kind == "torch" else {}
    if kind == "accelerate" and "mixed-precision" in options:
        environ["ACCELERATE_MIXED_PRECISION"] = options["mixed-precision"]
    kind = "-m" if "module" in options else "file"
    return Launch(words[0], tuple(words[1:]), kind, environ)
