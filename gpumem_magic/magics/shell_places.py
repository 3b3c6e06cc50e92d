"""Where IPython keeps what cells gave back or raised, so that it outlives every variable.

The same on IPython 7.34 to 9."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from gpumem_magic.sources.holders import Root
from gpumem_magic.values.inventory import HolderKind

_UNDERS = ("_", "__", "___")
_NUMBERED = re.compile(r"_\d+")
_NOTHING = object()
_LAST = ("last_exc", "last_value", "last_traceback", "last_type")  # as `sys` has them


def shell_roots(shell: Any) -> tuple[Root, ...]:
    """Every place, for an inventory of what the notebook's names do not lead to."""
    return (*output_places(shell), *error_places(shell), *_other_places(shell))


def output_places(shell: Any) -> tuple[Root, ...]:
    """Where the values are that cells displayed."""
    kind = HolderKind.OUTPUT_HISTORY
    hook, hidden = shell.displayhook, shell.user_ns_hidden
    found = [_item(shell.user_ns["_oh"], number, f"Out[{number}]", kind)
             for number in shell.user_ns.get("_oh", ())]  # fmt: skip
    found += _history_names(shell)
    found += [
        _item(hidden, name, f"user_ns_hidden[{name!r}]", kind)
        for name in hidden
        if _is_history_name(name)
    ]
    found += [_attribute(hook, name, f"displayhook.{name}", "", kind) for name in _UNDERS]
    last = shell.last_execution_result
    if last is not None and last.result is not None:
        found.append(_last_result(shell, "result", kind))
    return tuple(found)


def error_places(shell: Any) -> tuple[Root, ...]:
    """Where the last errors are, with the frames that they went through."""
    kind = HolderKind.EXCEPTION
    found = [_item(vars(sys), name, f"sys.{name}", kind) for name in _LAST if hasattr(sys, name)]
    formatter = shell.InteractiveTB
    if getattr(formatter, "tb", None) is not None:
        found.append(_attribute(formatter, "tb", "InteractiveTB.tb", None, kind))
    if getattr(getattr(formatter, "pdb", None), "botframe", None) is not None:
        found.append(_attribute(formatter, "pdb", "InteractiveTB.pdb", None, kind))
    if getattr(shell.SyntaxTB, "last_syntax_error", None) is not None:
        found.append(_attribute(shell.SyntaxTB, "last_syntax_error", "SyntaxTB", None, kind))
    last = shell.last_execution_result
    errors = ("error_in_exec", "error_before_exec") if last is not None else ()
    found += [_last_result(shell, name, kind) for name in errors if getattr(last, name) is not None]
    return tuple(found)


def _other_places(shell: Any) -> Iterator[Root]:
    """What `%run` leaves behind, names hidden from `%who`, and the user's own `_`."""
    kind = HolderKind.MODULE_STATE
    for filename, module in shell._main_mod_cache.items():
        name = f"%run {filename}"
        yield Root(kind, name, partial(vars, module), shell.clear_main_mod_cache)
    hidden, names = shell.user_ns_hidden, shell.user_ns
    for name in hidden:
        if not _is_history_name(name) and not (name in names and names[name] is hidden[name]):
            yield _item(hidden, name, f"user_ns_hidden[{name!r}]", kind)
    theirs = {place.name for place in _history_names(shell)}
    for name in filter(_is_history_name, names):
        if name not in theirs:
            yield _item(names, name, name, HolderKind.VARIABLE)


def _history_names(shell: Any) -> list[Root]:
    """`_`, `__`, `_5` and the like, where they are IPython's and not the user's own."""
    names, hook, hidden = shell.user_ns, shell.displayhook, shell.user_ns_hidden
    outputs = names.get("_oh", {})
    kind = HolderKind.OUTPUT_HISTORY
    found = []
    for name in filter(_is_history_name, names):
        number = name[1:]
        theirs = [hidden.get(name, _NOTHING), getattr(hook, name, _NOTHING)]
        if number.isdigit():
            theirs.append(outputs.get(int(number), _NOTHING))
        if any(names[name] is value for value in theirs):
            empty = "" if name in _UNDERS else _NOTHING
            found.append(_item(names, name, name, kind, empty))
    return found


def _is_history_name(name: str) -> bool:
    return name in _UNDERS or _NUMBERED.fullmatch(name) is not None


def _item(
    mapping: dict[Any, Any], key: Any, name: str, kind: HolderKind, empty: object = _NOTHING
) -> Root:
    """An entry of a dict; dropped, it holds `empty` or is gone."""

    def drop() -> None:
        if empty is _NOTHING:
            mapping.pop(key, None)
        elif key in mapping:
            mapping[key] = empty

    return Root(kind, name, lambda: mapping.get(key), drop)


def _attribute(owner: Any, attribute: str, name: str, empty: object, kind: HolderKind) -> Root:
    return Root(
        kind,
        name,
        lambda: getattr(owner, attribute, None),
        lambda: setattr(owner, attribute, empty),
    )


def _last_result(shell: Any, attribute: str, kind: HolderKind) -> Root:
    """A part of what the last cell came to; IPython itself forgets all of it together."""

    def drop() -> None:
        shell.last_execution_result = None

    name = f"last_execution_result.{attribute}"
    return Root(kind, name, lambda: getattr(shell.last_execution_result, attribute, None), drop)
