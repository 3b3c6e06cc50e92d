"""Answers as text, HTML and files. Nothing is measured; matplotlib is loaded to draw a figure."""

from __future__ import annotations

from gpumem_magic.renderers import html, terminal
from gpumem_magic.renderers.document import Document
from gpumem_magic.renderers.out_of_memory import post_mortem_document
from gpumem_magic.renderers.report import report_document
from gpumem_magic.values.report import Report


def mimebundle(report: Report, plot: bool = True) -> dict[str, str]:
    """`report` for `display(..., raw=True)`: plain text, and HTML that holds the figure if `plot`.

    The figure is no `image/png` of its own, so that every front end shows exactly one copy of it.
    """
    return _bundle(report_document(report, plot))


def post_mortem_bundle(report: Report) -> dict[str, str]:
    """The same for what `report` says of an out-of-memory error, without the rest of it."""
    return _bundle(post_mortem_document(report))


def _bundle(document: Document) -> dict[str, str]:
    return {"text/plain": terminal.printed(document), "text/html": html.printed(document)}
