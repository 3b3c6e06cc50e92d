"""How every answer looks: its text, its HTML, its plain values, the files it is saved as."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.advice.html import assessment_html, change_html, pages_html
from gpumem_magic.renderers.advice.text import assessment_text, change_text, pages_text
from gpumem_magic.renderers.comparison import comparison_html, comparison_text
from gpumem_magic.renderers.explained import explained_html, explained_text
from gpumem_magic.renderers.forecast import (
    cards_html,
    cards_text,
    facts,
    largest_html,
    largest_text,
    largest_to_dict,
    reports_of,
)
from gpumem_magic.renderers.formats.csv import field
from gpumem_magic.renderers.formats.files import Files, page, report_files, reports_files, write
from gpumem_magic.renderers.formats.json import FORMAT, all_to_dict, encode, from_dict, to_dict
from gpumem_magic.renderers.history import history_html, history_text
from gpumem_magic.renderers.html import report_html
from gpumem_magic.renderers.inventory.html import inventory_html
from gpumem_magic.renderers.inventory.names import breakdowns_html, breakdowns_text
from gpumem_magic.renderers.inventory.text import inventory_text, recovery_html, recovery_text
from gpumem_magic.renderers.markup import Markup
from gpumem_magic.renderers.text import report_text, summary_line
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

    text: for a terminal of 80 columns. html: one <div> with inline styles.
    rows: what a .csv has of it; None for an answer without such rows.
    """

    text: Callable[[T], str]
    html: Callable[[T], str]
    rows: Callable[[T], Sequence[Holding]] | None = None

    def plain(self, answer: T) -> dict[str, Any]:
        """The answer as plain values, with the format number and what it is."""
        return {"format": FORMAT, "what": type(answer).__name__.lower(), **encode(answer)}

    def files(self, answer: T) -> Files:
        """What it can be saved as, by suffix."""
        files: Files = {
            ".json": lambda: json.dumps(self.plain(answer), allow_nan=False),
            ".html": lambda: page((), above=Markup(self.html(answer))),
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
        above = Markup(self.html(answer))
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
        text=lambda answer: largest_text(fits(answer)),
        html=lambda answer: largest_html(fits(answer)),
        reports=lambda answer: [report for one in fits(answer) for report in reports_of(one)],
        values=lambda answer: largest_to_dict(fits(answer)),
        more=lambda answer: {"fits": [facts(one) for one in fits(answer)]},
    )


def _csv(holdings: Sequence[Holding]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for holding in holdings:
        values = encode(holding)
        writer.writerow([_cell(values[column]) for column in _COLUMNS])
    return buffer.getvalue()


def _cell(value: object) -> object:
    return field(", ".join(map(str, value)) if isinstance(value, list) else value)


FORMS: Mapping[type[Answer], Form[Any]] = MappingProxyType(
    {
        Report: ReportForm(report_text, report_html),
        Reports: ReportsForm(
            text=lambda all_: history_text(all_.reports),
            html=lambda all_: history_html(all_.reports),
            reports=lambda all_: all_.reports,
            values=lambda all_: all_to_dict(all_.reports),
            headed=False,
        ),
        Forecast: ReportsForm(
            text=lambda forecast: cards_text(forecast.reports),
            html=lambda forecast: cards_html(forecast.reports),
            reports=lambda forecast: forecast.reports,
            values=lambda forecast: all_to_dict(forecast.reports),
        ),
        Fit: _largest_form(lambda fit: [fit]),
        Fits: _largest_form(lambda fits: fits.fits),
        Comparison: Form(comparison_text, comparison_html),
        Inventory: Form(inventory_text, inventory_html, lambda inventory: inventory.holdings),
        Recovery: Form(recovery_text, recovery_html, lambda recovery: recovery.holdings),
        Breakdown: Form(
            lambda one: breakdowns_text([one]),
            lambda one: breakdowns_html([one]),
            lambda one: one.parts,
        ),
        Breakdowns: Form(
            lambda several: breakdowns_text(several.breakdowns),
            lambda several: breakdowns_html(several.breakdowns),
            lambda several: [part for one in several.breakdowns for part in one.parts],
        ),
        Explanation: Form(explained_text, explained_html),
        Assessment: Form(assessment_text, assessment_html),
        Change: Form(change_text, change_html),
        RulePages: Form(pages_text, pages_html),
    }
)
