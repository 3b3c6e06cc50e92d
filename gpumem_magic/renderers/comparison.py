"""Two reports side by side."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.document import Document, Line, Row, Section, Span, Style, Table, Words
from gpumem_magic.renderers.figure.palette import GROWN, SHRUNK
from gpumem_magic.units import format_bytes, format_change
from gpumem_magic.values.comparison import Comparison, Difference, LineDifference


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
