"""The reports of a history as a list, one line each; and two of them side by side."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.document import Document, Line, Row, Section, Span, Style, Table, Words
from gpumem_magic.renderers.figure.palette import GROWN, SHRUNK
from gpumem_magic.units import format_bytes, format_change
from gpumem_magic.values.comparison import Comparison, Difference, LineDifference
from gpumem_magic.values.report import Report

_HEAD = ("report", "peak", "kept or freed", "time")


def history_document(reports: Sequence[Report]) -> Document:
    """A row for each report."""
    if not reports:
        return (Section((Line("The history is empty."),)),)
    rows = tuple(_listed(number, report) for number, report in enumerate(reports, 1))
    return (Section((Table("Measured so far", _HEAD, rows),)),)


def _listed(number: int, report: Report) -> Row:
    """The numbers, and what tells reports apart: name, device, whether the cell failed."""
    state = "out of memory, " if report.oom else ""
    device = Span(f" ({state}{wording.device_phrase(report)})", Style.FAINT)
    return Row(
        (
            (f"{number}  {wording.title(report)}", device),
            format_bytes(report.peak.allocated),
            wording.kept_phrase(report),
            wording.format_seconds(report.seconds),
        )
    )


def comparison_document(comparison: Comparison) -> Document:
    """What became of the peak, of every level, line and kind."""
    first, second = _names(comparison)
    title = Line(Span(f"{first}  ->  {second}", Style.STRONG))
    levels = [_row(each.name, each) for each in comparison.levels]
    lines = [_row(_line(pair), pair.allocated) for pair in comparison.lines]
    kinds = [_row(each.name, each) for each in comparison.categories]
    return (
        Section((title, Line(_verdict(comparison), Style.LARGE))),
        _table(comparison, "On the card", "", levels),
        _table(comparison, "Allocated by line", "line", lines),
        _table(comparison, "By kind, at the peak", "kind", kinds),
    )


def _table(comparison: Comparison, caption: str, name: str, rows: Sequence[Row]) -> Section:
    head = (name, *(f"report {number}" for number in comparison.numbers), "change")
    return Section((Table(caption, head, tuple(rows)),) if rows else ())


def _names(comparison: Comparison) -> tuple[str, str]:
    reports = zip(comparison.numbers, (comparison.first, comparison.second), strict=True)
    first, second = (f"{number} {wording.title(report)}" for number, report in reports)
    return first, second


def _verdict(comparison: Comparison) -> str:
    """What became of the peak, in one sentence."""
    peak = comparison.levels[0]
    change = peak.change
    if change is None:
        return "whether the peak changed is unknown"
    if not change:
        return f"same peak: {format_bytes(peak.second)}"
    share = wording.format_share(abs(change), peak.first) if change < 2 * (peak.first or 0) else ""
    size = format_bytes(abs(change)) + (f" ({share})" if share else "")
    return f"the peak is {size} {'higher' if change > 0 else 'lower'}"


def _line(pair: LineDifference) -> Words:
    return (Span(f"{_place(pair)}  ", Style.FAINT), Span(pair.source, Style.CODE))


def _place(pair: LineDifference) -> str:
    """Where the line stands in each cell: "3", "3 -> 5", "new" or "gone"."""
    if pair.first is None or pair.second is None:
        return "gone" if pair.second is None else "new"
    a, b = pair.first.number or "-", pair.second.number or "-"
    return str(b) if a == b else f"{a} -> {b}"


def _row(name: Words, difference: Difference) -> Row:
    change = difference.change
    # Only the patch is coloured: no one green or orange can be read as text on white and on black.
    colour = "" if not change else GROWN if change > 0 else SHRUNK
    told = Span(format_change(change), Style.STRONG, colour)
    return Row((name, format_bytes(difference.first), format_bytes(difference.second), told))
