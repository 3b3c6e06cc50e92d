"""The options of %gpucheck and %%gpucheck, and what they ask for: what is held now (a Checkup),
what code would take and could save (a Question), or what was advised (a Consultation)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from IPython.core.error import UsageError

from gpumem_magic.magics.advice_options import Consultation, read_consultation
from gpumem_magic.magics.checkup_options import Checkup, names_in, read_checkup
from gpumem_magic.magics.option_table import Action, Option, OptionTable, shorten
from gpumem_magic.magics.option_values import (
    check_cards,
    check_count,
    check_switch,
    check_target,
    check_variable,
    different_cards,
    offer_cards,
    offer_rules,
    offer_switch,
    offer_whole_numbers,
    rules_in,
)

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
