"""The section on keeping what was measured, or forgetting it."""

from __future__ import annotations

from pathlib import Path

from gpumem_magic.panel import controls
from gpumem_magic.panel.desk import Desk, Draw, Section

_FORMS = ("html", "json", "csv", "png")
_ALL, _CHOSEN = "all reports", "the chosen report"


class ExportSection(Section):
    """Reports into files, and out of the history."""

    title = "Export"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.what = controls.choice("Save", (_ALL, _CHOSEN))
        self.form = controls.choice("as", _FORMS)
        self.name = controls.line("File name", value="gpumem-history")
        self.save = controls.button("Save", "Write the file beside the notebook")
        self.clear = controls.button("Clear the history", "Forget all reports")
        self.sure = controls.button("Yes, forget all reports", "This cannot be undone")
        self.keep = controls.button("No, keep them", "Leave the history as it is")
        self.box = self.framed(
            controls.across(self.what, self.form, self.name),
            controls.across(self.save, self.clear, self.sure, self.keep),
        )
        desk.on_click(self.save, "Saving", self._save)
        desk.on_click(self.clear, "Clearing", lambda: self._ask(True))
        desk.on_click(self.keep, "Clearing", lambda: self._ask(False))
        desk.on_click(self.sure, "Clearing", self._clear)
        self._ask(False)

    @property
    def pieces(self) -> tuple[Draw, ...]:
        """Nothing of this section follows the cells."""
        return ()

    def _save(self) -> None:
        name = self.name.value.strip()
        if not name:
            raise ValueError("the file needs a name")
        path = Path(name).expanduser()
        if path.suffix.lower() != f".{self.form.value}":
            path = path.with_name(f"{path.name}.{self.form.value}")
        if self.what.value == _ALL:
            self.state.history.save(path)
        elif self.state.report is None:
            raise ValueError("no cell was measured yet")
        else:
            self.state.report.save(path)
        self.desk.say(f"Saved {path.resolve()}")

    def _ask(self, asking: bool) -> None:
        controls.show(self.clear, not asking)
        controls.show(self.sure, asking)
        controls.show(self.keep, asking)

    def _clear(self) -> None:
        count = len(self.state.history)
        self.state.history.clear()
        self.state.measured = {}
        self.state.choose(None)
        self.state.other = self.state.first = self.state.last = None
        self._ask(False)
        self.desk.changed()
        self.desk.say(f"Forgotten: {count} reports.")
