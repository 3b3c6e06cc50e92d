"""The options of %gpucheck and %%gpucheck, and what they ask for: what is held now (a Checkup),
what code would take and could save (a Question), or what was advised (a Consultation)."""

from __future__ import annotations

import builtins
import difflib
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from IPython.core.error import UsageError

from gpumem_magic.magics.option_table import Action, Option, OptionTable, shorten
from gpumem_magic.magics.option_values import (
    check_cards,
    check_count,
    check_switch,
    check_target,
    check_variable,
    different_cards,
    nearest_rule,
    offer_cards,
    offer_rules,
    offer_switch,
    offer_whole_numbers,
    rule_names,
    rules_in,
)

_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")

_TASKS = ("free", "watch", "explain")

_WITH_RESULT = ("output", "save")

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
        if key not in (*_TASKS, *_WITH_RESULT, *_WITH_FREE):
            raise UsageError(f"{magic}: --{key} is for predictions")
        if key in _WITH_RESULT and "watch" in given:
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


TIMEOUT = 120.0
"""As in Scenario, which needs torch."""

CHECK_TABLE = OptionTable(
    (
        Option(
            ("--gpu",),
            ("GPU",),
            "predict for this card: T4, A100-80GB, 24GiB, cuda:1; may be repeated,\n"
            "or a list T4,L4; without it: the card in use",
            with_code=True,
            check=check_cards,
            offers=offer_cards,
        ),
        Option(
            ("--fit",),
            ("NAME",),
            "find the largest whole number for the variable NAME that fits",
            with_code=True,
            check=check_variable,
            offers=offer_whole_numbers,
        ),
        Option(
            ("--optimizer-steps",),
            ("N",),
            "end loops after N steps of each optimizer",
            with_code=True,
            check=check_count,
        ),
        Option(
            ("--timeout",),
            ("SECONDS",),
            "end a dry run that comes to nothing new for so long (default 120)",
            with_code=True,
            check=check_count,
        ),
        Option(
            ("--advise",),
            (),
            "find what would save memory in this code, or without code in the last\n"
            "cell, and measure each change by a dry run",
            with_code=True,
        ),
        Option(
            ("--ignore",),
            ("RULE",),
            "no advice of this rule; several with commas",
            with_code=True,
            check=rules_in,
            offers=offer_rules,
        ),
        Option(
            ("--apply",),
            ("N",),
            "put the cell changed by advice N, of the advice shown last, into the\n"
            "notebook; it is not run",
            acts=True,
            check=check_count,
        ),
        Option(("--rules",), (), "list the rules that give advice", acts=True),
        Option(
            ("-o", "--output"),
            ("VAR",),
            "store the result in the variable VAR: a report, for many cards a\n"
            "forecast with .reports, with --fit a fit with .value; of what is held\n"
            "now an inventory with .holdings, of NAME a breakdown with .parts; with\n"
            "--advise an assessment with .advice",
            with_code=True,
            acts=True,
            check=check_variable,
        ),
        Option(
            ("--save",),
            ("PATH",),
            "save the result; PATH ends in .json .csv .html or .txt, for a\n"
            "prediction also .png or .svg",
            with_code=True,
            acts=True,
            check=check_target,
            files=True,
        ),
        Option(("--name",), ("NAME",), "call the report NAME", with_code=True),
        Option(
            ("--free",),
            (),
            "let go of the last errors and of reference cycles, and return unused\n"
            "memory to the device; %debug cannot look at those errors any more",
            acts=True,
        ),
        Option(
            ("--outputs",),
            (),
            "with --free: empty the output history as well (Out, _, _5, ...)",
            acts=True,
        ),
        Option(
            ("--all",),
            (),
            "with --free: let go of everything that is no longer needed, the output\n"
            "history and gradients included; variables stay",
            acts=True,
        ),
        Option(
            ("--watch",),
            ("off",),
            "from now on, tell below a cell which names grew in each of its last\n"
            "runs, and the line that adds; --watch off ends it",
            acts=True,
            optional=True,
            check=check_switch,
            offers=offer_switch,
        ),
        Option(
            ("--explain",),
            ("TEXT",),
            "explain the text of an out-of-memory error, number by number; a long\n"
            "one goes below %%gpucheck --explain; without TEXT: the last error;\n"
            "with the name of a rule: what that rule says, with examples",
            with_code=True,
            acts=True,
            optional=True,
            offers=offer_rules,
            text=True,
        ),
    )
)
"""Every option of %gpucheck."""


