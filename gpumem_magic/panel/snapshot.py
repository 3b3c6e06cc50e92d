"""What stays of the panel in a saved notebook, where no kernel runs: a table and a picture."""

from __future__ import annotations

import uuid

from IPython.display import display, update_display

from gpumem_magic.history import History
from gpumem_magic.panel.controls import SNAPSHOT
from gpumem_magic.panel.past import NO_CELLS
from gpumem_magic.renderers.history import history_document
from gpumem_magic.renderers.html import ROOT, Markup, element, join, picture, printed
from gpumem_magic.renderers.terminal import printed as printed_text

_LATEST = 20


class Snapshot:
    """One output of its own below each panel, brought up to date in place."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._id = f"gpumem-still-{uuid.uuid4().hex}"

    def show(self) -> None:
        """Put it below the panel."""
        display(self._bundle(), raw=True, display_id=self._id)  # type: ignore[no-untyped-call]

    def draw(self) -> None:
        """Bring it up to date, wherever it is."""
        update_display(self._bundle(), raw=True, display_id=self._id)  # type: ignore[no-untyped-call]

    def _bundle(self) -> dict[str, str]:
        reports = self._history.reports[-_LATEST:]
        if not reports:
            return {"text/plain": NO_CELLS, "text/html": _framed(element("div", NO_CELLS))}
        document = history_document(reports)
        inner = join(printed(document), self._picture())
        return {"text/plain": printed_text(document), "text/html": _framed(inner)}

    def _picture(self) -> Markup:
        from gpumem_magic.renderers.figure import timeline as figure

        reports = self._history.reports[-_LATEST:]
        words = "The peaks of the measured cells; the table above has the numbers."
        return picture(figure.png(figure.overview_figure(reports)), words)


def _framed(inner: Markup) -> str:
    above = element("div", "The panel as it was when the notebook was saved.")
    return element("div", above, inner, style=ROOT, **{"class": SNAPSHOT})
