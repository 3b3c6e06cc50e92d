"""One measured cell, as HTML: its course by kind, what was alive at a moment, its lines, its
largest blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.panel import controls
from gpumem_magic.panel.controls import NAME_SLIDERS, told
from gpumem_magic.panel.desk import Desk, Draw, Section
from gpumem_magic.panel.front import packed
from gpumem_magic.panel.past import NO_CELLS
from gpumem_magic.renderers import html, wording
from gpumem_magic.renderers.alike import BLOCKS, alike, block_row
from gpumem_magic.renderers.document import Legend, Line, Part, Row, Span, Style, Table
from gpumem_magic.renderers.figure import chart, scale
from gpumem_magic.renderers.figure.interactive import moments_of
from gpumem_magic.renderers.figure.palette import COLOURS, INK
from gpumem_magic.renderers.html import EMPTY, ROOT, Markup, element, join
from gpumem_magic.renderers.out_of_memory import composition
from gpumem_magic.renderers.report import peak_bar
from gpumem_magic.trace.lifetimes import LargeStorages
from gpumem_magic.units import format_bytes, format_change, format_size, format_some
from gpumem_magic.values import findings
from gpumem_magic.values.findings import Block, Timeline
from gpumem_magic.values.recording import Category
from gpumem_magic.values.report import Report

POINTS = 140
"""Moments of a timeline that are drawn and can be chosen, without the module."""


_BLOCKS = 30

_ALIVE = 12


def course_html(report: Report, number: int | None, moment: int | None) -> str:
    """The title and the timeline by kind, with a line at a moment (an index of `moments_of`);
    without the timeline where there is no moment."""
    name = f"{number} \u00b7 {wording.title(report)}" if number else wording.title(report)
    facts = (wording.device_phrase(report), wording.duration(report), wording.kept_phrase(report))
    lines = (Line(Span(name, Style.STRONG)), Line(wording.peak_phrase(report)))
    head = told(*lines, Line(" \u00b7 ".join(facts)))
    course = EMPTY if moment is None else _course(report, moment)
    return element("div", head, _trouble(report), course, style=ROOT)


def _trouble(report: Report) -> Markup:
    if report.oom:
        oom = report.oom
        facts = f"{wording.oom_in_short(oom)}; {'; '.join(wording.oom_facts(oom))}"
        return told(Line(f"{wording.oom_headline(oom)}. {facts}"), alarm=True)
    if report.error:
        return told(Line(f"the cell raised {report.error[:300]}"), alarm=True)
    return EMPTY


def _course(report: Report, moment: int) -> Markup:
    line = report.timeline
    if len(line.allocated) < 2:
        return told(Line("There is no timeline of this cell.", Style.FAINT))
    points = moments_of(line, POINTS)
    limit = scale.limit_of(report)
    highest = max(scale.highest(line), 1)
    in_sight = limit is not None and limit <= scale.SIGHT * highest
    top = max(highest, limit or 0) if in_sight else highest
    layers = _areas(line, points, top)
    if scale.shows_reserved(line):
        layers.append(chart.line(line.reserved[points].tolist(), top, INK))
    if in_sight and limit is not None:
        layers.append(chart.limit(limit, top))
    if report.oom and (failed := scale.failure_point(line, report.oom)) is not None:
        x = float(np.searchsorted(points, failed)) / len(points)
        layers.append(chart.cross(x - 0.01, x + 0.01, int(line.allocated[failed]), top))
    layers.append(chart.upright(moment / (len(points) - 1)))
    last = wording.format_seconds(float(line.time[-1]))
    grey = "grey line: reserved" if scale.shows_reserved(line) else ""
    said = "; ".join(filter(None, (grey, scale.above(line, limit, in_sight))))
    below = join(chart.ends("0 s", last), element("div", _kinds_legend(line), said))
    return chart.chart(f"Memory over the course of the cell: {wording.picture(report)}", top,
                       layers, 180, below)  # fmt: skip


def _areas(line: Timeline, points: NDArray[np.int64], top: int) -> list[Markup]:
    """Each kind upon those before it: painted from the highest down, so that none is hidden."""
    sums = np.cumsum(line.by_category[points], axis=1)
    kinds = [i for i, _ in enumerate(Category) if line.by_category[:, i].any()]
    colours = [COLOURS[kind] for kind in Category]
    return [chart.area(sums[:, i].tolist(), top, colours[i]) for i in reversed(kinds)]


def _kinds_legend(line: Timeline) -> Markup:
    kinds = [kind for i, kind in enumerate(Category) if line.by_category[:, i].any()]
    return html.legend([Part(kind.value, 0, COLOURS[kind]) for kind in kinds])


def alive_html(report: Report, living: LargeStorages | None, moment: int) -> str:
    """What was alive at a moment: the line that ran, bytes by kind, the largest blocks."""
    line = report.timeline
    points = moments_of(line, POINTS)
    if not len(points):
        return element("div", style=ROOT)
    point = int(points[min(moment, len(points) - 1)])
    seconds, number = float(line.time[point]), int(line.line[point])
    sizes = {k: int(s) for k, s in zip(Category, line.by_category[point], strict=True) if s}
    at_peak = " (the peak)" if point == line.peak else ""
    size = Span(f"{format_bytes(int(line.allocated[point]))} allocated", Style.STRONG)
    source = Span(wording.source_of(report, number), Style.CODE)
    where = (f", line {number} ", source) if number else ()
    head = Line((size, f" after {wording.format_seconds(seconds)}{at_peak}", *where))
    kinds = wording.shown(sizes)
    named = (Part(f"{kind.value} {format_size(size)}", 0, COLOURS[kind]) for kind, size in kinds)
    blocks = report.blocks if living is None and point == line.peak else ()
    blocks = living.at(seconds) if living is not None else blocks
    return told(head, composition(sizes), Legend(tuple(named)), _alive(blocks))


def _alive(blocks: tuple[Block, ...]) -> Line | Table:
    if not blocks:
        return Line("The names of what was alive are known at the peak only.", Style.FAINT)
    rows = tuple(map(block_row, alike(blocks, 0)[:_ALIVE]))
    return Table("Largest that were alive then", BLOCKS, rows)


def source_html(report: Report) -> str:
    """The cell's text, each line with a bar of the peak while it ran, and what it left."""
    by_number = {line.number: line for line in report.lines}
    texts = report.cell.source.splitlines()
    rows = [_source_row(report, n, text, by_number.get(n)) for n, text in enumerate(texts, 1)]
    if 0 in by_number:
        rows.append(_source_row(report, 0, "(outside the cell)", by_number[0]))
    head = ("line", "peak", "allocated", "net", "runs")
    rest = " lines: see the report"
    return element("div", controls.table("The cell, line by line", head, rows, rest), style=ROOT)


