"""What IPython's shell keeps beside the user's namespace."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from gpumem_magic.sources.virtual.dryrun.effects import Libraries

_ABSENT: Any = object()
_SHELL = (
    "execution_count last_execution_result last_execution_succeeded display_pub displayhook "
    "display_trap custom_exceptions CustomTB InteractiveTB exit_now ast_node_interactivity xmode "
    "ast_transformers input_transformers_post configurables _last_input_line "
    "user_ns_hidden showtraceback showsyntaxerror"
).split()
_HISTORY = (
    "input_hist_parsed input_hist_raw output_hist output_hist_reprs outputs exceptions dir_hist "
    "session_number _i _ii _iii _i00"
).split()
_UNSAVED = ("db_input_cache", "db_output_cache")
_DISPLAYHOOK = ["_", "__", "___", "exec_result"]
_TRANSFORMERS = ["cleanup_transforms", "line_transforms", "token_transformers"]
_TRACEBACKS = ["tb", "ex", "etype", "evalue", "tb_offset"]


def keep_shell() -> Callable[[], object]:
    """Save the shell's state, if code runs in one; returns what puts it back.

    Hooks and magics that libraries register on their import stay: they do it only once.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return lambda: None
    restores = [
        _keep_attributes(shell, _SHELL),
        _keep_attributes(shell.history_manager, _HISTORY),
        _keep_unsaved(shell.history_manager),
        _keep_attributes(shell.displayhook, _DISPLAYHOOK),
        _keep_attributes(shell.InteractiveTB, _TRACEBACKS),
        _keep_attributes(shell.input_transformer_manager, _TRANSFORMERS),
        _keep_attributes(shell.payload_manager, ["_payload"]),
        _keep_callbacks(shell),
        _keep_magics(shell),
    ]

    def restore() -> None:
        for put_back in reversed(restores):
            put_back()

    return restore


def _keep_attributes(owner: Any, names: list[str]) -> Callable[[], None]:
    """Attributes of the instance, and the contents of those that are lists, dicts or sets."""
    before = {name: _value(owner, name) for name in names}
    contents = [(v, type(v)(v)) for v in before.values() if type(v) in (list, dict, set)]

    def restore() -> None:
        for name, value in before.items():
            if value is _ABSENT:
                vars(owner).pop(name, None)
            elif _value(owner, name) is not value:
                with contextlib.suppress(AttributeError):  # some are only read
                    setattr(owner, name, value)
        for place, content in contents:
            if place != content:
                _refill(place, content)

    return restore


def _keep_unsaved(history: Any) -> Callable[[], None]:
    """What is on its way to the history's file. A thread saves it at any time: what it has saved
    must not come back, or it would be saved twice."""
    before = {name: list(getattr(history, name, ())) for name in _UNSAVED}

    def restore() -> None:
        for name, entries in before.items():
            now = getattr(history, name, [])
            now[:] = [entry for entry in now if entry in entries]

    return restore


def _value(owner: Any, name: str) -> Any:
    own = vars(owner)
    return own.get(name, own.get("_trait_values", {}).get(name, _ABSENT))


def _refill(place: Any, content: Any) -> None:
    place.clear()
    (place.extend if isinstance(place, list) else place.update)(content)


def _keep_callbacks(shell: Any) -> Callable[[], None]:
    callbacks = shell.events.callbacks
    before = {event: list(functions) for event, functions in callbacks.items()}

    def restore() -> None:
        libraries = Libraries()
        for event, functions in callbacks.items():
            old = before.get(event, [])
            new = [f for f in functions if f not in old and libraries.defines(f)]
            functions[:] = old + new

    return restore


def _keep_magics(shell: Any) -> Callable[[], None]:
    magics = shell.magics_manager.magics
    before = {kind: dict(functions) for kind, functions in magics.items()}

    def restore() -> None:
        libraries = Libraries()
        for kind, functions in magics.items():
            for name, function in tuple(functions.items()):
                if name not in before[kind] and not libraries.defines(function):
                    del functions[name]
            functions.update(before[kind])

    return restore
