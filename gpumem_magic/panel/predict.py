"""The section on predictions: would this cell fit, on which card, with how large a batch?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from gpumem_magic.devices import device_names
from gpumem_magic.dryrun import Scenario, together
from gpumem_magic.panel import controls
from gpumem_magic.panel.desk import Desk, Draw, Section, cancel_button
from gpumem_magic.predict import HEADROOM, fitting, predicting
from gpumem_magic.renderers import wording
from gpumem_magic.renderers.forecast import cards_document, largest_document
from gpumem_magic.renderers.html import printed
from gpumem_magic.values.forecast import Fit
from gpumem_magic.values.recording import Cell
from gpumem_magic.values.report import Report

_CHOSEN, _PASTED = "the chosen report's cell", "the code below"

_FILENAME = "<predicted cell>"


class PredictSection(Section):
    """Predictions of the chosen or of a pasted cell."""

    title = "Predict"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        names = [name for name in device_names() if name not in ("auto", "off")]
        self.cards = controls.many("Cards (choose none for the one in use)", names, 5)
        self.variable = controls.line("Largest value of", placeholder="such as batch_size")
        self.what = controls.choice("Predict", (_CHOSEN, _PASTED))
        self.code = controls.lines("Code", 6)
        self.run = controls.button("Predict", "Tell the memory by a dry run; nothing is computed")
        self.cancel = cancel_button(desk)
        self.result = controls.html()
        self.box = self.framed(
            controls.across(self.cards),
            controls.across(self.variable, self.what),
            self.code,
            controls.across(self.run, self.cancel),
            self.result,
        )
        desk.on_change(self.what, "value", "Choosing what to predict", self.draw_code)
        desk.on_click_alone(self.run, "Predicting", self._predict)
        self.draw_code()

    @property
    def pieces(self) -> tuple[Draw, ...]:
        """Nothing of this section follows the cells."""
        return ()

    def draw_code(self) -> None:
        """The place for pasted code, where that is wanted."""
        controls.show(self.code, self.what.value == _PASTED)

    def _cell(self) -> Cell:
        if self.what.value == _PASTED:
            if not self.code.value.strip():
                raise ValueError("there is no code; paste a cell into Code")
            return Cell(self.code.value, _FILENAME)
        if self.state.report is None:
            raise ValueError("no cell was measured yet; paste one instead")
        return self.state.report.cell

    def _predict(self) -> None:
        desk, cell, name = self.desk, self._cell(), self.variable.value.strip()
        goal = f"the largest {name}" if name else "the memory"
        desk.say(f"Looking for {goal} by dry runs ...")
        scenarios = [self._scenario(cell, card) for card in self._gpus()]
        if name:
            spared = [replace(scenario, headroom=HEADROOM) for scenario in scenarios]
            fits = together([fitting(scenario, name) for scenario in spared])
            desk.dry_runs.carry_out("Predicting", fits, self._show_fits)
        else:
            reports = together([predicting(scenario) for scenario in scenarios])
            desk.dry_runs.carry_out(
                "Predicting", reports, partial(self._show_reports, self._named(cell))
            )

    def _named(self, cell: Cell) -> str:
        """What the prediction is called: as the chosen report, or by the first line of the code."""
        if self.what.value != _PASTED and self.state.report is not None:
            return wording.title(self.state.report)
        return next(line.strip() for line in cell.source.splitlines() if line.strip())[:40]

    def _scenario(self, cell: Cell, card: str | None) -> Scenario:
        host = self.desk.host
        cells = host.files.cells()
        return Scenario(host.files.with_code(cell), host.shell.user_ns, card, cells)

    def _show_reports(self, name: str, reports: Sequence[Report]) -> None:
        named = [replace(report, name=name) for report in reports]
        self.result.value = printed(cards_document(named), plain=False)
        self.desk.say("Predicted.")

    def _show_fits(self, fits: Sequence[Fit]) -> None:
        self.result.value = printed(largest_document(fits), plain=False)
        self.desk.say("Predicted.")

    def _gpus(self) -> tuple[str | None, ...]:
        return tuple(self.cards.value) or (None,)