def _source_row(report: Report, number: int, text: str, line: findings.Line | None) -> Row:
    name = (f"{number or '-'}  ", Span(text, Style.CODE))
    if line is None:
        return Row((name, "", "", "", ""))
    sizes = ("" if line.peak is None else format_size(line.peak), format_some(line.allocated))
    runs = f"x{line.count}" if line.count else ""
    return Row(
        (name, *sizes, format_change(line.net, format_some), runs), peak_bar(report, line.peak)
    )


def blocks_html(report: Report) -> str:
    """The largest blocks at the peak; those alike as one row."""
    groups = alike(report.blocks, report.peak.allocated or 0)
    rows = [*map(block_row, groups[:_BLOCKS])]
    table = controls.table("Largest at the peak", BLOCKS, rows, "") if rows else EMPTY
    return element("div", table, style=ROOT)


class CellSection(Section):
    """The chosen report: its course, any moment of it, its lines and blocks."""

    title = "Cell"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.course, self.alive = controls.html(), controls.html()
        self.source, self.blocks = controls.html(), controls.html()
        self.moment = controls.slider("Moment")
        name = controls.html()
        name.value = NAME_SLIDERS
        parts = (self.course, self.moment, name, self.alive, self.source, self.blocks)
        self.box = self.framed(*parts)
        desk.on_change(self.moment, "value", "Choosing a moment", self._move)

    @property
    def pieces(self) -> tuple[Draw, ...]:
        """The timeline, the slider, what was alive, the source, the blocks; in the module, the
        timeline tells what was alive."""
        if self.desk.front is not None:
            return (self.draw_course, self.draw_front, self.draw_source, self.draw_blocks)
        return (
            *(self.draw_course, self.draw_moment, self.draw_alive),
            *(self.draw_source, self.draw_blocks),
        )

    def draw_course(self) -> None:
        """The timeline with the moment."""
        report = self.state.report
        if report is None:
            self.course.value = told(Line(NO_CELLS))
        else:
            number = self.state.number(report)
            moment = None if self.desk.front is not None else self._moment(report)
            self.course.value = course_html(report, number, moment)

    def draw_front(self) -> None:
        """The timeline of the module."""
        if self.desk.front is not None:
            self.desk.front.show("course", packed(self.state.report))

    def draw_moment(self) -> None:
        """The slider, as long as the timeline."""
        report = self.state.report
        count = len(moments_of(report.timeline, POINTS)) if report else 0
        with self.moment.hold_sync():
            self.moment.max = max(count - 1, 1)
            self.moment.value = self._moment(report) if report else 0
            self.moment.disabled = count < 2

    def draw_alive(self) -> None:
        """What was alive at the moment."""
        report = self.state.report
        if report is None:
            self.alive.value = ""
        else:
            living = self.state.history.living(report)
            self.alive.value = alive_html(report, living, self._moment(report))

    def draw_source(self) -> None:
        """The text of the cell with its memory."""
        self.source.value = source_html(self.state.report) if self.state.report else ""

    def draw_blocks(self) -> None:
        """The largest at the peak."""
        self.blocks.value = blocks_html(self.state.report) if self.state.report else ""

    def _moment(self, report: Report) -> int:
        points = moments_of(report.timeline, POINTS)
        if self.state.moment is not None:
            return min(self.state.moment, max(len(points) - 1, 0))
        return next((i for i, p in enumerate(points) if p == report.timeline.peak), 0)

    def _move(self) -> None:
        self.state.moment = self.moment.value
        self.draw_course()
        self.draw_alive()