@dataclass(frozen=True, slots=True)
class Question:
    """What `%%gpucheck` is asked: on which cards (none: the one in use), the largest value of what.

    optimizer_steps: None for loops in full, as far as they do not repeat themselves. timeout:
    seconds without anything new after which a dry run is ended. advise: measure what changes would
    save. ignore: rules that give no advice.
    """

    gpus: tuple[str, ...] = ()
    fit: str | None = None
    advise: bool = False
    ignore: tuple[str, ...] = ()
    optimizer_steps: int | None = None
    timeout: float = TIMEOUT
    output: str | None = None
    save: str | None = None
    name: str | None = None
    statement: str = ""


def parse_check_cell(line: str) -> Question | Checkup | Consultation:
    """The options after `%%gpucheck`. Raises UsageError, naming the option, if any is wrong."""
    actions = CHECK_TABLE.before_code(line, "%%gpucheck")
    if any(action.key == "explain" for action in actions):
        return read_checkup(actions, (), "%%gpucheck")
    return _question(actions, "%%gpucheck")


def parse_check_line(line: str, namespace: Mapping[str, Any]) -> Question | Checkup | Consultation:
    """The options after `%gpucheck`, and names or a statement after them. Raises UsageError if any
    is wrong.

    A line of nothing but names of `namespace` and their attributes asks what these hold; any other
    code is predicted. `--advise` without code is about the last cell.
    """
    actions, rest = CHECK_TABLE.scan(line, "%gpucheck")
    for action in actions:
        CHECK_TABLE.check(action, "%gpucheck")
    consultation = read_consultation(actions, rest, "%gpucheck")
    if consultation is not None:
        return consultation
    predicts = any(not CHECK_TABLE.option(action.key).acts for action in actions)
    names = () if predicts else names_in(rest, namespace)
    if names or not (rest or predicts):
        return read_checkup(actions, names, "%gpucheck")
    CHECK_TABLE.for_code(actions, "%gpucheck STATEMENT")
    advises = any(action.key == "advise" for action in actions)
    if not rest and not advises:
        given = f"--{actions[0].key}"
        raise UsageError(
            f"%gpucheck: {given} needs a statement after it, or a cell: %%gpucheck {given} ..."
        )
    question = _question(actions, "%gpucheck")
    return replace(question, statement=rest, name=question.name or shorten(rest) or None)


def _question(actions: tuple[Action, ...], magic: str) -> Question:
    question = Question()
    for action in actions:
        question = _apply(question, action.key, action.values[0] if action.values else "")
    if question.advise and question.fit:
        raise UsageError(f"{magic}: --advise and --fit do not go together")
    if question.advise and len(question.gpus) > 1:
        raise UsageError(f"{magic}: --advise is for one card, not {', '.join(question.gpus)}")
    return question


def _apply(question: Question, key: str, value: str) -> Question:
    if key == "gpu":
        cards = (*question.gpus, *(name.strip() for name in value.split(",")))
        return replace(question, gpus=different_cards(cards))
    if key == "fit":
        return replace(question, fit=value)
    if key == "advise":
        return replace(question, advise=True)
    if key == "ignore":
        return replace(question, ignore=(*question.ignore, *rules_in(value)))
    if key == "optimizer-steps":
        return replace(question, optimizer_steps=int(value))
    if key == "timeout":
        return replace(question, timeout=float(value))
    if key == "output":
        return replace(question, output=value)
    if key == "save":
        return replace(question, save=value)
    return replace(question, name=value)
