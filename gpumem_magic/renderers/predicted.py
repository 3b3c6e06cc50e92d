"""What only a predicted cell shows, as HTML: does it fit, where does it end, what did it print."""

from __future__ import annotations

from gpumem_magic.renderers import markup, wording
from gpumem_magic.renderers.figure.palette import ALARM
from gpumem_magic.renderers.markup import EMPTY, Markup, element, join
from gpumem_magic.values.report import Report

_LINES = 200  # of output in a page; the report has all
_COLUMNS = 500
_PRINTED = (
    "margin:4px 8px;padding:6px 10px;background:rgba(128,128,128,0.12);color:inherit;"
    "max-height:300px;overflow:auto;font-size:0.95em;white-space:pre-wrap;"
    "font-family:ui-monospace, Menlo, Consolas, monospace"
)


def headline(report: Report) -> Markup:
    """Fits or not, and by how much; below it, where the way through the cell was guessed."""
    large = "font-size:1.3em;font-weight:600;margin:6px 0 0 0"
    said = element("div", wording.verdict(report), style=large)
    return join(said, *_below(report))


def _below(report: Report) -> list[Markup]:
    rows = []
    if wording.fits(report) is None:
        rows.append(_ending(report))
    if report.flow_guessed:
        rows.append(element("div", element("strong", wording.GUESSED), style=frame()))
    return rows


def _ending(report: Report) -> Markup:
    source = wording.source_of(report, report.error_line)
    where = element("div", markup.code(source)) if source else EMPTY
    return element("div", where, f"Not out of memory: {wording.by_how_much(report)}", style=frame())


def frame() -> str:
    """The style of what must not be overlooked."""
    return (
        f"border-left:4px solid {ALARM};background:rgba(238,102,119,0.12);"
        "padding:6px 12px;margin:10px 0 0 0"
    )


def output(report: Report) -> Markup:
    """What the dry run printed, folded; nothing where it printed nothing."""
    rows = report.output.splitlines()
    if not rows:
        return EMPTY
    lines = Markup("\n".join(join(text[:_COLUMNS]) for text in rows[:_LINES]))
    printed = element("pre", lines, dir="ltr", style=_PRINTED)
    cut = len(rows) - _LINES
    more = markup.small(f"... and {cut} more lines: see report.output") if cut > 0 else EMPTY
    summary = element("summary", wording.output_phrase(report))
    return element("details", summary, printed, more, style="margin:10px 8px 0 8px")
