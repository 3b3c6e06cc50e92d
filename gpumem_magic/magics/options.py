"""The options of %gpumem and %%gpumem: one table that parses, documents and completes them."""

from __future__ import annotations

import difflib
import keyword
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from IPython.core.error import UsageError

from gpumem_magic.sources import check_device

SUFFIXES = (".json", ".csv", ".html", ".png", ".svg", ".txt")


@dataclass(frozen=True, slots=True)
class Option:
    """One option and the names of its values.

    measures: may stand before code. acts: is a command of its own on the line magic. optional: its
    value may be left out.
    """

    flags: tuple[str, ...]
    values: tuple[str, ...]
    help: str
    measures: bool = False
    acts: bool = False
    optional: bool = False

    @property
    def key(self) -> str:
        """The option's long name without dashes."""
        return self.flags[-1].lstrip("-")

    @property
    def usage(self) -> str:
        """The option as help shows it."""
        values = " ".join(self.values)
        values = f" [{values}]" if self.optional else f" {values}" if values else ""
        return "/".join(self.flags) + values


OPTIONS = (
    Option(("--name",), ("NAME",), "call the report NAME", measures=True),
    Option(
        ("--device",),
        ("DEV",),
        "choose the device, and stay on it: auto, cuda:1, T4, A100-80GB, 24GiB, off;\n"
        "on %gpumem without DEV: show it",
        measures=True,
        acts=True,
        optional=True,
    ),
    Option(("-q", "--quiet"), (), "measure, but show nothing", measures=True),
    Option(("-o", "--output"), ("VAR",), "store the report in the variable VAR", measures=True),
    Option(
        ("--save",),
        ("PATH",),
        "save the report of this code, or on %gpumem alone the whole history;\n"
        "PATH ends in .json .csv .html .png .svg or .txt",
        measures=True,
        acts=True,
    ),
    Option(("--no-plot",), (), "leave out the timeline figure", measures=True),
    Option(("--on",), (), "measure every cell from now on", acts=True),
    Option(("--off",), (), "stop measuring every cell", acts=True),
    Option(("--history",), (), "list the measured cells", acts=True),
    Option(("--show",), ("N",), "show report N of the history in full", acts=True),
    Option(("--compare",), ("A", "B"), "show what changed from report A to report B", acts=True),
    Option(("--load",), ("PATH",), "add the reports of a saved .json to the history", acts=True),
    Option(("--reset",), (), "forget the history", acts=True),
)


@dataclass(frozen=True, slots=True)
class Action:
    """One command of the line magic, such as `--compare 1 2`."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What one magic line asks for: how to measure `statement` or the cell, or which actions to do.

    brief: show one line instead of the Report, as `--on` does.
    """

    name: str | None = None
    device: str | None = None
    quiet: bool = False
    output: str | None = None
    save: str | None = None
    plot: bool = True
    brief: bool = False
    statement: str = ""
    actions: tuple[Action, ...] = ()


def parse_cell(line: str) -> Request:
    """The options after `%%gpumem`. Raises UsageError, naming the option, if any is wrong."""
    actions, rest = _scan(line, "%%gpumem")
    if rest:
        raise UsageError(f"%%gpumem: {rest!r} is not an option; the code starts on the next line")
    return _measuring(actions, "%%gpumem")


def parse_line(line: str) -> Request:
    """The options after `%gpumem` and its statement. Raises UsageError if any is wrong."""
    actions, rest = _scan(line, "%gpumem")
    if rest:
        request = _measuring(actions, "%gpumem STATEMENT")
        return replace(request, statement=rest, name=request.name or _shorten(rest))
    for action in actions:
        if not _option(action.key).acts:
            raise UsageError(f"%gpumem: --{action.key} needs a statement to measure after it")
        _check(action, "%gpumem")
    return Request(actions=actions)


def describe() -> str:
    """The option table as text, for the magic's help."""
    lines = []
    for option in OPTIONS:
        head, *more = option.help.splitlines()
        lines += [f"  {option.usage:<20} {head}", *(f"  {'':<20} {text}" for text in more)]
    return "\n".join(lines)


