"""Several predictions in one table: of one cell on many cards, or with many values of a name."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem_magic.renderers import pieces, predicted, verdict, wording
from gpumem_magic.renderers.columns import WIDTH, fit, left, right, wrap
from gpumem_magic.renderers.markup import EMPTY, ROOT, Markup, element, join, row, table
from gpumem_magic.renderers.text import notes_rows
from gpumem_magic.renderers.verdict import Entry
from gpumem_magic.report import Report
from gpumem_magic.units import format_bytes

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
    composition = verdict.composition(report)
    return rows + (wrap(f"    {composition}", "      ") if composition else [])


def below_text(reports: Sequence[Report]) -> list[str]:
    """The notes of all reports, and where to find what the dry run printed."""
    rows = notes_rows(_notes(reports))
    if printed := [report for report in reports if report.output]:
        rows.append(f"{verdict.output_phrase(printed[0])}: in .output of the reports")
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
        element("div", verdict.composition(report), style="opacity:0.75;font-size:0.92em"),
        pieces.stack(held) if held else EMPTY,
    )
    line = verdict.failing_line(report)
    cells = (*map(format_bytes, sizes), wording.line_label(line) if line else "")
    return row(name, element("strong", verdict.word(report)), *cells)


def below_html(reports: Sequence[Report]) -> Markup:
    """The notes of all reports, and what the dry run of the first printed, folded."""
    printed = [report for report in reports if report.output][:1]
    return join(*map(pieces.small, _notes(reports)), *map(predicted.output, printed))


def _notes(reports: Sequence[Report]) -> tuple[str, ...]:
    guessed = any(report.flow_guessed for report in reports)
    return (*((verdict.GUESSED,) if guessed else ()), *verdict.notes_of(reports))


def _reason(report: Report) -> str:
    """Why the verdict is what it is, with the source of the line where the cell fails."""
    if verdict.fits(report) is None:
        return verdict.verdict(report)
    source = wording.source_of(report, verdict.failing_line(report))
    return f"{verdict.by_how_much(report)}{f': {source}' if source else ''}"


def _verdict(report: Report) -> str:
    """The verdict, with the source of the line where the cell fails."""
    source = wording.source_of(report, verdict.failing_line(report))
    return f"{verdict.verdict(report)}{f': {source}' if source and report.oom else ''}"


def _by_card(reports: Sequence[Report]) -> tuple[Entry, ...]:
    return tuple(Entry(wording.visible(report.device.name), report) for report in reports)


def _cards(reports: Sequence[Report]) -> str:
    return f"{len(reports)} cards" if len(reports) > 1 else wording.visible(reports[0].device.name)
