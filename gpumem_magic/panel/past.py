"""The measured cells as a plot and as rows of text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpumem_magic.panel import controls
from gpumem_magic.panel.controls import fitted, told
from gpumem_magic.panel.desk import Desk, Draw, Section
from gpumem_magic.renderers import wording
from gpumem_magic.renderers.document import Line, Part, Style
from gpumem_magic.renderers.figure import chart
from gpumem_magic.renderers.figure.palette import ALARM, ALLOCATED, CACHED, OUTSIDE
from gpumem_magic.renderers.figure.scale import SIGHT
from gpumem_magic.renderers.history import comparison_document
from gpumem_magic.renderers.html import ROOT, Markup, element, join, legend
from gpumem_magic.renderers.terminal import fit, left, right
from gpumem_magic.units import format_bytes, format_change, format_size
from gpumem_magic.values.findings import Timeline
from gpumem_magic.values.report import Report

Numbered = Sequence[tuple[int, Report]]

NO_CELLS = "No cell was measured yet: put %%gpumem on top of one, or switch on every cell."

_CHOSEN = "rgba(128,128,128,0.28)"

_NAME = 13  # so that a row is no wider than a column of the panel

HEAD = left("  No  report", 6 + _NAME) + right("peak", 11) + right("kept", 12) + right("time", 12)


def row_text(number: int, report: Report) -> str:
    """A report as one row of a list, in columns where the letters are of one width."""
    mark = "\u2716 " if report.oom else ""
    name = left(f"{mark}{wording.title(report)}", _NAME)
    if not name.isascii():  # letters that run from right to left stay in their column
        name = f"\u2068{name}\u2069"
    kept = wording.kept(report)
    size = format_change(kept, format_size)
    time = wording.format_seconds(report.seconds)
    numbers = right(format_size(report.peak.allocated), 11) + right(size, 12) + right(time, 12)
    return f"{number:>4}  {name}{numbers}{'  out of memory' if report.oom else ''}"


def _facts(numbered: tuple[int, Report]) -> dict[str, Any]:
    """A report as a row of the module's table."""
    number, report = numbered
    return {
        "number": number,
        "name": fit(wording.title(report), 60),
        "peak": report.peak.allocated,
        "kept": wording.kept(report),
        "seconds": report.seconds,
        "time": wording.format_seconds(report.seconds),
        "card": wording.visible(report.device.name)[:40],
        "failed": bool(report.oom),
        "course": _in_small(report.timeline),
    }


_SMALL = 16  # points of a course in a row of the table, 0 to 99 each


