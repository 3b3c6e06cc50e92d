"""The options of a magic: one table reads them, documents them and completes them."""

from __future__ import annotations

import difflib
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from IPython.core.error import UsageError

_HELP = 57  # columns that a terminal of 80 has beside the flags
_NEAR = 0.8  # likeness of what was typed and what was meant; a slip of one or two letters


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    flag: its names, the long one last: "-o/--output".
    values: the names of its values, such as "A B"; none for a switch.
    help: what the magic's help says of it.
    read: the value of a text; raises ValueError or ImportError for one that cannot work.
    code: whether it may stand before code.
    run: what it does where it stands without code.
    optional: whether its value may be left out.
    offers: values to complete, told from the user's names.
    files: whether IPython completes paths.
    text: whether the value is the rest of the line, unless it stands in quotes.
    """

    flag: str
    values: str
    help: str
    read: Callable[[str], Any] = str
    _: KW_ONLY
    code: bool = False
    run: Callable[..., Any] | None = None
    optional: bool = False
    offers: Callable[[Mapping[str, Any]], Iterable[str]] | None = None
    files: bool = False
    text: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """Every way to write it."""
        return tuple(self.flag.split("/"))

    @property
    def key(self) -> str:
        """The long name without dashes."""
        return self.flags[-1].lstrip("-")

    @property
    def usage(self) -> str:
        """The option as help shows it."""
        values = f"[{self.values}]" if self.optional else self.values
        return f"{self.flag} {values}".strip()


@dataclass(frozen=True, slots=True)
class Given:
    """An option as it was given, with its values as they were read. flag: the one of its flags."""

    option: Option
    flag: str
    values: tuple[Any, ...]

    @property
    def key(self) -> str:
        """The option's."""
        return self.option.key


def fields_of(given: Iterable[Given]) -> dict[str, Any]:
    """What options say, by the fields that are named like them. A switch says True; of an option
    given twice the last one counts, but tuples add up."""
    found: dict[str, Any] = {}
    for each in given:
        field = each.key.replace("-", "_")
        value = each.values[0] if each.values else True
        found[field] = (*found.get(field, ()), *value) if isinstance(value, tuple) else value
    return found


@dataclass(frozen=True, slots=True)
class OptionTable:
    """All options of one magic. `magic` in the methods is what an error calls it: "%%gpumem".
    others: the tables of other magics by their names, for an error about an option of theirs."""

    options: tuple[Option, ...]
    others: dict[str, OptionTable] = field(default_factory=dict)

    def scan(self, line: str, magic: str) -> tuple[tuple[Given, ...], str]:
        """The options at the start of `line`, and what follows them, untouched."""
        found = []
        rest = line.strip()
        while rest.startswith("-"):
            token, rest = _take(rest, magic)
            if token == "--":
                break
            flag, equals, value = token.partition("=")
            option = self._find(flag, magic)
            texts, rest = _values(option, flag, [value] if equals else [], rest, magic)
            values = tuple(_read(option, flag, text, magic) for text in texts)
            found.append(Given(option, flag, values))
        return tuple(found), rest

    def before_code(self, line: str, magic: str) -> tuple[Given, ...]:
        """The options on the first line of a cell. Raises UsageError for anything else there."""
        given, rest = self.scan(line, magic)
        if rest:
            raise UsageError(
                f"{magic}: {rest!r} is not an option; the code starts on the next line"
            )
        return for_code(given, magic)

    def find(self, flag: str) -> Option | None:
        """The option with that flag."""
        return next((option for option in self.options if flag in option.flags), None)

    def require_code(self, text: str, namespace: Mapping[str, Any], magic: str) -> None:
        """Raise UsageError for code that is the name of an option, and of nothing else."""
        if self.find(f"--{text}") and text not in namespace:
            raise UsageError(f"{magic}: {text!r} is no name here; did you mean --{text}?")

    def describe(self) -> str:
        """The table as text, for the magic's help."""
        lines = []
        for option in self.options:
            head, *more = textwrap.wrap(option.help, _HELP, break_on_hyphens=False)
            lines += [f"  {option.usage:<20} {head}", *(f"  {'':<20} {text}" for text in more)]
        return "\n".join(lines)

    def _find(self, flag: str, magic: str) -> Option:
        option = self.find(flag)
        if option is not None:
            return option
        for name, table in self.others.items():
            other = table.find(flag)
            if other is not None:
                begins = "%%" if magic.startswith("%%") and other.code else "%"
                meant = f"{begins}{name} {flag} {other.values}".strip()
                raise UsageError(f"{magic}: {flag} is an option of {name}: {meant}")
        flags = [name for option in self.options for name in option.flags]
        near = difflib.get_close_matches(flag, flags, 3, _NEAR)  # --advice: --device, --advise
        meant = max(near, key=lambda name: name[:4] == flag[:4], default="")
        hint = f"did you mean {meant}?" if meant else f"the options are {' '.join(flags)}"
        raise UsageError(f"{magic}: no option {flag}; {hint}")


def for_code(given: tuple[Given, ...], magic: str) -> tuple[Given, ...]:
    """`given`, if each may stand before code. Raises UsageError, naming the wrong one."""
    for each in given:
        option = each.option
        if not option.code:
            alone = f"%{magic.lstrip('%').split()[0]} --{option.key}"
            raise UsageError(f"{magic}: --{option.key} stands alone, as {alone}")
        if option.values and not each.values:
            raise UsageError(f"{magic}: {each.flag} needs {option.values}: {option.help}")
    return given


def shorten(statement: str) -> str:
    """`statement` as the name of its report."""
    return statement if len(statement) <= 40 else f"{statement[:39]}\N{HORIZONTAL ELLIPSIS}"


def _read(option: Option, flag: str, text: str, magic: str) -> Any:
    try:
        return option.read(text)
    except (ValueError, ImportError) as error:
        raise UsageError(f"{magic}: {flag} {text}: {error}") from None


def _values(
    option: Option, flag: str, texts: list[str], rest: str, magic: str
) -> tuple[list[str], str]:
    names = option.values.split()
    if len(texts) > len(names):
        raise UsageError(f"{magic}: {flag} takes no value")
    if option.text:
        return _text_value(" ".join([*texts, rest]).strip())
    while len(texts) < len(names):
        missing = not rest or rest.startswith("-" if option.optional else "--")
        if missing and option.optional:
            break
        if missing:
            raise UsageError(f"{magic}: {flag} needs {option.values}: {option.help}")
        text, rest = _take(rest, magic)
        texts.append(text)
    return texts, rest


def _text_value(rest: str) -> tuple[list[str], str]:
    """A quoted text and what follows it; without quotes all of `rest` is the text."""
    match = re.fullmatch(r"""("[^"]*"|'[^']*')(?:\s+(-.*))?""", rest, re.DOTALL)
    if match:
        return [match[1][1:-1]], match[2] or ""
    if rest.startswith("-"):
        return [""], rest
    return [rest], ""


def _take(text: str, magic: str) -> tuple[str, str]:
    """The first word, quotes resolved, and what follows it, untouched."""
    match = re.match(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""", text)
    if not match:
        raise UsageError(f"{magic}: no closing quotation in {text!r}")
    word = match.group()
    if "\\" not in word:  # a Windows path keeps its backslashes
        word = shlex.split(word)[0] if shlex.split(word) else ""
    return word, text[match.end() :].lstrip()
