"""The measured cells as a plot and as rows of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpumem_magic.panel import chart
from gpumem_magic.renderers import pieces, wording
from gpumem_magic.renderers.columns import left, right
from gpumem_magic.renderers.markup import ROOT, Markup, element, join
from gpumem_magic.renderers.palette import ALARM, ALLOCATED, CACHED, OUTSIDE
from gpumem_magic.report import Report
from gpumem_magic.units import format_bytes

Numbered = Sequence[tuple[int, Report]]

NO_CELLS = "No cell was measured yet: put %%gpumem on top of one, or switch on every cell."

_CHOSEN = "rgba(128,128,128,0.28)"
_SIGHT = 3  # a limit further than this many times the highest peak is told, not drawn
_NAME = 26
HEAD = (
    left("  No  report", 6 + _NAME) + right("peak", 13) + right("kept", 13) + right("time", 10)
) + "  card"


def row_text(number: int, report: Report) -> str:
    """A report as one row of a list, in columns where the letters are of one width."""
    mark = "\u2716 " if report.oom else ""
    name = left(f"{mark}{wording.title(report)}", _NAME)
    if not name.isascii():  # letters that run from right to left stay in their column
        name = f"\u2068{name}\u2069"
    kept = wording.kept(report)
    size = format_bytes(kept) if kept is None or kept <= 0 else f"+{format_bytes(kept)}"
    time = wording.format_seconds(report.seconds)
    card = left(wording.visible(report.device.name), 24).rstrip()
    numbers = right(format_bytes(report.peak.allocated), 13) + right(size, 13) + right(time, 10)
    return f"{number:>4}  {name}{numbers}  {card}{'  out of memory' if report.oom else ''}"


def plot_html(listed: Numbered, chosen: Report | None) -> str:
    """Before, peak and after of each cell, and the limit of the card."""
    if not listed:
        return element("div", NO_CELLS, style=ROOT)
    highest = max(_highest(report) for _, report in listed)
    limits = {report.device.total for _, report in listed if report.device.total}
    near = [size for size in limits if size <= _SIGHT * highest]
    top = max([highest, *near]) * 21 // 20
    layers = [mark for slot, (_, r) in enumerate(listed) for mark in _column(slot, len(listed), r,
              top, r is chosen)]  # fmt: skip
    layers += [chart.limit(size, top) for size in near]
    first, last = listed[0][0], listed[-1][0]
    below = join(
        chart.ends(f"report {first}", f"report {last}" if last != first else ""),
        _legend(limits, near, any(report.oom for _, report in listed)),
    )
    return element("div", chart.chart(_said(listed), top, layers, 150, below), style=ROOT)


def _highest(report: Report) -> int:
    levels = (report.before, report.peak, report.after)
    wanted = (report.oom.requested or 0) if report.oom else 0
    return max(*(level.allocated or 0 for level in levels), _failed(report, wanted), 1)


def _failed(report: Report, wanted: int) -> int:
    """Where a request would have led that failed, as far as the card reaches."""
    total = report.device.total
    return min((report.peak.allocated or 0) + wanted, total) if wanted and total else 0


def _column(slot: int, slots: int, report: Report, top: int, chosen: bool) -> Iterator[Markup]:
    left_, width = slot / slots, 1 / slots
    sizes = [level.allocated or 0 for level in (report.before, report.peak, report.after)]
    if chosen:
        yield chart.box(left_, left_ + width, 0, top, top, _CHOSEN)
    for place, (size, colour) in enumerate(zip(sizes, _COLOURS, strict=True)):
        start = left_ + width * (0.14 + 0.24 * place)
        yield chart.box(start, start + width * 0.22, 0, size, top, colour)
    if report.oom:
        middle = left_ + width / 2
        half = min(width * 0.3, 0.015)
        height = _failed(report, report.oom.requested or 1)
        yield chart.cross(middle - half, middle + half, height, top)


_COLOURS = (OUTSIDE, ALLOCATED, CACHED)


def _legend(limits: set[int], near: list[int], failed: bool) -> Markup:
    names = [
        join(pieces.swatch(colour), f"{name}  ")
        for name, colour in zip(("before", "peak", "after"), _COLOURS, strict=True)
    ]
    for size in sorted(limits):
        far = "" if size in near else ", far above"
        names.append(join(pieces.swatch(ALARM), f"limit {format_bytes(size)}{far}  "))
    if failed:
        names.append(join("\u2716 out of memory  "))
    grey = join(pieces.swatch(_CHOSEN), "on this ground: the chosen report")
    style = "display:flex;flex-wrap:wrap;gap:0 14px"
    return element("div", *(element("span", name) for name in (*names, grey)), style=style)


def _said(listed: Numbered) -> str:
    """The plot in words."""
    first, last = listed[0][0], listed[-1][0]
    number, most = max(listed, key=lambda entry: entry[1].peak.allocated or 0)
    failed = sum(1 for _, report in listed if report.oom)
    ran_out = f"; {failed} ran out of memory" if failed else ""
    return (
        f"Allocated memory before, at the peak and after each of the reports {first} to {last}; "
        f"the highest peak is {format_bytes(most.peak.allocated)} in report {number}{ran_out}"
    )