def _in_small(line: Timeline) -> list[int]:
    stretches = np.array_split(line.allocated, min(_SMALL, max(len(line.allocated), 1)))
    top = max(int(line.allocated.max(initial=0)), 1)
    return [int(one.max(initial=0)) * 99 // top for one in stretches]


def plot_html(listed: Numbered, chosen: Report | None) -> str:
    """Before, peak and after of each cell, and the limit of the card."""
    if not listed:
        return told(Line(NO_CELLS))
    highest = max(_highest(report) for _, report in listed)
    limits = {report.device.total for _, report in listed if report.device.total}
    near = [size for size in limits if size <= SIGHT * highest]
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
    named = zip(("before", "peak", "after"), _COLOURS, strict=True)
    parts = [Part(name, 0, colour) for name, colour in named]
    for size in sorted(limits):
        far = "" if size in near else ", far above"
        parts.append(Part(f"limit {format_bytes(size)}{far}", 0, ALARM))
    parts.append(Part("shaded: the chosen report", 0, _CHOSEN))
    cross = element("div", "\u2716 out of memory") if failed else join()
    return join(legend(parts), cross)


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


class PastSection(Section):
    """All measured cells."""

    title = "History"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.plot = controls.html()
        self.rows = controls.rows(HEAD.replace(" ", "\u00a0"), 8)
        self.first, self.last = controls.number("Show from report"), controls.number("to report")
        self.all = controls.button("All", "List all reports again")
        self.other = controls.choice("Compare with", [("nothing", None)])
        self.difference = controls.html()
        self.box = self.framed(
            self.plot,
            self.rows,
            controls.across(self.first, self.last, self.all),
            controls.across(self.other),
            self.difference,
        )
        desk.on_change(self.rows, "index", "Choosing a report", self._choose)
        desk.on_change(self.first, "value", "Changing the range", self._zoom)
        desk.on_change(self.last, "value", "Changing the range", self._zoom)
        desk.on_click(self.all, "Listing all reports", self._show_all)
        desk.on_change(self.other, "value", "Comparing", lambda: self.compare(self.other.value))

    @property
    def pieces(self) -> tuple[Draw, ...]:
        """The rows, the plot, the range, the comparison."""
        if self.desk.front is not None:
            return (self.draw_table, self.draw_first, self.draw_last, self.draw_difference)
        return (
            *(self.draw_rows, self.draw_plot, self.draw_first, self.draw_last),
            *(self.draw_others, self.draw_difference),
        )

    def draw_rows(self) -> None:
        """The reports of the range."""
        listed = self.state.listed
        texts = [row_text(number, report) for number, report in listed]
        chosen = [i for i, (_, report) in enumerate(listed) if report is self.state.report]
        with self.rows.hold_sync():
            self.rows.options = texts
            self.rows.index = chosen[0] if chosen else None

    def draw_table(self) -> None:
        """The reports of the range, for the module, the latest as far as a message has room."""
        state, front = self.state, self.desk.front
        if front is not None:
            latest = [*map(_facts, state.listed)][::-1]
            _, cut = controls.as_many([Markup(json.dumps(one)) for one in latest])
            chosen = {"chosen": state.number(state.report), "other": state.number(state.other)}
            front.show("rows", {"rows": latest[: len(latest) - cut], **chosen})

    def choose(self, number: int) -> None:
        """Look at report `number`."""
        self.state.choose(self.state.history.show(number))
        self.desk.changed()

    def compare(self, number: int | None) -> None:
        """Compare with report `number`; None: with nothing."""
        self.state.other = None if number is None else self.state.history.show(number)
        self.desk.changed()

    def draw_plot(self) -> None:
        """The reports of the range as bars."""
        self.plot.value = plot_html(self.state.listed, self.state.report)

    def draw_first(self) -> None:
        """The first number of the range, and how high it can be."""
        first, last = self.state.bounds
        with self.first.hold_sync():
            self.first.max = max(last, 1)
            self.first.value = first

    def draw_last(self) -> None:
        """The last number of the range, and how high it can be."""
        with self.last.hold_sync():
            self.last.max = max(len(self.state.history), 1)
            self.last.value = max(self.state.bounds[1], 1)

    def draw_others(self) -> None:
        """What the chosen report can be compared with."""
        named = [(fit(f"{n}  {wording.title(report)}", 60), n) for n, report in self.state.listed]
        other = self.state.number(self.state.other)
        with self.other.hold_sync():
            self.other.options = [("nothing", None), *named]
            self.other.value = other if any(n == other for _, n in named) else None

    def draw_difference(self) -> None:
        """The comparison, if one is asked for."""
        self.difference.value = self._difference()

    def _difference(self) -> str:
        state = self.state
        first, second = state.number(state.other), state.number(state.report)
        if first is None or second is None:
            return ""
        if first == second:
            return told(Line("Choose another report to compare.", Style.FAINT))
        document = comparison_document(state.history.compare(first, second))
        return fitted(document, f": %gpumem --compare {first} {second} shows all")

    def _choose(self) -> None:
        listed, index = self.state.listed, self.rows.index
        if index is not None and index < len(listed):
            self.choose(listed[index][0])

    def _zoom(self) -> None:
        last = None if self.last.value >= len(self.state.history) else self.last.value
        self.state.first, self.state.last = self.first.value, last
        self.desk.changed()

    def _show_all(self) -> None:
        self.state.first = self.state.last = None
        self.desk.changed()
