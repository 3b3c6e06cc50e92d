"""Report -> output. Nothing here measures; matplotlib is loaded when a figure is drawn."""

from __future__ import annotations

from gpumem_magic.renderers.html import report_html
from gpumem_magic.renderers.post_mortem import post_mortem_html, post_mortem_text
from gpumem_magic.renderers.text import report_text
from gpumem_magic.values.report import Report


def mimebundle(report: Report, plot: bool = True) -> dict[str, str]:
    """`report` for `display(..., raw=True)`: plain text, and HTML that holds the figure if `plot`.

    The figure is no `image/png` of its own, so that every front end shows exactly one copy of it.
    """
    return {"text/plain": report_text(report), "text/html": report_html(report, plot)}


def post_mortem_bundle(report: Report) -> dict[str, str]:
    """The same for what `report` says of an out-of-memory error, without the rest of it."""
    return {"text/plain": post_mortem_text(report), "text/html": post_mortem_html(report)}
