"""IPython's commands and magics: those that run the user's code run it, the others are named."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from gpumem_magic.isolation.effects.telling import Effects

_RUNNING = {
    "time": (),
    "timeit": ("-n", "-r", "-p", "-v"),
    "prun": ("-l", "-s", "-T", "-D"),
    "capture": (),
    "gpumem": ("--name", "--device", "-o", "--output", "--save"),
    "gpucheck": ("--gpu", "--fit", "--optimizer-steps", "-o", "--output", "--save", "--name"),
}
"""Magics that run the code behind them, and their options that take a value."""

_HARMLESS = frozenset(
    "who who_ls whos pwd lsmagic pinfo pinfo2 pdoc pdef psource pfile env set_env cd config "
    "matplotlib load_ext reload_ext autoreload aimport precision xmode colors".split()
)
"""Magics that only show something, or change only this process, which ends with the dry run."""


def install_shell_effects(effects: Effects) -> None:
    """Replace what the shell that the code runs in, if any, would execute."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return
    commands = _Commands(effects, shell)
    for name in ("system", "system_raw", "system_piped"):
        effects.put(shell, name, commands.system)
    effects.put(shell, "getoutput", commands.getoutput)
    effects.replace(shell, "run_line_magic", commands.line_magic)
    effects.replace(shell, "run_cell_magic", commands.cell_magic)
    effects.put(shell, "ask_exit", _leave)
    effects.skip(shell, "set_next_input", "set_next_input")
    shell.db = {}  # it is a folder of files, and %cd writes there


def _leave() -> NoReturn:
    raise SystemExit(0)


class _Commands:
    def __init__(self, effects: Effects, shell: Any) -> None:
        self._effects = effects
        self._shell = shell

    def system(self, command: str, *args: Any, **kwargs: Any) -> None:
        """`!command`."""
        self._effects.blocked(f"!{command}")
        self._shell.user_ns["_exit_code"] = 0

    def getoutput(self, command: str, split: bool = True, depth: int = 0) -> Any:
        """`names = !command`: nothing."""
        self._effects.blocked(f"!{command}")
        text = sys.modules["IPython.utils.text"]
        return text.SList([]) if split else text.LSString("")

    def line_magic(self, original: Any) -> Callable[..., Any]:
        """`%name line`."""

        def run_line_magic(name: str, line: str, *args: Any, **kwargs: Any) -> Any:
            code = _without_options(line, _RUNNING[name]) if name in _RUNNING else ""
            if code.strip() and name not in ("capture", "gpucheck"):
                return self._run(code, _caller(), below=0)
            # To load ourselves anew would end the dry run that is under way.
            if name in _HARMLESS and "gpumem_magic" not in line:
                with self._effects.silence():  # what a library keeps in files on the way
                    return original(name, line, *args, **kwargs)
            self._effects.blocked(f"%{name} {line}".strip())
            return None

        return run_line_magic

    def cell_magic(self, original: Any) -> Callable[..., Any]:
        """`%%name line` on top of a cell."""

        def run_cell_magic(name: str, line: str, cell: str) -> Any:
            if name not in _RUNNING:
                self._effects.blocked(f"%%{name} {line}".strip())
                return None
            caller = _caller()
            if name == "capture":
                return self._capture(line, cell, caller)
            if name == "timeit" and _without_options(line, _RUNNING[name]).strip():
                self._run(_without_options(line, _RUNNING[name]), caller, below=0)
            return self._run(cell, caller, below=1)

        return run_cell_magic

    def _capture(self, line: str, cell: str, caller: Any) -> None:
        """%%capture: the output is in a variable, if one is named."""
        capture: Any = sys.modules["IPython.utils.capture"]
        given = line.split()
        shown = ["--no-stdout" not in given, "--no-stderr" not in given]
        with capture.capture_output(*shown, "--no-display" not in given) as output:
            self._run(cell, caller, below=1)
        for name in given:
            if not name.startswith("-"):
                caller.f_globals[name] = output

    def _run(self, code: str, caller: Any, below: int) -> Any:
        """Run code once; its last value. It is on the caller's line, or `below` that."""
        blank = len(code[: len(code) - len(code.lstrip())].splitlines())  # lines that IPython drops
        text = "\n" * blank + str(self._shell.transform_cell(code))
        tree = ast.parse(text)
        ast.increment_lineno(tree, caller.f_lineno - 1 + below)
        filename, names = caller.f_code.co_filename, caller.f_globals
        inner = {**caller.f_locals} if caller.f_locals is not names else names
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, filename, "exec"), names, inner)
        if last is None:
            return None
        value = ast.Expression(last.value)  # type: ignore[attr-defined]
        return eval(compile(value, filename, "eval"), names, inner)


def _caller() -> Any:
    """The frame of the code that the magic is written in."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in (__name__, Effects.__module__) and not name.startswith("IPython."):
            break
        frame = frame.f_back
    return frame


def _without_options(line: str, with_value: tuple[str, ...]) -> str:
    """The code behind the options."""
    rest = line.strip()
    while match := re.match(r"(--?[A-Za-z][\w-]*)(\S*)\s*", rest):
        option, glued = match.groups()
        rest = rest[match.end() :]
        short = not option.startswith("--")
        if glued or (short and len(option) > 2 and option[:2] in with_value):
            continue
        if option in with_value:
            rest = re.sub(r"^(\"[^\"]*\"|'[^']*'|\S+)\s*", "", rest)
    return rest
