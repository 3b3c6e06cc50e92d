"""The section on keeping what was measured, or forgetting it."""

from __future__ import annotations

from pathlib import Path

from gpumem_magic.panel import controls
from gpumem_magic.panel.desk import Desk, Draw, Section
from gpumem_magic.renderers.formats.files import Files, report_files, reports_files, write

_FORMS = ("html", "json", "csv", "png", "pickle")
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

    def download(self, _: object) -> None:
        """Give the browser the file, as one message that is as long as that."""
        if self.desk.front is not None:
            path = self._path()
            content = self._files()[path.suffix.lower()]()
            data = content.encode("utf-8", "replace") if isinstance(content, str) else content
            self.desk.front.send({"download": path.name}, data)

    def _save(self) -> None:
        path = self._path()
        write(path, self._files())
        self.desk.say(f"Saved {path.resolve()}")

    def _path(self) -> Path:
        name = self.name.value.strip()
        if not name:
            raise ValueError("the file needs a name")
        path = Path(name).expanduser()
        if path.suffix.lower() == f".{self.form.value}":
            return path
        return path.with_name(f"{path.name}.{self.form.value}")

    def _files(self) -> Files:
        if self.what.value == _ALL:
            return reports_files(self.state.history.reports)
        if self.state.report is None:
            raise ValueError("no cell was measured yet")
        return report_files(self.state.report)

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
