"""The shape of a magic's options: one table parses them, documents them and completes them."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError


@dataclass(frozen=True, slots=True)
class Option:
    """One option and the names of its values.

    with_code: may stand before code. acts: is a command of its own on the line magic. optional: its
    value may be left out. check: raises ValueError or ImportError for a value that cannot work.
    offers: values to complete, told from the user's names; with `files` IPython offers paths.
    text: the value is the rest of the line, unless it stands in quotes.
    """

    flags: tuple[str, ...]
    values: tuple[str, ...]
    help: str
    with_code: bool = False
    acts: bool = False
    optional: bool = False
    check: Callable[[str], object] | None = None
    offers: Callable[[Mapping[str, Any]], Iterable[str]] | None = None
    files: bool = False
    text: bool = False

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

    def require(self, value: str, magic: str) -> None:
        """Raise UsageError if `value` is one that cannot work."""
        try:
            if self.check is not None:
                self.check(value)
        except (ValueError, ImportError) as error:
            raise UsageError(f"{magic}: {self.flags[0]} {value}: {error}") from None


@dataclass(frozen=True, slots=True)
class Action:
    """One option as it was given, such as `--compare 1 2`."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OptionTable:
    """All options of one magic. `magic` in the methods is what an error calls it: "%%gpumem"."""

    options: tuple[Option, ...]

    def scan(self, line: str, magic: str) -> tuple[tuple[Action, ...], str]:
        """The options at the start of `line`, and what follows them, untouched."""
        actions = []
        rest = line.strip()
        while rest.startswith("-"):
            token, rest = _take(rest, magic)
            if token == "--":
                break
            flag, given, value = token.partition("=")
            option = self._find(flag, magic)
            values, rest = _values(option, [value] if given else [], rest, magic)
            actions.append(Action(option.key, values))
        return tuple(actions), rest

    def before_code(self, line: str, magic: str) -> tuple[Action, ...]:
        """The options on the first line of a cell. Raises UsageError for anything else there."""
        actions, rest = self.scan(line, magic)
        if rest:
            raise UsageError(
                f"{magic}: {rest!r} is not an option; the code starts on the next line"
            )
        return self.for_code(actions, magic)

    def for_code(self, actions: tuple[Action, ...], magic: str) -> tuple[Action, ...]:
        """`actions`, if each may stand before code. Raises UsageError, naming the wrong one."""
        for action in actions:
            option = self.option(action.key)
            if not option.with_code:
                line_magic = f"%{magic.lstrip('%').split()[0]}"
                raise UsageError(
                    f"{magic}: --{action.key} stands alone, as {line_magic} --{action.key}"
                )
            if option.values and not action.values and not option.text:
                raise UsageError(f"{magic}: --{action.key} needs {option.values[0]}")
            self.check(action, magic)
        return actions

    def check(self, action: Action, magic: str) -> None:
        """UsageError if a value is one that cannot work, before anything runs."""
        for value in action.values:
            self.option(action.key).require(value, magic)

    def option(self, key: str) -> Option:
        """The option of that name."""
        return next(option for option in self.options if option.key == key)

    def describe(self) -> str:
        """The table as text, for the magic's help."""
        lines = []
        for option in self.options:
            head, *more = option.help.splitlines()
            lines += [f"  {option.usage:<20} {head}", *(f"  {'':<20} {text}" for text in more)]
        return "\n".join(lines)

    def _find(self, flag: str, magic: str) -> Option:
        for option in self.options:
            if flag in option.flags:
                return option
        flags = [name for option in self.options for name in option.flags]
        near = difflib.get_close_matches(flag, flags, 1)
        hint = f"did you mean {near[0]}?" if near else f"the options are {' '.join(flags)}"
        raise UsageError(f"{magic}: no option {flag}; {hint}")


def shorten(statement: str) -> str:
    """`statement` as the name of its report."""
    return statement if len(statement) <= 40 else f"{statement[:39]}\N{HORIZONTAL ELLIPSIS}"


def _values(
    option: Option, values: list[str], rest: str, magic: str
) -> tuple[tuple[str, ...], str]:
    if len(values) > len(option.values):
        raise UsageError(f"{magic}: {option.flags[-1]} takes no value")
    if option.text:
        return _text_value(" ".join([*values, rest]).strip())
    while len(values) < len(option.values):
        missing = not rest or rest.startswith("-" if option.optional else "--")
        if missing and option.optional:
            break
        if missing:
            wanted = " ".join(option.values)
            raise UsageError(f"{magic}: {option.flags[-1]} needs {wanted}")
        value, rest = _take(rest, magic)
        values.append(value)
    return tuple(values), rest


def _text_value(rest: str) -> tuple[tuple[str, ...], str]:
    """A quoted text and what follows it; without quotes all of `rest` is the text."""
    match = re.fullmatch(r"""("[^"]*"|'[^']*')(?:\s+(-.*))?""", rest, re.DOTALL)
    if match:
        return (match[1][1:-1],), match[2] or ""
    if not rest or rest.startswith("-"):
        return (), rest
    return (rest,), ""


def _take(text: str, magic: str) -> tuple[str, str]:
    """The first word, quotes resolved, and what follows it, untouched."""
    match = re.match(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""", text)
    if not match:
        raise UsageError(f"{magic}: no closing quotation in {text!r}")
    word = match.group()
    if "\\" not in word:  # a Windows path keeps its backslashes
        word = shlex.split(word)[0] if shlex.split(word) else ""
    return word, text[match.end() :].lstrip()
