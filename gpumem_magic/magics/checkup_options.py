"""What `%gpucheck` is asked of the memory in use: all of it, that of some names, or to act."""

from __future__ import annotations

import builtins
import difflib
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError

from gpumem_magic.magics.option_table import Action

_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_TASKS = ("free", "watch", "explain")
_KEPT = ("output", "save")
_WITH_FREE = ("outputs", "all")


@dataclass(frozen=True, slots=True)
class Checkup:
    """One question. watch: True to begin, False to end. explain: a text, "" for the last error."""

    names: tuple[str, ...] = ()
    free: bool = False
    outputs: bool = False
    everything: bool = False
    watch: bool | None = None
    explain: str | None = None
    output: str | None = None
    save: str | None = None


def read_checkup(actions: Sequence[Action], names: tuple[str, ...], magic: str) -> Checkup:
    """What options and names ask together. Raises UsageError where they do not go together."""
    given = {action.key: action.values[0] if action.values else "" for action in actions}
    _require_one_task(given, names, magic)
    return Checkup(
        names=names,
        free="free" in given,
        outputs="outputs" in given,
        everything="all" in given,
        watch=given["watch"] != "off" if "watch" in given else None,
        explain=given.get("explain"),
        output=given.get("output"),
        save=given.get("save"),
    )


def _require_one_task(given: Mapping[str, str], names: tuple[str, ...], magic: str) -> None:
    tasks = [key for key in _TASKS if key in given]
    for key in given:
        if key in _WITH_FREE and "free" not in given:
            raise UsageError(f"{magic}: --{key} goes with --free")
        if key not in (*_TASKS, *_KEPT, *_WITH_FREE):
            raise UsageError(f"{magic}: --{key} is for predictions")
        if key in _KEPT and "watch" in given:
            raise UsageError(f"{magic}: --watch has no result to keep")
    if len(tasks) > 1:
        raise UsageError(f"{magic}: --{tasks[0]} and --{tasks[1]} do not go together")
    if tasks and names:
        raise UsageError(f"{magic}: --{tasks[0]} takes no names: {' '.join(names)}")


def names_in(text: str, namespace: Mapping[str, Any]) -> tuple[str, ...]:
    """The names that are all that `text` has, such as `model, optimizer.state`; none where it is a
    statement. Raises UsageError for names of nothing."""
    words = text.replace(",", " ").split()
    roots = [word.partition(".")[0] for word in words if _PATH.fullmatch(word)]
    if len(roots) < len(words) or any(keyword.iskeyword(root) for root in roots):
        return ()
    unknown = [root for root in roots if root not in namespace]
    if any(hasattr(builtins, root) for root in unknown):
        return ()
    if unknown:
        near = difflib.get_close_matches(unknown[0], list(namespace), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"%gpucheck: there is no variable {unknown[0]}{hint}")
    return tuple(words)
