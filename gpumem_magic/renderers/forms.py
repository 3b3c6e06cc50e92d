"""How every answer looks: its text, its HTML, its plain values, the files it is saved as."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpumem_magic.renderers import html, terminal, wording
from gpumem_magic.renderers.advice import assessment_document, change_document
from gpumem_magic.renderers.breakdown import breakdowns_document
from gpumem_magic.renderers.document import Document
from gpumem_magic.renderers.explained import explained_document, pages_document
from gpumem_magic.renderers.forecast import (
    cards_document,
    facts,
    largest_document,
    largest_to_dict,
    reports_of,
)
from gpumem_magic.renderers.formats.csv import written
from gpumem_magic.renderers.formats.files import Files, page, report_files, reports_files, write
from gpumem_magic.renderers.formats.json import FORMAT, all_to_dict, encode, from_dict, to_dict
from gpumem_magic.renderers.history import comparison_document, history_document
from gpumem_magic.renderers.html import Markup
from gpumem_magic.renderers.inventory import inventory_document
from gpumem_magic.renderers.out_of_memory import recovery_document
from gpumem_magic.renderers.report import report_document, summary_line
from gpumem_magic.values.answer import Answer
from gpumem_magic.values.assessment import Assessment, Change, RulePages
from gpumem_magic.values.comparison import Comparison
from gpumem_magic.values.forecast import Fit, Fits, Forecast
from gpumem_magic.values.inventory import Breakdown, Breakdowns, Holding, Inventory, Recovery
from gpumem_magic.values.oom_text import Explanation
from gpumem_magic.values.report import Report, Reports

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T", bound=Answer)

_COLUMNS = (
    *("kind", "name", "size", "count", "category", "shape", "dtype", "cell", "line", "also"),
    *("unneeded", "newest"),
)


@dataclass(frozen=True)
class Form(Generic[T]):
    """How one kind of answer looks.

    document: what it says. rows: what a .csv has of it; None for an answer without such rows.
    """

    document: Callable[[T], Document]
    rows: Callable[[T], Sequence[Holding]] | None = None

    def text(self, answer: T) -> str:
        """The answer for a terminal of 80 columns."""
        return terminal.printed(self.document(answer))

    def html(self, answer: T) -> Markup:
        """The answer as one <div> with inline styles."""
        return html.printed(self.document(answer))

    def plain(self, answer: T) -> dict[str, Any]:
        """The answer as plain values, with the format number and what it is."""
        return {"format": FORMAT, "what": type(answer).__name__.lower(), **encode(answer)}

    def files(self, answer: T) -> Files:
        """What it can be saved as, by suffix."""
        files: Files = {
            ".json": lambda: json.dumps(self.plain(answer), allow_nan=False),
            ".html": lambda: page((), above=self.html(answer)),
            ".txt": lambda: self.text(answer) + "\n",
        }
        if (rows := self.rows) is not None:
            files[".csv"] = lambda: _csv(rows(answer))
        return files

    def save(self, answer: T, path: str | os.PathLike[str]) -> None:
        """Write the answer in the form that the suffix says. Raises ValueError for another one."""
        write(Path(path), self.files(answer))


@dataclass(frozen=True)
class ReportsForm(Form[T]):
    """Of an answer that is reports and something about all of them.

    reports: those. values: it as plain values. more: what a .json has beside the reports.
    """

    reports: Callable[[T], Sequence[Report]] = lambda answer: ()
    values: Callable[[T], dict[str, Any]] = lambda answer: {}
    more: Callable[[T], Mapping[str, Any]] = lambda answer: {}
    headed: bool = True

    def plain(self, answer: T) -> dict[str, Any]:
        """As in Form."""
        return self.values(answer)

    def files(self, answer: T) -> Files:
        """As in Form; pictures show the reports' peaks."""
        reports = self.reports(answer)
        if not self.headed:
            return reports_files(reports)
        above = self.html(answer)
        return reports_files(reports, self.text(answer), above, self.more(answer))


class ReportForm(Form[Report]):
    """Of one report."""

    def plain(self, answer: Report) -> dict[str, Any]:
        """As in Form."""
        return to_dict(answer)

    def files(self, answer: Report) -> Files:
        """As in Form; pictures are its figure."""
        return report_files(answer)

    def figure(self, report: Report) -> Figure:
        """The timeline as a picture."""
        from gpumem_magic.renderers.figure.timeline import timeline_figure

        return timeline_figure(report)

    def summary(self, report: Report) -> str:
        """Its name and its numbers, in one line."""
        return f"{wording.title(report)}: {summary_line(report)}"

    def read(self, data: Mapping[str, Any]) -> Report:
        """The report that `plain` made `data` of. Raises ValueError that says what is wrong."""
        return from_dict(data)


def _largest_form(fits: Callable[[T], Sequence[Fit]]) -> ReportsForm[T]:
    return ReportsForm(
        document=lambda answer: largest_document(fits(answer)),
        reports=lambda answer: [report for one in fits(answer) for report in reports_of(one)],
        values=lambda answer: largest_to_dict(fits(answer)),
        more=lambda answer: {"fits": [facts(one) for one in fits(answer)]},
    )


def _csv(holdings: Sequence[Holding]) -> str:
    rows = map(encode, holdings)
    return written((_COLUMNS, *([_cell(row[column]) for column in _COLUMNS] for row in rows)))


def _cell(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


FORMS: Mapping[type[Answer], Form[Any]] = MappingProxyType(
    {
        Report: ReportForm(report_document),
        Reports: ReportsForm(
            document=lambda all_: history_document(all_.reports),
            reports=lambda all_: all_.reports,
            values=lambda all_: all_to_dict(all_.reports),
            headed=False,
        ),
        Forecast: ReportsForm(
            document=lambda forecast: cards_document(forecast.reports),
            reports=lambda forecast: forecast.reports,
            values=lambda forecast: all_to_dict(forecast.reports),
        ),
        Fit: _largest_form(lambda fit: [fit]),
        Fits: _largest_form(lambda fits: fits.fits),
        Comparison: Form(comparison_document),
        Inventory: Form(inventory_document, lambda inventory: inventory.holdings),
        Recovery: Form(recovery_document, lambda recovery: recovery.holdings),
        Breakdown: Form(lambda one: breakdowns_document([one]), lambda one: one.parts),
        Breakdowns: Form(
            lambda several: breakdowns_document(several.breakdowns),
            lambda several: [part for one in several.breakdowns for part in one.parts],
        ),
        Explanation: Form(explained_document),
        Assessment: Form(assessment_document),
        Change: Form(change_document),
        RulePages: Form(pages_document),
    }
)
