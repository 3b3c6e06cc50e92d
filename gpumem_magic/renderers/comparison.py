"""A comparison as text and as HTML."""

from __future__ import annotations

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.columns import WIDTH, fit, left, right
from gpumem_magic.renderers.figure.palette import GROWN, SHRUNK
from gpumem_magic.renderers.markup import ROOT, Markup, element, row, table
from gpumem_magic.units import format_bytes, format_change
from gpumem_magic.values.comparison import Comparison, Difference, LineDifference


def comparison_text(comparison: Comparison) -> str:
    """The comparison for a terminal of 80 columns."""
    first, second = _names(comparison)
    rows = [fit(f"{first}  ->  {second}", WIDTH), _verdict(comparison), ""]
    rows += [_heading("On the card", comparison), *map(_text_row, comparison.levels)]
    if comparison.lines:
        rows += ["", _heading("Allocated by line", comparison)]
        rows += [line for pair in comparison.lines for line in _line_rows(pair)]
    if comparison.categories:
        rows += ["", _heading("By kind, at the peak", comparison)]
        rows += map(_text_row, comparison.categories)
    return "\n".join(line.rstrip() for line in rows)


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


def _heading(name: str, comparison: Comparison) -> str:
    first, second = (f"report {number}" for number in comparison.numbers)
    return left(name, 38) + right(first, 13) + right(second, 13) + right("change", 14)


def _text_row(difference: Difference, name: str | None = None) -> str:
    label = difference.name if name is None else name
    sizes = (format_bytes(difference.first), format_bytes(difference.second))
    change = format_change(difference.change)
    return "  " + left(label, 36) + right(sizes[0], 13) + right(sizes[1], 13) + right(change, 14)


def _line_rows(pair: LineDifference) -> tuple[str, str]:
    return fit(f"  {_place(pair)}  {pair.source}", WIDTH), _text_row(pair.allocated, "")


def _place(pair: LineDifference) -> str:
    """Where the line stands in each cell: "3", "3 -> 5", "new" or "gone"."""
    if pair.first is None or pair.second is None:
        return "gone" if pair.second is None else "new"
    a, b = pair.first.number or "-", pair.second.number or "-"
    return str(b) if a == b else f"{a} -> {b}"


def comparison_html(comparison: Comparison) -> str:
    """The comparison as one <div> with inline styles."""
    first, second = _names(comparison)
    head = tuple(f"report {number}" for number in comparison.numbers)
    tables = [
        table("On the card", ("", *head, "change"), [_row(d, d.name) for d in comparison.levels]),
        table("Allocated by line", ("line", *head, "change"), _lines(comparison)),
        table("By kind, at the peak", ("kind", *head, "change"),
              [_row(d, d.name) for d in comparison.categories]),
    ]  # fmt: skip
    return element(
        "div",
        element("strong", f"{first} \u2192 {second}", style="font-size:1.1em"),
        element("div", _verdict(comparison), style="font-size:1.3em;font-weight:600"),
        *tables,
        style=ROOT,
    )


def _lines(comparison: Comparison) -> list[Markup]:
    return [
        _row(pair.allocated, f"{_place(pair)}  {pair.source[:90]}") for pair in comparison.lines
    ]


def _row(difference: Difference, name: str) -> Markup:
    change = difference.change
    # Only the arrow is coloured: no one green or orange can be read as text on white and on black.
    grown = (change or 0) > 0
    arrow = element(
        "span", "\u25b2 " if grown else "\u25bc ", style=f"color:{GROWN if grown else SHRUNK}"
    )
    text = element("strong", arrow if change else "", format_change(change))
    return row(name, format_bytes(difference.first), format_bytes(difference.second), text)
