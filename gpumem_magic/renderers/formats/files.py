"""Reports into files: the suffix says which form, and a file is whole or not there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpumem_magic.renderers import html
from gpumem_magic.renderers.figure import interactive
from gpumem_magic.renderers.formats.csv import to_csv
from gpumem_magic.renderers.formats.json import dumps, dumps_all
from gpumem_magic.renderers.formats.snapshot import to_pickle
from gpumem_magic.renderers.html import EMPTY, Markup, element, join
from gpumem_magic.renderers.report import report_document
from gpumem_magic.values.report import Report

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 32px auto; max-width: 920px; padding: 0 20px; background: #fff; color: #1c1c1c;
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
    answers = interactive.script() if any(map(interactive.has_course, reports)) else EMPTY
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{element('title', title)}\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n{foot}\n{answers}\n</body>\n</html>\n"
    )


def _article(report: Report) -> Markup:
    """The report with its picture, and below it the timeline that answers; printed or without
    scripts, the picture stands alone."""
    said = html.printed(report_document(report))
    course = interactive.place_of(report) if interactive.has_course(report) else EMPTY
    return element("article", said, course, _source(report))


def _source(report: Report) -> Markup:
    if not report.cell.source.strip():
        return EMPTY
    rows = []
    for number, text in enumerate(report.cell.source.splitlines(), 1):
        margin = Markup(f'<span class="number">{number}</span>')
        rows.append(join(margin, text) + "\n")
    summary = element("summary", "the cell", style="cursor:pointer;font-size:13px")
    return element("details", summary, element("pre", Markup("".join(rows)), dir="ltr"))


Files = dict[str, Callable[[], str | bytes]]
"""What makes the content of a file, by its suffix."""


def report_files(report: Report) -> Files:
    """One report; its figure for .png and .svg, its events for .pickle."""
    return {
        ".json": lambda: dumps(report),
        ".csv": lambda: to_csv([report]),
        ".html": lambda: page([report], report.name or "GPU memory"),
        ".txt": lambda: report.text() + "\n",
        **_pictures(lambda drawn: drawn.timeline_figure(report)),
        ".pickle": lambda: to_pickle(report),
    }


def reports_files(
    reports: Sequence[Report],
    text: str = "",
    above: Markup = EMPTY,
    more: Mapping[str, Any] | None = None,
) -> Files:
    """Many reports below what is said of all of them: `text`, `above` in HTML, `more` in JSON; for
    .png and .svg a picture of their peaks."""
    texts = [text] if text else []
    texts += [report.text() for report in reports]
    return {
        ".json": lambda: dumps_all(reports, more),
        ".csv": lambda: to_csv(reports),
        ".html": lambda: page(reports, above=above),
        ".txt": lambda: "\n\n\n".join(texts) + "\n",
        **_pictures(lambda drawn: drawn.overview_figure(reports)),
        ".pickle": lambda: to_pickle(_only(reports)),
    }


def _only(reports: Sequence[Report]) -> Report:
    """The report that a memory snapshot can be of. Raises ValueError where there is another."""
    if len(reports) != 1:
        raise ValueError(
            "a memory snapshot (.pickle) holds one report: %%gpumem --save PATH and report.save "
            "write the one of their cell"
        )
    return reports[0]


def _pictures(draw: Callable[[Any], Any]) -> Files:
    """draw: makes a figure, given the module that has figures, which is loaded for them."""

    def printed(kind: str) -> bytes:
        from gpumem_magic.renderers.figure import timeline

        picture: bytes = getattr(timeline, kind)(draw(timeline))
        return picture

    return {".png": lambda: printed("png"), ".svg": lambda: printed("svg")}


def regular(path: Path) -> Path:
    """Where `path` leads: a link stays a link. Raises OSError for what is no file, such as a pipe:
    a file cannot replace it, and reading it may never end."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.resolve()


def write(path: Path, files: Files) -> None:
    """Write the form of the suffix. Raises ValueError for another one; a file there stays whole."""
    form = files.get(path.suffix.lower())
    if form is None:
        raise ValueError(f"{path}: a report is saved as {', '.join(files)}")
    content = form()
    # A lone surrogate (from a broken string literal in a cell) has no UTF-8.
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    target = regular(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None  # not the name of `part`
    finally:
        part.unlink(missing_ok=True)
