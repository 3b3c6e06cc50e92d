"""Reports into files: the suffix says which form, and a file is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gpumem_magic.renderers.csv import to_csv
from gpumem_magic.renderers.json import dumps, dumps_all
from gpumem_magic.renderers.page import page
from gpumem_magic.renderers.text import report_text
from gpumem_magic.report import Report

SUFFIXES = (".json", ".csv", ".html", ".txt", ".png", ".svg")


def save_report(report: Report, path: str | os.PathLike[str]) -> None:
    """Write one report; its figure for .png and .svg. Raises ValueError for another suffix."""
    _write(
        Path(path),
        {
            ".json": lambda: dumps(report),
            ".csv": lambda: to_csv([report]),
            ".html": lambda: page([report], report.name or "GPU memory"),
            ".txt": lambda: report_text(report) + "\n",
            ".png": lambda: _timeline(report, ".png"),
            ".svg": lambda: _timeline(report, ".svg"),
        },
    )


def save_reports(reports: Sequence[Report], path: str | os.PathLike[str]) -> None:
    """Write many; .png and .svg are a picture of their peaks. Raises ValueError as above."""
    _write(
        Path(path),
        {
            ".json": lambda: dumps_all(reports),
            ".csv": lambda: to_csv(reports),
            ".html": lambda: page(reports),
            ".txt": lambda: "\n\n\n".join(map(report_text, reports)) + "\n",
            ".png": lambda: _overview(reports, ".png"),
            ".svg": lambda: _overview(reports, ".svg"),
        },
    )


def _timeline(report: Report, suffix: str) -> bytes:
    from gpumem_magic.renderers import figure  # slow to load, and not needed for the other forms

    picture = figure.timeline_figure(report)
    return figure.svg(picture) if suffix == ".svg" else figure.png(picture)


def _overview(reports: Sequence[Report], suffix: str) -> bytes:
    from gpumem_magic.renderers import figure

    picture = figure.overview_figure(reports)
    return figure.svg(picture) if suffix == ".svg" else figure.png(picture)


def _write(path: Path, forms: dict[str, Callable[[], str | bytes]]) -> None:
    form = forms.get(path.suffix.lower())
    if form is None:
        raise ValueError(f"{path}: a report is saved as {', '.join(SUFFIXES)}")
    content = form()
    # A lone surrogate (from a broken string literal in a cell) has no UTF-8.
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    target = path.resolve()  # a link stays a link
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
