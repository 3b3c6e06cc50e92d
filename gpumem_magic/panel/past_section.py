"""The section on the measured cells: a plot, rows to choose from, a range, a comparison."""

from __future__ import annotations

from gpumem_magic.history.views import comparison_html
from gpumem_magic.panel import controls
from gpumem_magic.panel.budget import as_many
from gpumem_magic.panel.desk import Desk
from gpumem_magic.panel.past import HEAD, plot_html, row_text
from gpumem_magic.panel.section import Draw, Section
from gpumem_magic.renderers import pieces, wording
from gpumem_magic.renderers.markup import ROOT, Markup, element

_TOO_LONG = "The comparison is too long to be shown here: %gpumem --compare shows it."


class PastSection(Section):
    """All measured cells."""

    title = "History"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.plot = controls.html()
        self.rows = controls.rows(HEAD.replace(" ", "\u00a0"), 8)
        self.first, self.last = controls.number("From report"), controls.number("to report")
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
        desk.on_change(self.other, "value", "Comparing", self._compare)

    @property
    def pieces(self) -> tuple[Draw, ...]:
        """The rows, the plot, the range, the comparison."""
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
        named = [(f"{n}  {wording.title(report)}"[:60], n) for n, report in self.state.listed]
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
            return element("div", pieces.small("Choose another report to compare."), style=ROOT)
        shown, _ = as_many([Markup(comparison_html(state.history.compare(first, second)))])
        return shown[0] if shown else element("div", pieces.small(_TOO_LONG), style=ROOT)

    def _choose(self) -> None:
        listed, index = self.state.listed, self.rows.index
        if index is not None and index < len(listed):
            self.state.choose(listed[index][1])
            self.desk.changed()

    def _zoom(self) -> None:
        last = None if self.last.value >= len(self.state.history) else self.last.value
        self.state.first, self.state.last = self.first.value, last
        self.desk.changed()

    def _show_all(self) -> None:
        self.state.first = self.state.last = None
        self.desk.changed()

    def _compare(self) -> None:
        number = self.other.value
        self.state.other = None if number is None else self.state.history.show(number)
        self.desk.changed()