def _shorten(statement: str) -> str:
    return statement if len(statement) <= 40 else f"{statement[:39]}\N{HORIZONTAL ELLIPSIS}"


def _scan(line: str, magic: str) -> tuple[tuple[Action, ...], str]:
    actions = []
    rest = line.strip()
    while rest.startswith("-"):
        token, rest = _take(rest, magic)
        if token == "--":
            break
        flag, given, value = token.partition("=")
        option = _find(flag, magic)
        values, rest = _values(option, [value] if given else [], rest, magic)
        actions.append(Action(option.key, values))
    return tuple(actions), rest


def _values(
    option: Option, values: list[str], rest: str, magic: str
) -> tuple[tuple[str, ...], str]:
    if len(values) > len(option.values):
        raise UsageError(f"{magic}: {option.flags[-1]} takes no value")
    while len(values) < len(option.values):
        missing = not rest or rest.startswith("--")
        if missing and option.optional:
            break
        if missing:
            wanted = " ".join(option.values)
            raise UsageError(f"{magic}: {option.flags[-1]} needs {wanted}")
        value, rest = _take(rest, magic)
        values.append(value)
    return tuple(values), rest


def _take(text: str, magic: str) -> tuple[str, str]:
    """The first word, quotes resolved, and what follows it, untouched."""
    match = re.match(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""", text)
    if not match:
        raise UsageError(f"{magic}: no closing quotation in {text!r}")
    word = match.group()
    if "\\" not in word:  # a Windows path keeps its backslashes
        word = shlex.split(word)[0] if shlex.split(word) else ""
    return word, text[match.end() :].lstrip()


def _find(flag: str, magic: str) -> Option:
    for option in OPTIONS:
        if flag in option.flags:
            return option
    flags = [name for option in OPTIONS for name in option.flags]
    near = difflib.get_close_matches(flag, flags, 1)
    hint = f"did you mean {near[0]}?" if near else f"the options are {' '.join(flags)}"
    raise UsageError(f"{magic}: no option {flag}; {hint}")


def _option(key: str) -> Option:
    return next(option for option in OPTIONS if option.key == key)


def _measuring(actions: tuple[Action, ...], magic: str) -> Request:
    """The request that measuring options make; UsageError for an option that only acts."""
    request = Request()
    for action in actions:
        if not _option(action.key).measures:
            raise UsageError(f"{magic}: --{action.key} stands alone, as %gpumem --{action.key}")
        if not action.values and _option(action.key).values:
            raise UsageError(f"{magic}: --{action.key} needs {_option(action.key).values[0]}")
        _check(action, magic)
        request = _apply(request, action)
    return request


def _apply(request: Request, action: Action) -> Request:
    value = action.values[0] if action.values else ""
    if action.key == "quiet":
        return replace(request, quiet=True)
    if action.key == "no-plot":
        return replace(request, plot=False)
    if action.key == "name":
        return replace(request, name=value)
    if action.key == "device":
        return replace(request, device=value)
    if action.key == "output":
        return replace(request, output=value)
    return replace(request, save=value)


def _check(action: Action, magic: str) -> None:
    """UsageError if the action's value is one that cannot work, before anything runs."""
    for value in action.values:
        if action.key == "device":
            try:
                check_device(value)
            except (ValueError, ImportError) as error:
                raise UsageError(f"{magic}: --device {value}: {error}") from None
        elif action.key == "output" and (not value.isidentifier() or keyword.iskeyword(value)):
            raise UsageError(f"{magic}: -o {value}: not a variable name")
        elif action.key in ("show", "compare") and not re.fullmatch(r"-?\d+", value):
            raise UsageError(f"{magic}: --{action.key} {value}: not a number of the history")
        elif action.key == "save" and Path(value).suffix.lower() not in SUFFIXES:
            wanted = " ".join(SUFFIXES)
            raise UsageError(f"{magic}: --save {value}: the name must end in one of {wanted}")
        elif action.key == "load" and Path(value).suffix.lower() != ".json":
            raise UsageError(f"{magic}: --load {value}: only a saved .json can be loaded")
