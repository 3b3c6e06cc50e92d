"""The sentences about advice that text and HTML share, and a change as lines with their signs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from gpumem_magic.renderers import wording
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Kind, Known, Saves
from gpumem_magic.values.assessment import Assessment
from gpumem_magic.values.report import Report

MOST = 5
"""Pieces of advice that are shown of one cell."""

KINDS = {
    Kind.MISTAKE: "a mistake: always told",
    Kind.TRADE: "has its price: told when memory is short, and by %gpucheck --advise",
    Kind.FACT: "a fact: always told, changes no cell",
}
_KNOWN = {
    Known.MEASURED: "measured",
    Known.EXACT: "exact",
    Known.ESTIMATED: "estimated",
    None: "",
}


@dataclass(frozen=True, slots=True)
class Changed:
    """A line of a change: sign "-", "+", " ", or "" for lines that are left out."""

    sign: str
    text: str


def difference(before: str, after: str) -> tuple[Changed, ...]:
    """The changed lines, with a line around them that stays."""
    found: list[Changed] = []
    rows = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    for row in list(rows)[2:]:
        if not row.startswith("@@"):
            found.append(Changed(row[0], row[1:]))
        elif found:
            found.append(Changed("", "…"))
    return tuple(found)


def saving(advice: Advice, report: Report | None = None) -> str:
    """ "saves 1.50 GiB (43 %) at the peak"; empty where no saving is known or meant."""
    size = advice.saving
    if size is None:
        return ""
    if not size:
        return f"saves nothing {advice.saves.value}"
    whole = advice.before if advice.before is not None else _whole(report, advice.saves)
    share = wording.format_share(abs(size), whole)
    told = f"{format_bytes(abs(size))}{f' ({share})' if share else ''}"
    return f"{'saves' if size > 0 else 'costs'} {told} {advice.saves.value}"


def how_known(advice: Advice) -> str:
    """How the saving is known; empty where there is none."""
    return _KNOWN[advice.known] if advice.saving is not None else ""


def _whole(report: Report | None, saves: Saves) -> int | None:
    if report is None:
        return None
    if saves is Saves.AFTER:
        return report.after.allocated
    return report.peak.reserved if saves is Saves.RESERVED else report.peak.allocated


def what_to_do(advice: Advice) -> str:
    """The change in words, and what it costs."""
    price = f" Price: {advice.price.rstrip('.')}." if advice.price else ""
    return wording.visible(f"{advice.change}{price}".strip())


def offered(advice: Sequence[Advice], together: Advice | None = None) -> tuple[Advice, ...]:
    """The advice that is shown, in the order of its numbers, which count from 1."""
    return (*advice[:MOST], *([together] if together else []))


def hidden(advice: Sequence[Advice]) -> str:
    """How many pieces of advice are not shown; empty for none."""
    more = len(advice) - MOST
    return f"... and {more} more that save less: see .advice" if more > 0 else ""


def way_on(advice: Sequence[Advice]) -> str:
    """What to type next, below the advice of a report."""
    changed = [number for number, one in enumerate(advice[:MOST], 1) if one.source is not None]
    if not changed:
        return f"%gpucheck --explain {wording.visible(advice[0].rule)} tells more."
    return (
        f"%gpucheck --advise measures them; --apply {changed[0]} puts the changed cell into the "
        "notebook; --explain RULE tells more."
    )


def card(assessment: Assessment) -> str:
    """ "Tesla T4 (14.62 GiB for PyTorch)"."""
    name = wording.visible(assessment.report.device.name)
    return f"{name} ({format_bytes(assessment.limit)} for PyTorch)"


def made_by(assessment: Assessment) -> str:
    """How many dry runs, how long."""
    runs = "1 dry run" if assessment.runs == 1 else f"{assessment.runs} dry runs"
    return f"{runs} from {_beginning(assessment)}, {wording.format_seconds(assessment.seconds)}"


def _beginning(assessment: Assessment) -> str:
    return "where the cell began" if assessment.again else "what is alive now"


def as_it_is(assessment: Assessment) -> str:
    """What the cell takes without a change, or why that could not be told."""
    report = assessment.report
    if report.error is not None:
        line = f" in line {report.error_line}" if report.error_line else ""
        first = " Run what makes it first." if report.error.startswith("NameError") else ""
        return (
            f"Nothing was measured: run from {_beginning(assessment)}, the cell ends{line} with "
            f"{wording.visible(report.error)[:300]}.{first}"
        )
    fits = f"; {fit(assessment.fits)} the card" if assessment.fits is not None else ""
    return f"As it is: {wording.peak_phrase(report)}{fits}"


def fit(fits: bool | None) -> str:
    """ "fits", "does not fit"; empty where it is not known."""
    return {True: "fits", False: "does not fit", None: ""}[fits]


def nothing_found(assessment: Assessment) -> str:
    """Where there is no advice; else empty."""
    if assessment.advice or assessment.report.error:
        return ""
    return "No change that the rules know would save memory here."


def unhelpful(advice: Advice) -> str:
    """Why a tip that is popular is none here."""
    said = saving(advice) if (advice.saving or 0) <= 0 else f"saves only {saving(advice)[6:]}"
    return f"{wording.visible(advice.rule)}: {said}. It would be: {wording.visible(advice.change)}"


def failures(assessment: Assessment) -> tuple[str, ...]:
    """Changes that are no advice since the changed cell does not run."""
    return tuple(
        wording.visible(f"{rule} is no advice here: the changed cell raised {error[:200]}")
        for rule, error in assessment.failed
    )


def measured(advice: Advice) -> str:
    """ "saves 1.50 GiB (43 %) at the peak; the cell then fits"."""
    return "; the cell then ".join(filter(None, (saving(advice), fit(advice.fits))))


def apply_line(assessment: Assessment) -> str:
    """What to type next, below an assessment; empty where nothing can be applied."""
    shown = offered(assessment.advice, assessment.together)
    numbers = [number for number, one in enumerate(shown, 1) if one.source is not None]
    if not numbers:
        return ""
    best = numbers[-1] if assessment.together else numbers[0]
    return f"%gpucheck --apply {best} puts the cell changed by {best} into the notebook."


def applied(number: int, advice: Advice) -> str:
    """What became of a change."""
    return (
        f"{number} {wording.visible(advice.rule)}: the changed cell is the next input. It was not "
        "run; the cell it comes from is as it was."
    )
