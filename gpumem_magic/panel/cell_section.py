"""The section on one measured cell."""

from __future__ import annotations

from gpumem_magic.panel import cell, controls
from gpumem_magic.panel.desk import Desk
from gpumem_magic.panel.past import NO_CELLS
from gpumem_magic.panel.section import Draw, Section
from gpumem_magic.panel.style import NAME_SLIDERS
from gpumem_magic.renderers.markup import ROOT, element
from gpumem_magic.report import Report


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
        """The timeline, the slider, what was alive, the source, the blocks."""
        return (
            *(self.draw_course, self.draw_moment, self.draw_alive),
            *(self.draw_source, self.draw_blocks),
        )

    def draw_course(self) -> None:
        """The timeline with the moment."""
        report = self.state.report
        if report is None:
            self.course.value = element("div", NO_CELLS, style=ROOT)
        else:
            number = self.state.number(report)
            self.course.value = cell.course_html(report, number, self._moment(report))

    def draw_moment(self) -> None:
        """The slider, as long as the timeline."""
        report = self.state.report
        count = len(cell.moments_of(report.timeline)) if report else 0
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
            self.alive.value = cell.alive_html(report, living, self._moment(report))

    def draw_source(self) -> None:
        """The text of the cell with its memory."""
        self.source.value = cell.source_html(self.state.report) if self.state.report else ""

    def draw_blocks(self) -> None:
        """The largest at the peak."""
        self.blocks.value = cell.blocks_html(self.state.report) if self.state.report else ""

    def _moment(self, report: Report) -> int:
        points = cell.moments_of(report.timeline)
        if self.state.moment is not None:
            return min(self.state.moment, max(len(points) - 1, 0))
        return next((i for i, p in enumerate(points) if p == report.timeline.peak), 0)

    def _move(self) -> None:
        self.state.moment = self.moment.value
        self.draw_course()
        self.draw_alive()
