"""What a dry run does not carry out, or only in its scratch folder: told once for each kind and
line; and whose code is asking."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gpumem_magic.isolation.builtin_functions import is_builtin, redirect, set_in_class
from gpumem_magic.isolation.in_modules import InModules, namespace_of
from gpumem_magic.isolation.signatures import called_like
from gpumem_magic.sources.stacks.frames import LIBRARIES, outwards

_LONGEST = 120
_MOST = 40
"""Things of each sort that are named; a loop over thousands of files would fill the report."""


_SECRET = re.compile("key|token(?!s)|secret|passw", re.IGNORECASE)
"""In the names of arguments that notes do not show."""

_OF_SHELLS = frozenset("|&;<>$`")
"""In commands of which a program's words are not all."""


def _always() -> bool:
    return True


def _nothing(words: list[str]) -> str:
    return ""


class Effects:
    """Replaces functions by ones that do nothing outside, and keeps what they would have done.

    filename: that of the cell's frames. programs: what some print, by their name, in place of being
    started; they are called with what follows it in the command. It all happens in a process that
    ends with the dry run, so nothing is ever put back.
    """

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.places = {filename: "line "}  # what a line's number is told after, by file
        self.programs: dict[str, Callable[[list[str]], str]] = {}
        self._blocked: dict[str, Callable[[], bool]] = {}
        self._redirected: dict[str, Callable[[], bool]] = {}
        self._done_here: dict[str, Callable[[], bool]] = {}
        self._seen: set[tuple[object, ...]] = set()
        self._inside = threading.local()
        self._replacements: dict[int, tuple[Any, Any]] = {}

    def notes(self) -> tuple[str, ...]:
        """A sentence on what was not carried out, one on what was written for the dry run only, one
        on what other processes would do."""
        found = []
        if self._blocked:
            found.append(f"Not executed in the dry run: {_listed(self._blocked)}.")
        written = [text for text, happened in self._redirected.items() if happened()]
        if written:
            found.append(f"Written for the dry run only, and gone: {_listed(written)}.")
        if self._done_here:
            found.append(
                f"Computed in this process, and counted with it: {_listed(self._done_here)}."
            )
        return tuple(found)

    def blocked(self, text: str) -> None:
        """Name a thing that is not done, unless it is a part of another one that was named."""
        self._keep(self._blocked, text)

    def redirected(self, text: str, happened: Callable[[], bool] = _always) -> None:
        """Name a thing that is done, but in the scratch folder of the dry run; where it only may
        be, `happened` tells at the end."""
        self._keep(self._redirected, text, happened)

    def said(self, command: Any) -> str:
        """What the program of a command prints, a text or a list; in general nothing."""
        words = [command] if isinstance(command, bytes | os.PathLike) else command
        with contextlib.suppress(ValueError):  # a quote that is not closed
            words = shlex.split(words) if isinstance(words, str) else [*map(os.fsdecode, words)]
            if words and not _OF_SHELLS.intersection("".join(words)):
                return self.programs.get(words[0].rpartition("/")[2], _nothing)(words[1:])
        return ""

    def done_here(self, text: str) -> None:
        """Name what other processes would do, and this one does."""
        self._keep(self._done_here, text)

    def _keep(
        self,
        found: dict[str, Callable[[], bool]],
        text: str,
        happened: Callable[[], bool] = _always,
    ) -> None:
        if getattr(self._inside, "depth", 0):
            return
        place = self._place()
        key = (text.partition("(")[0].partition(" ")[0], place)
        if place == "tempfile" or key in self._seen:
            return
        self._seen.add(key)
        text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
        if isinstance(place, tuple) and place[0] in self.places:
            text = f"{text} ({self.places[place[0]]}{place[1]})"
        found[text] = happened

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Within, nothing is told: it is part of what was told already."""
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            yield
        finally:
            self._inside.depth -= 1

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name`, where there is one, by `make(it)`; a function of C wherever it is
        kept."""
        original = getattr(owner, name, None)
        if original is None:
            return
        if is_builtin(original):
            redirect(original, lambda copy: called_like(copy, make(copy)))
            return
        chosen = called_like(original, make(original))

        with contextlib.suppress(Exception):  # it may be any object, if the user replaced it
            functools.update_wrapper(chosen, original)
        with contextlib.suppress(TypeError):
            set_in_class(owner, name, chosen)
        if isinstance(owner, types.ModuleType):
            self._replacements[id(original)] = original, chosen

    def wrap(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Replace `owner.name`, where there is one, by `call`, which gets it first."""
        self.replace(owner, name, functools.partial(functools.partial, call))

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace `owner.name`, where there is one."""
        self.replace(owner, name, lambda original: replacement)

    def skip(self, owner: Any, name: str, known_as: str, result: Any = None) -> None:
        """`owner.name` is not carried out, and returns `result` (what it makes, where callable)."""

        def skipped(*args: Any, **kwargs: Any) -> Any:
            self.blocked(described(known_as, args, kwargs))
            return result(*args, **kwargs) if callable(result) else result

        self.put(owner, name, skipped)

    def rebind(self, namespace: dict[str, Any]) -> None:
        """Let names that were bound to what is replaced now (`from os import remove`) mean the
        replacement, in `namespace` and in modules that are the user's."""
        modules = [namespace_of(sys.modules.get(name)) for name in users_modules()]
        for names in (namespace, *modules):
            names.update(renamed(names, self._replacements))

    def _place(self) -> object:
        """The line of the user that is running; "tempfile" where that module is at work."""
        for frame in outwards(sys._getframe(1)):
            if frame.f_globals.get("__name__") == "tempfile":
                return "tempfile"
            if frame.f_code.co_filename not in LIBRARIES:
                return frame.f_code.co_filename, frame.f_lineno
        return None


def _names_of_users(module: str) -> Iterator[str]:
    file = namespace_of(sys.modules.get(module)).get("__file__")
    if isinstance(file, str) and file not in LIBRARIES:
        yield module


users_modules = InModules(_names_of_users)
"""Names of loaded modules that are no library's."""


def renamed(
    names: Mapping[str, Any], replacements: Mapping[int, tuple[Any, Any]]
) -> dict[str, Any]:
    """The names that are bound to an original, with its replacement; both by the original's id."""
    found = list(names.items())
    return {name: replacements[id(value)][1] for name, value in found if id(value) in replacements}


def described(name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> str:
    """The call as users write it, with "..." for what is not a name or a number, or is secret."""
    named = [
        f"{key}={'...' if _is_secret(key, value) else _shown(value)}"
        for key, value in (kwargs or {}).items()
    ]
    return f"{name}({', '.join([*map(_shown, args), *named])})"


def _is_secret(key: str, value: Any) -> bool:
    """Whether notes keep an argument to themselves: `max_new_tokens=8` and `sort_keys=True` not."""
    return not isinstance(value, bool | None) and _SECRET.search(key) is not None


def _listed(found: Iterable[str]) -> str:
    texts = list(found)
    more = f" and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return ", ".join(texts[:_MOST]) + more


def _shown(value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, (list, tuple)) and all(isinstance(v, (str, int)) for v in value):
        return repr(value)
    if value is None or isinstance(value, (str, bytes, int, float)):
        return repr(value)
    return "..."
