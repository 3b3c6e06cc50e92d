"""A cell on several cards, and the largest value of a variable that fits each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.document import (
    Bar,
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
from gpumem_magic.renderers.figure.palette import ALARM, OUTSIDE, SHRUNK
from gpumem_magic.renderers.formats.json import all_to_dict
from gpumem_magic.renderers.out_of_memory import composition, made_of, short_title
from gpumem_magic.renderers.report import output
from gpumem_magic.units import format_bytes, format_size
from gpumem_magic.values.forecast import Fit
from gpumem_magic.values.report import Report

_MUCH = 4  # one part of so many of the peak
_SIZES = ("allocated", "reserved", "device used")
_NOTES = 1  # that are shown; the others are folded


def cards_document(reports: Sequence[Report]) -> Document:
    """One cell on many cards."""
    if not reports:
        return (Section((Line("Nothing was predicted."),)),)
    title = Span(short_title(reports[0]), Style.STRONG)
    failing = [wording.failing_line(report) for report in reports]
    rows = tuple(
        _row(report.device.name, report, line not in failing[:place])
        for place, (report, line) in enumerate(zip(reports, failing, strict=True))
    )
    table = Table("At the peak", ("card", *_SIZES), rows)
    head = Line((title, " \u00b7 ", Span(_in_all(reports), Style.STRONG)))
    kinds = _by_kind(reports, [report.device.name for report in reports])
    return (Section((head,)), Section((table, *kinds)), Section(_below(reports)))


def _row(label: str, report: Report, new: bool = True) -> Row:
    """A prediction: its peak, the verdict, what memory was made of as a bar. new: whether the line
    that fails does not stand above it already."""
    peak = report.peak
    sizes = (peak.allocated, peak.reserved, peak.in_use)
    _, held = wording.held_then(report)
    source = wording.source_of(report, wording.failing_line(report)) if report.oom and new else ""
    colour = {True: SHRUNK, False: ALARM, None: ""}[wording.fits(report)]
    colour = ALARM if report.is_tight else colour
    said = wording.verdict(report, used=False)
    below = [Line(Span(f"{said}{':' if source else ''}", Style.STRONG, colour))]
    if source:
        below.append(Line(Span(source, Style.EXCERPT), indent=1))
    if eager := wording.as_written(report):
        below.append(Line(eager))
    bar = (_on_the_card(report, composition(held)),) if held else ()
    name = Span(label, Style.STRONG)
    return Row((name, *map(format_size, sizes)), (*below, *bar))


def _by_kind(reports: Sequence[Report], labels: Sequence[str]) -> tuple[Fold, ...]:
    """What memory was made of, of reports that follow each other the same only once."""
    lines: list[Line] = []
    last = None
    for report, label in zip(reports, labels, strict=True):
        moment, held = wording.held_then(report)
        if held and (moment, held) != last:
            words = (f"{wording.visible(label)}, {moment}: ", *made_of(held))
            lines.append(Line(words, Style.FAINT, 2))
        last = moment, held
    return (Fold("By kind", tuple(lines)),) if lines else ()


def _on_the_card(report: Report, made: Bar) -> Bar:
    """What memory was made of, and what else was in use, at the scale of the card."""
    beside = max((report.peak.in_use or 0) - made.whole, 0)
    parts = (*made.parts, Part("cached, context and other processes", beside, OUTSIDE))
    return Bar(parts, report.device.total or made.whole + beside, thin=True)


def _below(reports: Sequence[Report]) -> tuple[Piece, ...]:
    """The notes of all reports, and what the dry run of the first printed."""
    guessed = (wording.GUESSED,) if any(report.flow_guessed for report in reports) else ()
    found = tuple(map(_found, reports[:1]))
    printed = [output(report) for report in reports if report.output][:1]
    said = (*guessed, *filter(None, found), *wording.notes_of(reports))
    more = wording.counted(len(said) - _NOTES, "more note")
    return (
        *notes(said[:_NOTES]),
        *((Fold(more, notes(said[_NOTES:])),) if len(said) > _NOTES else ()),
        *(p for one in printed for p in one),
    )


def _found(report: Report) -> str:
    """What the notebook held before the cell, where that is much of the peak."""
    before, peak = report.before.allocated, report.peak.allocated
    if not before or not peak or before * _MUCH < peak:
        return ""
    held = f"{format_bytes(before)} of the peak was allocated before the cell"
    return f"{held}; %gpucheck shows what holds it"


def _in_all(reports: Sequence[Report]) -> str:
    """On how many cards the cell fits, where all predictions came to an end."""
    cards = f"{len(reports)} cards" if len(reports) > 1 else reports[0].device.name
    if len(reports) < 2 or any(wording.fits(report) is None for report in reports):
        return f"predicted for {wording.visible(cards)}"
    fitting = sum(1 for one in reports if wording.fits(one) and not one.is_tight)
    said = {0: "none", len(reports): "all"}.get(fitting, str(fitting))
    probably = "probably " if any(report.flow_guessed for report in reports) else ""
    return f"predicted: {probably}fits {said} of {cards}"


def largest_document(found: Sequence[Fit]) -> Document:
    """What was found on each card, and the predictions on both sides of it."""
    reports = [report for one in found for report in reports_of(one)]
    first = (note for one in found[:1] for note in one.notes if len(found) > 1)
    alike = tuple(note for note in first if all(note in one.notes for one in found))
    tables = tuple(Section(_table(one, alike)) for one in found)
    below = Section((*notes(alike, low=True), *_below(reports)))
    if len(found) < 2:
        return (*tables, below)
    each = "Details \u00b7 what one more would take \u00b7 kinds \u00b7 dry runs"
    return (Section(_in_short(found), brief=True), Folded(each, tables), below)


def _in_short(found: Sequence[Fit]) -> tuple[Piece, ...]:
    """What fits each card, a row each; under what that is so."""
    shown = [next(iter(reports_of(one)), None) for one in found]
    lines = [report and wording.failing_line(report) for report in shown]
    rows = tuple(
        _largest(one, report, lines[place] not in lines[:place])
        for place, (one, report) in enumerate(zip(found, shown, strict=True))
    )
    name = wording.visible(found[0].name)
    table = Table(f"The largest {name} that fits", ("card", name, *_SIZES), rows)
    return (table,)


def _largest(one: Fit, report: Report | None, new: bool) -> Row:
    """A card with the largest value that fits it; what happens with 1 where none does."""
    value = str(one.value) if one.exact else f"at least {one.value}"
    value = value if one.value else "none"
    if report is None:
        return Row(("the card", value, "", "", ""))
    row = _row(report.device.name, report, new)
    return replace(row, cells=(row.cells[0], Span(value, Style.STRONG), *row.cells[1:]))


def _table(one: Fit, told: Sequence[str]) -> tuple[Piece, ...]:
    """What fits a card and what does not; its notes but those that are `told` of all."""
    rows = tuple(_row(wording.title(report), report) for report in reports_of(one))
    effort = f"{one.runs} dry run{'' if one.runs == 1 else 's'}"
    table = Table("At the peak", (one.name, *_SIZES), rows)
    kinds = _by_kind(reports_of(one), [wording.title(report) for report in reports_of(one)])
    said = Line(headline(one), Style.LARGE)
    own = [note for note in one.notes if note not in told]
    return (said, table, *kinds, Line(effort, Style.FAINT), *notes(own))


def headline(one: Fit) -> str:
    """ "The largest batch_size that fits a Tesla T4 (14.74 GiB) is 96"."""
    name, card = wording.visible(one.name), _card(one)
    if not one.value:
        return f"No {name} fits: 1 is too large for {card}"
    if not one.exact:
        return f"The largest {name} found to fit {card} is {one.value}"
    probably = "probably " if any(report.flow_guessed for report in reports_of(one)) else ""
    return f"The largest {name} that {probably}fits {card} is {one.value}"


def reports_of(one: Fit) -> tuple[Report, ...]:
    """The predictions at the value and above it, as far as there are."""
    return tuple(report for report in (one.report, one.next_report) if report)


def facts(one: Fit) -> dict[str, Any]:
    """What was found, without its reports, as plain values."""
    reports = reports_of(one)
    return {
        "device": reports[0].device.name if reports else None,
        "name": one.name,
        "value": one.value,
        "exact": one.exact,
        "runs": one.runs,
        "notes": list(one.notes),
    }


def largest_to_dict(found: Sequence[Fit]) -> dict[str, Any]:
    """All of it as plain values, with a format number; the reports stand one after the other."""
    reports = [report for one in found for report in reports_of(one)]
    return {**all_to_dict(reports), "fits": [facts(one) for one in found]}


def _card(one: Fit) -> str:
    device = next((report.device for report in reports_of(one)), None)
    if device is None:
        return "the card"
    return f"{wording.visible(device.name)} ({format_bytes(device.total)})"
