"""Advice: below a report, measured by dry runs, as a change."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.document import (
    Bar,
    Change,
    Document,
    Fold,
    Folded,
    Line,
    Part,
    Piece,
    Row,
    Section,
    Span,
    Style,
    Table,
    notes,
)
from gpumem_magic.renderers.figure.palette import ALARM, ALLOCATED, SHRUNK
from gpumem_magic.units import format_bytes, format_size
from gpumem_magic.values import assessment as values
from gpumem_magic.values.advice import Advice, Cost, Kind, Known, Saves
from gpumem_magic.values.assessment import Assessment
from gpumem_magic.values.report import Report

GROWTH = "growth"
"""The rule whose evidence an out-of-memory error is told with."""

_FIRST = re.compile(r"; |(?<=\.) (?=[A-Z(])")  # where the first thing that an advice says ends
_SHORT = 200  # characters of an advice that is told in short
MOST = 3
"""Pieces of advice that are shown in full of one cell; the others are told in a line."""

KINDS = {
    Kind.MISTAKE: "a mistake: always told",
    Kind.TRADE: "has its price: told when memory is short, and by %gpucheck --advise",
    Kind.FACT: "a fact: always told",
}
_KNOWN = {
    Known.MEASURED: "measured",
    Known.EXACT: "exact",
    Known.ESTIMATED: "",  # what a change would save is not told
    None: "",
}


def saving(advice: Advice, report: Report | None = None) -> str:
    """ "saves 1.50 GiB (43 %) at the peak"; of what only a dry run could tell, the bytes that it is
    about: "1.50 GiB (43 %) at the peak"; empty where nothing is known or meant."""
    guessed = advice.known is Known.ESTIMATED
    size = advice.size if guessed else advice.saving
    if size is None:
        return ""
    if not size:
        return f"saves nothing {advice.saves.value}"
    whole = advice.before if advice.before is not None else _whole(report, advice.saves)
    share = wording.format_share(abs(size), whole)
    told = f"{format_bytes(abs(size))}{f' ({share})' if share else ''}"
    verb = "" if guessed else "saves " if size > 0 else "costs "
    return f"{verb}{told} {advice.saves.value}"


def how_known(advice: Advice) -> str:
    """How the saving is known; empty where there is none."""
    known = _KNOWN[advice.known] if saving(advice) else ""
    if advice.estimate is None:
        return known
    return f"{known}; {format_bytes(advice.estimate)} estimated when it ran"


def _whole(report: Report | None, saves: Saves) -> int | None:
    if report is None:
        return None
    if saves is Saves.AFTER:
        return report.after.allocated
    return report.peak.reserved if saves is Saves.RESERVED else report.peak.allocated


def what_to_do(advice: Advice) -> str:
    """The change in words, and what it costs."""
    kind = "" if advice.cost is Cost.NOTHING else f" ({advice.cost.value})"
    price = f" Price{kind}: {advice.price.rstrip('.')}." if advice.price else ""
    return wording.visible(f"{advice.change}{price}".strip())


def offered(advice: Sequence[Advice], together: Advice | None = None) -> tuple[Advice, ...]:
    """The advice in the order of its numbers, which count from 1."""
    return (*advice, *([together] if together else []))


def hidden(advice: Sequence[Advice]) -> tuple[Piece, ...]:
    """What is not shown in full, in a line each; nothing where all is."""
    told = [_in_a_line(number, one) for number, one in enumerate(advice, 1)][MOST:]
    lines = tuple(Line(text, Style.FAINT, 1) for text in told)
    return (Fold(f"{len(told)} more", lines),) if told else ()


def _in_a_line(number: int, advice: Advice) -> str:
    facts = ", ".join(filter(None, (saving(advice), how_known(advice))))
    head = f"{number}  {wording.visible(advice.rule)}{f': {facts}' if facts else ''}"
    return f"{head}. {wording.visible(advice.change)}"[:_SHORT]


def way_on(advice: Sequence[Advice]) -> str:
    """What to type next, below the advice of a report."""
    changed = [number for number, one in enumerate(offered(advice), 1) if one.source is not None]
    if not changed:
        name = wording.visible(advice[0].rule)
        if not any(one.known is Known.ESTIMATED for one in advice):
            return f"%gpucheck --explain {name} tells more."
        return (
            "%gpucheck --advise writes out what can be changed, and measures it; "
            f"--explain {name} tells more."
        )
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
    told = f"{runs} from {_beginning(assessment)}, {wording.format_seconds(assessment.seconds)}"
    left = assessment.unmeasured
    return f"{told}; stopped: {left} more change{'s' * (left > 1)} not measured" if left else told


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
            f"{wording.visible(report.error)[:300].rstrip('.')}.{first}"
        )
    fits = f"; {fit(assessment.fits)} the card" if assessment.fits is not None else ""
    return f"As it is: {wording.peak_phrase(report)}{fits}{_other_than_it_ran(assessment)}"


def _other_than_it_ran(assessment: Assessment) -> str:
    if assessment.ran is None:
        return ""
    return (
        f". When it ran, the peak was {format_bytes(assessment.ran)}: names or memory are not what "
        "they were then, so what its report estimated stands beside what was measured"
    )


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


def measured(advice: Advice, as_is: bool | None = None) -> str:
    """ "saves 1.50 GiB (43 %) at the peak; the cell then fits". as_is: whether it fits without."""
    then = "" if advice.fits and as_is else fit(advice.fits)
    told = "; the cell then ".join(filter(None, (saving(advice), then)))
    return told if advice.estimate is None else f"{told}; {how_known(advice)}"


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


def advice_pieces(report: Report) -> tuple[Piece, ...]:
    """The section of a report; nothing where there is no advice."""
    if not report.advice:
        return ()
    shown = _each_once(report, report.advice[:MOST])
    rows = tuple(_offer(report, number, advice) for number, advice in enumerate(shown, 1))
    remarks = _remarks(way_on(report.advice))
    return (Table("Advice", ("",), rows), *hidden(report.advice), *remarks)


def _each_once(report: Report, advice: Iterable[Advice]) -> Iterator[Advice]:
    """Without what was told already: evidence, with other advice or with the error; a change."""
    told = {one.problem for one in report.advice if one.rule == GROWTH and report.oom}
    changes: dict[str, int] = {}
    for number, one in enumerate(advice, 1):
        first = changes.setdefault(what_to_do(one), number)
        change = one if first == number else replace(one, change=f"As {first}.", price="")
        yield replace(change, problem="") if one.problem in told else change
        told.add(one.problem)


def first_advice(report: Report) -> tuple[Line, ...]:
    """The first advice in short: what it saves, what to do."""
    if not report.advice:
        return ()
    first = report.advice[0]
    told = report.oom and first.rule == GROWTH  # its bytes, in the box of the error
    facts = "" if told else ", ".join(filter(None, (saving(first, report), how_known(first))))
    name = Span(f"Advice: {first.rule}", Style.STRONG)
    return (Line((name, f": {facts}. " if facts else ": ", f"{in_short(first)}.")),)


def in_short(advice: Advice) -> str:
    """The first thing that an advice says to do."""
    said = _FIRST.split(wording.visible(advice.change or advice.problem), maxsplit=1)[0]
    return said[:_SHORT].rstrip(".")


def _offer(report: Report, number: int, advice: Advice) -> Row:
    facts = ", ".join(filter(None, (saving(advice, report), how_known(advice))))
    name = Span(f"{number}  {advice.rule}", Style.STRONG)
    return Row(((name, f": {facts}" if facts else ""),), _told(report, advice))


def _told(report: Report, advice: Advice) -> tuple[Piece, ...]:
    """The problem, what to do, the changed code."""
    said = [Line(text) for text in (advice.problem, what_to_do(advice)) if text]
    if advice.source is None:
        return tuple(said)
    return (*said, Fold("the changed code", (difference(report.cell.source, advice.source),)))


def difference(before: str, after: str, whole: bool = False) -> Change:
    """The changed lines, with a line around them that stays."""
    found: list[tuple[str, str]] = []
    rows = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    for row in list(rows)[2:]:
        if not row.startswith("@@"):
            found.append((row[0], row[1:]))
        elif found:
            found.append(("", "\N{HORIZONTAL ELLIPSIS}"))
    return Change(tuple(found), whole)


def assessment_document(assessment: Assessment) -> Document:
    """What each change saves."""
    title = Span(wording.title(assessment.report), Style.STRONG)
    how = (f"advice for {card(assessment)}", made_by(assessment))
    rest = (
        Section((*_table(assessment), *hidden(assessment.advice))),
        Section(_useless(assessment)),
        Section(notes(failures(assessment))),
    )
    told = "Details \u00b7 why, the price, the changed code"
    return (
        Section((Line((title, f" \u00b7 {as_it_is(assessment)}")), *_remarks(*how))),
        Section(_table(assessment, brief=True), brief=True),
        *((Folded(told, rest),) if any(one.pieces for one in rest) else ()),
        Section(_remarks(nothing_found(assessment), apply_line(assessment))),
    )


def _table(assessment: Assessment, brief: bool = False) -> tuple[Piece, ...]:
    """What each change saves; brief: whether the cell then fits, and what to do in a line."""
    rows = tuple(_measured(assessment, *one, brief) for one in _shown(assessment))
    head = ("change", "before", "after", "saves")
    return (Table("What each change saves", head, rows),) if rows else ()


def _shown(assessment: Assessment) -> list[tuple[int, Advice]]:
    """The advice that is shown in full, each with its number."""
    shown = [*enumerate(_each_once(assessment.report, assessment.advice[:MOST]), 1)]
    together = assessment.together
    return [*shown, (len(assessment.advice) + 1, together)] if together else shown


def _measured(assessment: Assessment, number: int, advice: Advice, brief: bool = False) -> Row:
    known = advice.before is not None
    sizes = (format_size(size) if known else "" for size in (advice.before, advice.after))
    sure = advice.saving if advice.known is not Known.ESTIMATED else None
    saved = Span(format_size(sure) if sure else "", Style.STRONG)
    name = Span(f"{number}  {advice.rule}", Style.STRONG)
    if brief:
        then = "" if assessment.fits else fit(advice.fits)
        fits = Span(
            f"{'then' if advice.fits else 'still'} {then}", colour=SHRUNK if advice.fits else ALARM
        )
        names = (name, " \u00b7 ", fits) if then else name
        change = Line(wording.visible(advice.change or advice.problem), low=True)
        return Row((names, *sizes, saved), (*_bar(advice), change))
    report = assessment.report
    same = report.error is None and assessment.ran is None  # else shares would be of another peak
    facts = measured(advice, assessment.fits) if known else saving(advice, report if same else None)
    facts = ", ".join(filter(None, (facts, how_known(advice) if not known else "")))
    lines = (Line(facts, Style.FAINT),) if facts else ()
    below = (*_bar(advice), *lines, *_told(assessment.report, advice))
    return Row((name, *sizes, saved), below)


def _bar(advice: Advice) -> tuple[Bar, ...]:
    """What stays, and what goes."""
    if advice.before is None:
        return ()
    before, after = advice.before, advice.after or 0
    gone = Part("saved", before - after, ALARM)
    return (Bar((Part("after", min(before, after), ALLOCATED), gone), before, thin=True),)


def _useless(assessment: Assessment) -> tuple[Piece, ...]:
    if not assessment.useless:
        return ()
    title = "Popular tips that do not help here, measured as well"
    tips = (Line(unhelpful(advice), Style.FAINT, 1) for advice in assessment.useless)
    return (Line(title, Style.HEADING), *tips)


def change_document(change: values.Change) -> Document:
    """A change with all its lines."""
    shown = difference(change.source, change.advice.source or "", whole=True)
    return (Section((Line(applied(change.number, change.advice)),)), Section((shown,)))


def _remarks(*texts: str) -> tuple[Line, ...]:
    return tuple(Line(text, Style.FAINT) for text in texts if text)
