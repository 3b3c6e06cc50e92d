"""Tab completion of the magics' options and of their values."""

from __future__ import annotations

from typing import Any

from IPython.core.error import TryNext
from IPython.core.interactiveshell import InteractiveShell

from gpumem_magic.magics import gpucheck, gpumem

HOOK = "complete_command"
NAMES = tuple(f"{sign}{name}" for name in ("gpumem", "gpucheck") for sign in ("%", "%%", ""))


def complete(shell: InteractiveShell, event: Any) -> list[str]:
    """What may follow at the cursor: an option, its value, a name of the statement, or a path."""
    words = event.text_until_cursor.split()
    if not event.text_until_cursor.endswith((" ", "\t")):
        words.pop()
    before = words[-1] if words else ""
    cell = words[0].startswith("%%")
    table = (gpucheck if words[0].lstrip("%") == "gpucheck" else gpumem).OPTIONS
    option = table.find(before)
    if option is not None and option.offers is not None:
        return list(option.offers(shell.user_ns))
    if (option and option.files) or (cell and not event.symbol.startswith("-")):
        raise TryNext  # IPython offers the files
    if not event.symbol.startswith("-"):
        return _names(shell.Completer, event.symbol)
    return [flag for o in table.options if o.code or not cell for flag in o.flags]


def _names(completer: Any, symbol: str) -> list[str]:
    """Names of the user's that begin with `symbol`: behind a magic IPython itself offers none."""
    matches = completer.attr_matches if "." in symbol else completer.global_matches
    return [*matches(symbol)]


def install(shell: InteractiveShell) -> None:
    """Complete after the magics' names."""
    for name in NAMES:
        shell.set_hook(HOOK, complete, str_key=name)  # type: ignore[no-untyped-call]


def remove(shell: InteractiveShell) -> None:
    """Undo `install`."""
    strings = shell.strdispatchers[HOOK].strs
    for name in NAMES:
        chain = strings.get(name)
        if chain is not None:
            others = [e for e in chain.chain if getattr(e[1], "__func__", None) is not complete]
            chain.chain = others
            if not chain.chain:
                del strings[name]
