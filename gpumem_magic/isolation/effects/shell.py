"""IPython's commands and magics: those that run the user's code or scripts run them, the others are
named."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from gpumem_magic.isolation.effects.scripts import NotFollowedError, Scripts
from gpumem_magic.isolation.telling import Effects
from gpumem_magic.sources.stacks.callsite import shell_in_use

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
    "who who_ls whos pwd lsmagic pinfo pinfo2 pdoc pdef psource pfile psearch env set_env config "
    "cd pushd popd dirs dhist bookmark history hist tb xdel reset_selective "
    "matplotlib load_ext reload_ext autoreload aimport precision xmode colors automagic".split()
)
"""Magics that only show something, or change only this process, which ends with the dry run."""


_SHELLS = ("bash", "sh")
"""Magics whose cell is lines of a shell."""


def install_shell_effects(effects: Effects, scripts: Scripts) -> None:
    """Replace what the shell that the code runs in, if any, would execute."""
    shell = shell_in_use()
    if shell is None:
        return
    commands = _Commands(effects, scripts, shell)
    for name in ("system", "system_raw", "system_piped"):
        effects.put(shell, name, commands.system)
    effects.put(shell, "getoutput", commands.getoutput)
    effects.wrap(shell, "run_line_magic", commands.line_magic)
    effects.wrap(shell, "run_cell_magic", commands.cell_magic)
    effects.put(shell, "ask_exit", _leave)
    effects.skip(shell, "set_next_input", "set_next_input")
    # it is a folder of files, where %cd writes, and which IPython makes when it is first asked for
    made = Path(shell.profile_dir.location, "db").is_dir()
    shell.db = ChainMap({}, shell.db if made else {})


def _leave() -> NoReturn:
    raise SystemExit(0)


class _Commands:
    def __init__(self, effects: Effects, scripts: Scripts, shell: Any) -> None:
        self._effects = effects
        self._scripts = scripts
        self._shell = shell

    def system(self, command: str, *args: Any, **kwargs: Any) -> None:
        """`!command`."""
        self._command(f"!{command}", command)
        self._shell.user_ns["_exit_code"] = 0

    def getoutput(self, command: str, split: bool = True, depth: int = 0) -> Any:
        """`names = !command`: what a script printed, of most other commands nothing."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self._command(f"!{command}", command)
        output, text = printed.getvalue(), sys.modules["IPython.utils.text"]
        return text.SList(output.splitlines()) if split else text.LSString(output)

    def _command(self, told: str, command: str) -> None:
        """Run the scripts of a command, or name it as `told`."""
        expanded = _expanded(command, _caller())
        self._follow(told, lambda: self._scripts.run_command(expanded))
        sys.stdout.write(self._effects.said(expanded))

    def _follow(self, told: str, run: Callable[[], bool]) -> None:
        try:
            followed = run()
        except NotFollowedError as error:
            followed = False
            self._scripts.notes.append(f"{told} is not followed: {error}.")
        if not followed:
            self._effects.blocked(told)

    def line_magic(self, original: Any, name: str, line: str, *args: Any, **kwargs: Any) -> Any:
        """`%name line`."""
        code = _without_options(line, _RUNNING[name]) if name in _RUNNING else ""
        if code.strip() and name not in ("capture", "gpucheck"):
            return self._run(code, _caller(), below=0)
        if name == "run":
            caller = _caller()
            line, names = _expanded(line, caller), caller.f_globals
            told = f"%run {line}".strip()
            self._follow(told, lambda: self._scripts.run_magic(line, names))
            return None
        # To load ourselves anew would end the dry run that is under way.
        harmless = name in _HARMLESS or (name == "store" and "-r" in line.split())
        if harmless and "gpumem_magic" not in line:
            with self._effects.silence():  # what a library keeps in files on the way
                return original(name, line, *args, **kwargs)
        self._effects.blocked(f"%{name} {line}".strip())
        return None

    def cell_magic(self, original: Any, name: str, line: str, cell: str) -> Any:
        """`%%name line` on top of a cell."""
        if name in _SHELLS:
            self._command(f"%%{name} {line}".strip(), cell)
            return None
        if name not in _RUNNING:
            self._effects.blocked(f"%%{name} {line}".strip())
            return None
        caller = _caller()
        if name == "capture":
            return self._capture(line, cell, caller)
        if name == "timeit" and _without_options(line, _RUNNING[name]).strip():
            self._run(_without_options(line, _RUNNING[name]), caller, below=0)
        return self._run(cell, caller, below=1)

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
        if not name.startswith(("gpumem_magic.isolation.", "IPython.")):
            break
        frame = frame.f_back
    return frame


def _expanded(line: str, caller: Any) -> str:
    """With `$name` and `{expression}` of the caller's, as IPython hands it on."""
    formatter = sys.modules["IPython.utils.text"].DollarFormatter()
    with contextlib.suppress(Exception):  # IPython, too, leaves what it cannot expand
        return str(formatter.vformat(line, (), {**caller.f_globals, **caller.f_locals}))
    return line


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
