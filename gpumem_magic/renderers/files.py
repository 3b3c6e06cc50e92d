"""Reports into files: the suffix says which form, and a file is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpumem_magic.renderers.cards import cards_html, cards_text
from gpumem_magic.renderers.csv import to_csv
from gpumem_magic.renderers.json import dumps, dumps_all
from gpumem_magic.renderers.largest import Found, facts, largest_html, largest_text, reports_of
from gpumem_magic.renderers.markup import EMPTY, Markup
from gpumem_magic.renderers.page import page
from gpumem_magic.renderers.text import report_text
from gpumem_magic.report import Report

SUFFIXES = (".json", ".csv", ".html", ".txt", ".png", ".svg")


def save_report(report: Report, path: str | os.PathLike[str]) -> None:
    """Write one report; its figure for .png and .svg. Raises ValueError for another suffix."""
    write(
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


SUFFIXES = (".json", ".csv", ".html", ".txt", ".png", ".svg")


def save_reports(reports: Sequence[Report], path: str | os.PathLike[str]) -> None:
    """Write many; .png and .svg are a picture of their peaks. Raises ValueError as above."""
    _save(reports, path)


def save_cards(reports: Sequence[Report], path: str | os.PathLike[str]) -> None:
    """Write one cell on many cards: the table, then each report. Raises ValueError as above."""
    _save(reports, path, cards_text(reports), Markup(cards_html(reports)))


def save_largest(found: Sequence[Found], path: str | os.PathLike[str]) -> None:
    """Write what was found, then the reports that prove it. Raises ValueError as above."""
    reports = [report for one in found for report in reports_of(one)]
    above = Markup(largest_html(found))
    _save(reports, path, largest_text(found), above, {"fits": [facts(one) for one in found]})


def _save(
    reports: Sequence[Report],
    path: str | os.PathLike[str],
    text: str = "",
    above: Markup = EMPTY,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write reports below what is said of all of them: `text`, `above` in HTML, `more` in JSON."""
    whole = [text] if text else []
    write(
        Path(path),
        {
            ".json": lambda: dumps_all(reports, more),
            ".csv": lambda: to_csv(reports),
            ".html": lambda: page(reports, above=above),
            ".txt": lambda: "\n\n\n".join([*whole, *map(report_text, reports)]) + "\n",
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


def write(path: Path, forms: dict[str, Callable[[], str | bytes]]) -> None:
    """Write the form of the suffix. Raises ValueError for another one; a file there stays whole."""
    form = forms.get(path.suffix.lower())
    if form is None:
        raise ValueError(f"{path}: a report is saved as {', '.join(forms)}")
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
