"""What `%gpucheck` is asked of advice that was given, and of the rules that give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from IPython.core.error import UsageError

from gpumem_magic.magics.option_table import Action
from gpumem_magic.magics.option_values import nearest_rule, rule_names

_KEPT = ("output", "save")


@dataclass(frozen=True, slots=True)
class Consultation:
    """One question. apply: the number of the advice to put into the notebook. explain: a rule.
    note: that it was asked for by another name. With neither: which rules there are."""

    apply: int | None = None
    explain: str | None = None
    note: str = ""
    output: str | None = None
    save: str | None = None


def read_consultation(actions: Sequence[Action], rest: str, magic: str) -> Consultation | None:
    """What the options ask of advice and rules; None where they ask something else. Raises
    UsageError where they do not go together."""
    given = {action.key: action.values[0] if action.values else "" for action in actions}
    rule = _rule(given["explain"]) if given.get("explain") else None
    tasks = [key for key in given if key in ("apply", "rules")]
    if rule is not None:
        tasks.append("explain")
    if not tasks:
        return None
    others = [key for key in given if key not in (tasks[0], *_KEPT)]
    if others:
        raise UsageError(f"{magic}: --{tasks[0]} and --{others[0]} do not go together")
    if rest:
        raise UsageError(f"{magic}: --{tasks[0]} takes no code: {rest}")
    return Consultation(
        apply=int(given["apply"]) if tasks[0] == "apply" else None,
        explain=rule,
        note=""
        if rule in (None, given.get("explain"))
        else f"No rule {given['explain']}; nearest:",
        output=given.get("output"),
        save=given.get("save"),
    )


def _rule(text: str) -> str | None:
    """The rule whose name `text` is, or nearly is; None for a text of another kind."""
    if text in rule_names():
        return text
    return nearest_rule(text) if len(text) < 60 else None
