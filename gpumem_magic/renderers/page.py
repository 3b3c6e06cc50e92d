"""Reports as a page of their own, which follows the reader's light or dark scheme."""

from __future__ import annotations

import html
from collections.abc import Sequence

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.html import report_html
from gpumem_magic.renderers.markup import EMPTY, Markup, element, join
from gpumem_magic.report import Report

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 32px auto; max-width: 960px; padding: 0 20px; background: #fff; color: #1c1c1c;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
article { margin: 0 0 28px; padding: 0 0 28px; border-bottom: 1px solid rgba(128,128,128,.3); }
article:last-of-type { border: 0; }
pre { overflow-x: auto; padding: 8px 12px; background: rgba(128,128,128,.12); border-radius: 4px;
  font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; tab-size: 4; }
.number { display: inline-block; width: 2.5em; margin-right: 1em; text-align: right; opacity: .6;
  user-select: none; }
details { margin-top: 12px; }
summary { cursor: pointer; }
footer { opacity: .7; font-size: 13px; }
@media (prefers-color-scheme: dark) { body { background: #141414; color: #e2e2e2; } }
"""


def page(reports: Sequence[Report], title: str = "GPU memory", above: Markup = EMPTY) -> str:
    """A whole HTML document of `reports`, each with its figure and the source of its cell.

    above: what stands on top of them.
    """
    body = join(
        element("article", above) if above else EMPTY, *(_article(report) for report in reports)
    ) or element("p", "Nothing was measured.")
    foot = element("footer", "Made by gpumem_magic.")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(wording.visible(title))}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n{foot}\n</body>\n</html>\n"
    )


def _article(report: Report) -> Markup:
    return element("article", Markup(report_html(report)), _source(report))


def _source(report: Report) -> Markup:
    if not report.cell.source.strip():
        return EMPTY
    rows = []
    for number, text in enumerate(report.cell.source.splitlines(), 1):
        margin = Markup(f'<span class="number">{number}</span>')
        rows.append(join(margin, text) + "\n")
    summary = element("summary", "the cell")
    return element("details", summary, element("pre", Markup("".join(rows)), dir="ltr"))
