"""%gpucheck: its options beside what they do. What is held now, what code would take, what advice
means: each is asked with a Check and answered with an Answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from IPython.core.error import UsageError

from gpumem_magic.assess import Question, question_of
from gpumem_magic.dryrun.scenario import TIMEOUT
from gpumem_magic.magics import advice, checkup
from gpumem_magic.magics.display import show_text, tell
from gpumem_magic.magics.faults import harmless
from gpumem_magic.magics.monitor import Monitor
from gpumem_magic.magics.option_values import (
    cards,
    count,
    different_cards,
    known_rules,
    names_in,
    offer_cards,
    offer_rules,
    offer_whole_numbers,
    percent,
    rules,
    switch,
    target,
    variable,
)
from gpumem_magic.magics.options import Given, Option, OptionTable, fields_of, for_code, shorten
from gpumem_magic.magics.predictions import cell_of, predict, require_torch, scenario_of
from gpumem_magic.values.answer import Answer
from gpumem_magic.values.recording import Cell
from gpumem_magic.values.report import Report
from gpumem_magic.virtual.assumable import ASSUMABLE, assumable

_RULE = re.compile(r"[a-z0-9]+([-_][a-z0-9]+)*")
"""How the name of a rule looks; no text of an error is one word."""


@dataclass(frozen=True, slots=True)
class Check:
    """What %gpucheck is asked: a field for each of its options, whose help says what it means.

    run: what answers it. code: what is predicted, or the text below `--explain`. mark: the line
    above the code, with its end. names: the variables that it is about.
    """

    run: Callable[[Monitor, Check], Answer | None]
    gpu: tuple[str, ...] = ()
    fit: str | None = None
    headroom: float | None = None
    accumulate: str | None = None
    optimizer_steps: int | None = None
    timeout: float = TIMEOUT
    assume: tuple[str, ...] = ()
    worst_batch: str | None = None
    advise: bool = False
    ignore: tuple[str, ...] = ()
    apply: int | None = None
    rules: bool = False
    output: str | None = None
    save: Path | None = None
    name: str | None = None
    free: bool = False
    help: bool = False
    outputs: bool = False
    all: bool = False
    watch: bool | None = None
    explain: str | None = None
    code: str = ""
    mark: str = ""
    names: tuple[str, ...] = ()


def run_gpucheck(monitor: Monitor, line: str, cell: str | None) -> None:
    """Answer what `%gpucheck` or, with a cell, `%%gpucheck` asks, keep the answer where that says,
    and show it.

    Raises UsageError for what cannot be answered, SyntaxError of the code. Inside a prediction
    nothing happens.
    """
    if cell is None or line.strip() in ("-h", "--help"):
        check = read_line(line, monitor.shell.user_ns)
    else:
        check = read_cell(line, cell)
    answer = None if monitor.predicting else check.run(monitor, check)
    if answer is not None:
        _deliver(monitor, check, answer)


def _deliver(monitor: Monitor, check: Check, answer: Answer) -> None:
    if check.output:
        monitor.shell.user_ns[check.output] = answer
    if check.save:
        with harmless(f"saving to {check.save}"):
            answer.save(check.save)
    with harmless("showing the answer"):
        if isinstance(answer, Report):
            monitor.show_report(answer, monitor.settings.plot)
        else:
            show_text(monitor.shell, answer)


def _hold(monitor: Monitor, check: Check) -> Answer:
    return checkup.held_by(monitor, check.names) if check.names else checkup.inventory(monitor)


def _free(monitor: Monitor, check: Check) -> Answer:
    source = checkup.source_of(monitor)
    return checkup.recover(monitor.shell, source, check.outputs, check.all)


def _watch(monitor: Monitor, check: Check) -> None:
    checkup.watch(monitor, check.watch is not False)


def _explain(monitor: Monitor, check: Check) -> Answer:
    text = check.explain or ""
    if text and advice.rule_named(text):
        return advice.pages(text)
    if _RULE.fullmatch(text):
        raise UsageError(f"%gpucheck --explain: no rule {text}; {known_rules()}")
    return checkup.explained(text or check.code.strip())


def _apply(monitor: Monitor, check: Check) -> Answer:
    assert check.apply is not None
    return advice.apply(monitor, check.apply)


def _rules(monitor: Monitor, check: Check) -> Answer:
    return advice.pages()


def _advise(monitor: Monitor, check: Check) -> Answer:
    """Of the code, or without it, and where it is the same, of the last cell."""
    require_torch()
    cell = cell_of(monitor, check) if check.code.strip() else None
    last = _last_of(monitor, cell)
    typed = monitor.files.with_code(last.cell) if last else cell
    assert typed is not None
    card, to_code = check.gpu[0] if check.gpu else None, monitor.files.python
    scenario = scenario_of(monitor, check, typed, card)
    if last is None:
        asked = Question(scenario, to_code, name=f"In[{typed.number}]" if typed.number else "")
    else:
        whole = card is None and check.optimizer_steps is None
        asked = question_of(last, replace(scenario, again=True), to_code, compare=whole)
    ignore = frozenset((*check.ignore, *monitor.settings.ignored))
    asked = replace(asked, ignore=ignore, name=check.name or asked.name)
    return advice.measure_changes(monitor, asked, last)


def _last_of(monitor: Monitor, cell: Cell | None) -> Report | None:
    """The report of the last cell, if it is asked for, or ran the same code as `cell`."""
    if cell is None:
        return advice.last_report(monitor)
    last = monitor.last_report
    if last is None or last.predicted:
        return None
    ran = monitor.files.with_code(last.cell).python
    return last if ran.strip() == cell.python.strip() else None


def _help(monitor: Monitor, check: Check) -> None:
    tell(f"The options of %gpucheck and %%gpucheck:\n{OPTIONS.describe()}")


OPTIONS = OptionTable(
    (
        Option("-h/--help", "", "list the options", run=_help),
        Option(
            "--device/--gpu",
            "GPU",
            "predict for this card: T4, A100-80GB, 24GiB, cuda:1; may be repeated,\n"
            "or a list T4,L4; without it: the card in use",
            cards,
            code=True,
            offers=offer_cards,
        ),
        Option(
            "--fit",
            "NAME",
            "find the largest whole number for the variable NAME that fits",
            variable,
            code=True,
            offers=offer_whole_numbers,
        ),
        Option(
            "--headroom", "PERCENT", "with --fit: keep so much free (default 3)", percent, code=True
        ),
        Option(
            "--accumulate",
            "NAME",
            "with --fit: set NAME so that its product with the variable stays what\n"
            "it is: steps that gradients are accumulated over",
            variable,
            code=True,
            offers=offer_whole_numbers,
        ),
        Option(
            "--optimizer-steps", "N", "end loops after N steps of each optimizer", count, code=True
        ),
        Option(
            "--timeout",
            "SECONDS",
            "end a dry run that comes to nothing new for so long (default 120)",
            count,
            code=True,
        ),
        Option(
            "--worst-batch",
            "LOADER",
            "predict with the largest batch of this loader as its first one: an epoch\n"
            "is walked on the host, at most 60 s or 20,000 batches",
            variable,
            code=True,
        ),
        Option(
            "--assume",
            "LIBRARY",
            "predict as if this library, which is not installed here, were: stand-ins\n"
            f"that only have shapes; several with commas: {', '.join(ASSUMABLE)}",
            assumable,
            code=True,
            offers=lambda names: ASSUMABLE,
        ),
        Option(
            "--advise",
            "",
            "find what would save memory in this code, or without code in the last\n"
            "cell, and measure each change by a dry run",
            code=True,
            run=_advise,
        ),
        Option(
            "--ignore",
            "RULE",
            "no advice of this rule; several with commas",
            rules,
            code=True,
            offers=offer_rules,
        ),
        Option(
            "--apply",
            "N",
            "put the cell changed by advice N, of the advice shown last, into the\n"
            "notebook; it is not run",
            count,
            run=_apply,
        ),
        Option("--rules", "", "list the rules that give advice", run=_rules),
        Option(
            "-o/--output",
            "VAR",
            "store the result in the variable VAR: a report, for many cards a\n"
            "forecast with .reports, with --fit a fit with .value; of what is held\n"
            "now an inventory with .holdings, of NAME a breakdown with .parts; with\n"
            "--advise an assessment with .advice",
            variable,
            code=True,
        ),
        Option(
            "--save",
            "PATH",
            "save the result; PATH ends in .json .csv .html or .txt, for a\n"
            "prediction also .png or .svg",
            target,
            code=True,
            files=True,
        ),
        Option("--name", "NAME", "call the report NAME", code=True),
        Option(
            "--free",
            "",
            "let go of the last errors and of reference cycles, and return unused\n"
            "memory to the device; %debug cannot look at those errors any more",
            run=_free,
        ),
        Option("--outputs", "", "with --free: empty the output history as well (Out, _, _5, ...)"),
        Option(
            "--all",
            "",
            "with --free: let go of everything that is no longer needed, the output\n"
            "history and gradients included; variables stay",
        ),
        Option(
            "--watch",
            "off",
            "from now on, tell below a cell which names grew in each of its last\n"
            "runs, and the line that adds; --watch off ends it",
            switch,
            run=_watch,
            optional=True,
            offers=lambda names: ("on", "off"),
        ),
        Option(
            "--explain",
            "TEXT",
            "explain the text of an out-of-memory error, number by number; a long\n"
            "one goes below %%gpucheck --explain; without TEXT: the last error;\n"
            "with the name of a rule: what that rule says, with examples",
            code=True,
            run=_explain,
            optional=True,
            offers=offer_rules,
            text=True,
        ),
    )
)
"""Every option of %gpucheck and %%gpucheck."""

_RESULT = ("output", "save")
_COMPANIONS = MappingProxyType(
    {
        "free": ("outputs", "all", *_RESULT),
        "watch": (),
        "advise": (
            "gpu",
            "optimizer-steps",
            "timeout",
            "assume",
            "worst-batch",
            "ignore",
            "name",
            *_RESULT,
        ),
    }
)
"""The options that go with a task; with any other those of its result do."""


def read_cell(line: str, cell: str) -> Check:
    """The options after `%%gpucheck`. Raises UsageError, naming the option, if any is wrong."""
    check = _check(OPTIONS.before_code(line, "%%gpucheck"), "%%gpucheck")
    return replace(check, code=cell, mark=f"%%gpucheck {line}\n")


def read_line(line: str, namespace: Mapping[str, Any]) -> Check:
    """The options after `%gpucheck`, and names or a statement after them. Raises UsageError if any
    is wrong.

    A line of nothing but names of `namespace` and their attributes asks what these hold; any other
    code is predicted. `--advise` without code is about the last cell.
    """
    given, rest = OPTIONS.scan(line, "%gpucheck")
    OPTIONS.require_code(rest, namespace, "%gpucheck")
    check, task = _check(given, "%gpucheck"), _task(given)
    if task and task.key != "advise":
        if rest:
            raise UsageError(f"%gpucheck: --{task.key} takes no names and no code: {rest}")
        return check
    predicts = any(each.key not in _RESULT for each in given)
    names = () if predicts else names_in(rest, namespace)
    if names or not (rest or predicts):
        return replace(check, run=_hold, names=names)
    for_code(given, "%gpucheck STATEMENT")
    if not rest and not task:
        first = f"--{given[0].key}"
        raise UsageError(
            f"%gpucheck: {first} needs a statement after it, or a cell: %%gpucheck {first} ..."
        )
    return replace(check, code=rest, name=check.name or shorten(rest) or None)


def _task(given: Iterable[Given]) -> Option | None:
    """The first option that is more than a detail of another."""
    return next((each.option for each in given if each.option.run), None)


def _check(given: tuple[Given, ...], magic: str) -> Check:
    """What options ask together. Raises UsageError where they do not go together."""
    task = _task(given)
    for each in given:
        _require_company(task.key if task else "", each.key, magic)
    check = Check(task.run if task and task.run else predict, **fields_of(given))
    check = replace(check, gpu=different_cards(check.gpu))
    for key in ("headroom", "accumulate"):
        if getattr(check, key) is not None and not check.fit:
            raise UsageError(f"{magic}: --{key} goes with --fit")
    if check.advise and len(check.gpu) > 1:
        raise UsageError(f"{magic}: --advise is for one card, not {', '.join(check.gpu)}")
    return check


def _require_company(task: str, key: str, magic: str) -> None:
    if key in ("outputs", "all") and task != "free":
        raise UsageError(f"{magic}: --{key} goes with --free")
    if task and key not in (task, *_COMPANIONS.get(task, _RESULT)):
        raise UsageError(f"{magic}: --{task} and --{key} do not go together")
