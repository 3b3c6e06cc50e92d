"""A cell on several cards, and the largest value of a variable that fits: as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpumem_magic.renderers import markup, predicted, wording
from gpumem_magic.renderers.columns import WIDTH, fit, left, right, wrap
from gpumem_magic.renderers.formats.json import all_to_dict
from gpumem_magic.renderers.markup import EMPTY, ROOT, Markup, element, join, row, table
from gpumem_magic.renderers.text import notes_rows
from gpumem_magic.renderers.wording import Entry
from gpumem_magic.units import format_bytes
from gpumem_magic.values.forecast import Fit
from gpumem_magic.values.report import Report

_HEAD = ("card", "fits", "allocated", "reserved", "device use", "fails in")


def cards_text(reports: Sequence[Report]) -> str:
    """One cell on many cards, for a terminal of 80 columns."""
    if not reports:
        return "Nothing was predicted."
    head = f"{wording.title(reports[0])} · predicted for {_cards(reports)}"
    rows = [fit(head, WIDTH), "", *entries_text("card", _by_card(reports))]
    return "\n".join(rows + below_text(reports))


def cards_html(reports: Sequence[Report]) -> str:
    """One cell on many cards, as one <div> with inline styles."""
    if not reports:
        return element("div", "Nothing was predicted.", style=ROOT)
    name = element("strong", wording.title(reports[0]))
    caption = f"At the peak, on {_cards(reports)}"
    return element(
        "div",
        element("div", name, style="font-size:1.1em"),
        element("div", f"predicted for {_cards(reports)}", style="opacity:0.75"),
        entries_html(caption, "card", _by_card(reports)),
        below_html(reports),
        style=ROOT,
    )


def entries_text(head: str, entries: Sequence[Entry]) -> list[str]:
    """A heading, and for each prediction its peak, the verdict and what memory was made of."""
    sizes = "".join(right(name, 13) for name in ("allocated", "reserved", "device use"))
    rows = [f"{left(head, 24)}{sizes}"]
    for entry in entries:
        rows += _entry_text(entry)
    return rows


def _entry_text(entry: Entry) -> list[str]:
    report, peak = entry.report, entry.report.peak
    sizes = (peak.allocated, peak.reserved, wording.full(report, peak))
    numbers = "".join(right(format_bytes(size), 13) for size in sizes)
    rows = [f"{left(wording.visible(entry.label), 24)}{numbers}"]
    rows += wrap(f"    {_verdict(report)}", "      ")
    composition = wording.composition(report)
    return rows + (wrap(f"    {composition}", "      ") if composition else [])


def below_text(reports: Sequence[Report]) -> list[str]:
    """The notes of all reports, and where to find what the dry run printed."""
    rows = notes_rows(_notes(reports))
    if printed := [report for report in reports if report.output]:
        rows.append(f"{wording.output_phrase(printed[0])}: in .output of the reports")
    return ["", *rows] if rows else []


def entries_html(caption: str, head: str, entries: Sequence[Entry]) -> Markup:
    """The same as a table."""
    return table(caption, (head, *_HEAD[1:]), [_entry_html(entry) for entry in entries])


def _entry_html(entry: Entry) -> Markup:
    report, peak = entry.report, entry.report.peak
    sizes = (peak.allocated, peak.reserved, wording.full(report, peak))
    held = report.oom.held if report.oom and report.oom.held else report.at_peak
    name = join(
        element("strong", entry.label),
        element("div", _reason(report)),
        element("div", wording.composition(report), style="opacity:0.75;font-size:0.92em"),
        markup.stack(held) if held else EMPTY,
    )
    line = wording.failing_line(report)
    cells = (*map(format_bytes, sizes), wording.line_label(line) if line else "")
    return row(name, element("strong", wording.word(report)), *cells)


def below_html(reports: Sequence[Report]) -> Markup:
    """The notes of all reports, and what the dry run of the first printed, folded."""
    printed = [report for report in reports if report.output][:1]
    return join(*map(markup.small, _notes(reports)), *map(predicted.output, printed))


def _notes(reports: Sequence[Report]) -> tuple[str, ...]:
    guessed = any(report.flow_guessed for report in reports)
    return (*((wording.GUESSED,) if guessed else ()), *wording.notes_of(reports))


def _reason(report: Report) -> str:
    """Why the verdict is what it is, with the source of the line where the cell fails."""
    if wording.fits(report) is None:
        return wording.verdict(report)
    source = wording.source_of(report, wording.failing_line(report))
    return f"{wording.by_how_much(report)}{f': {source}' if source else ''}"


def _verdict(report: Report) -> str:
    """The verdict, with the source of the line where the cell fails."""
    source = wording.source_of(report, wording.failing_line(report))
    return f"{wording.verdict(report)}{f': {source}' if source and report.oom else ''}"


def _by_card(reports: Sequence[Report]) -> tuple[Entry, ...]:
    return tuple(Entry(wording.visible(report.device.name), report) for report in reports)


def _cards(reports: Sequence[Report]) -> str:
    return f"{len(reports)} cards" if len(reports) > 1 else wording.visible(reports[0].device.name)


def largest_text(found: Sequence[Fit]) -> str:
    """What was found on each card, for a terminal of 80 columns."""
    rows = [fit(headline(one), WIDTH) for one in found]
    for one in found:
        name = wording.visible(one.name)
        rows += ["", *([_card(one)] if len(found) > 1 else [])]
        rows += [*entries_text(name, _entries(one)), *_remarks(one)]
    return "\n".join([*rows, *below_text([r for one in found for r in reports_of(one)])])


def largest_html(found: Sequence[Fit]) -> str:
    """The same as one <div> with inline styles."""
    large = "font-size:1.3em;font-weight:600"
    return element(
        "div",
        *(element("div", headline(one), style=large) for one in found),
        *(_table(one) for one in found),
        below_html([report for one in found for report in reports_of(one)]),
        style=ROOT,
    )


def _table(one: Fit) -> Markup:
    caption = f"At the peak, on {_card(one)}"
    remarks = [markup.small(text) for text in (_effort(one), *one.notes)]
    return element("div", entries_html(caption, one.name, _entries(one)), *remarks)


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


def _entries(one: Fit) -> tuple[Entry, ...]:
    return tuple(Entry(_value(one, report), report) for report in reports_of(one))


def _value(one: Fit, report: Report) -> str:
    """What the variable was in a report: "97" of the report "batch_size = 97"."""
    return wording.title(report).removeprefix(f"{wording.visible(one.name)} = ")


def _remarks(one: Fit) -> list[str]:
    return [f"{_effort(one)}", *notes_rows(one.notes)]


def _effort(one: Fit) -> str:
    return f"{one.runs} dry run{'' if one.runs == 1 else 's'}"


def _card(one: Fit) -> str:
    device = next((report.device for report in reports_of(one)), None)
    if device is None:
        return "the card"
    return f"{wording.visible(device.name)} ({format_bytes(device.total)})"
