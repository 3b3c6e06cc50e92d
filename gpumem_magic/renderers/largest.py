"""The largest value of a variable with which a cell fits, as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gpumem_magic.renderers import pieces, wording
from gpumem_magic.renderers.cards import below_html, below_text, entries_html, entries_text
from gpumem_magic.renderers.columns import WIDTH, fit
from gpumem_magic.renderers.json import all_to_dict
from gpumem_magic.renderers.markup import ROOT, Markup, element
from gpumem_magic.renderers.text import notes_rows
from gpumem_magic.renderers.verdict import Entry
from gpumem_magic.report import Report
from gpumem_magic.units import format_bytes


class Found(Protocol):
    """What a search for the largest value gives (predict.Fit)."""

    @property
    def name(self) -> str:
        """The variable."""

    @property
    def value(self) -> int:
        """Its largest value that fits, 0 for none."""

    @property
    def report(self) -> Report | None:
        """The cell with that value."""

    @property
    def next_report(self) -> Report | None:
        """The cell with the next value."""

    @property
    def runs(self) -> int:
        """Dry runs that were made."""

    @property
    def exact(self) -> bool:
        """Whether `value` and the one above it were both tried."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user."""


def largest_text(found: Sequence[Found]) -> str:
    """What was found on each card, for a terminal of 80 columns."""
    rows = [fit(headline(one), WIDTH) for one in found]
    for one in found:
        name = wording.visible(one.name)
        rows += ["", *([_card(one)] if len(found) > 1 else [])]
        rows += [*entries_text(name, _entries(one)), *_remarks(one)]
    return "\n".join([*rows, *below_text([r for one in found for r in reports_of(one)])])


def largest_html(found: Sequence[Found]) -> str:
    """The same as one <div> with inline styles."""
    large = "font-size:1.3em;font-weight:600"
    return element(
        "div",
        *(element("div", headline(one), style=large) for one in found),
        *(_table(one) for one in found),
        below_html([report for one in found for report in reports_of(one)]),
        style=ROOT,
    )


def _table(one: Found) -> Markup:
    caption = f"At the peak, on {_card(one)}"
    remarks = [pieces.small(text) for text in (_effort(one), *one.notes)]
    return element("div", entries_html(caption, one.name, _entries(one)), *remarks)


def headline(one: Found) -> str:
    """ "The largest batch_size that fits a Tesla T4 (14.74 GiB) is 96"."""
    name, card = wording.visible(one.name), _card(one)
    if not one.value:
        return f"No {name} fits: 1 is too large for {card}"
    if not one.exact:
        return f"The largest {name} found to fit {card} is {one.value}"
    probably = "probably " if any(report.flow_guessed for report in reports_of(one)) else ""
    return f"The largest {name} that {probably}fits {card} is {one.value}"


def reports_of(one: Found) -> tuple[Report, ...]:
    """The predictions at the value and above it, as far as there are."""
    return tuple(report for report in (one.report, one.next_report) if report)


def facts(one: Found) -> dict[str, Any]:
    """What was found, without its reports, as plain values."""
    reports = reports_of(one)
    return {
        "device": reports[0].device.name if reports else None,
        "name": one.name,
        "value": one.value,
        "exact": one.exact,
        "runs": one.runs,
        "notes": list(one.notes),
    }


def largest_to_dict(found: Sequence[Found]) -> dict[str, Any]:
    """All of it as plain values, with a format number; the reports stand one after the other."""
    reports = [report for one in found for report in reports_of(one)]
    return {**all_to_dict(reports), "fits": [facts(one) for one in found]}


def _entries(one: Found) -> tuple[Entry, ...]:
    return tuple(Entry(_value(one, report), report) for report in reports_of(one))


def _value(one: Found, report: Report) -> str:
    """What the variable was in a report: "97" of the report "batch_size = 97"."""
    return wording.title(report).removeprefix(f"{wording.visible(one.name)} = ")


def _remarks(one: Found) -> list[str]:
    return [f"{_effort(one)}", *notes_rows(one.notes)]


def _effort(one: Found) -> str:
    return f"{one.runs} dry run{'' if one.runs == 1 else 's'}"


def _card(one: Found) -> str:
    device = next((report.device for report in reports_of(one)), None)
    if device is None:
        return "the card"
    return f"{wording.visible(device.name)} ({format_bytes(device.total)})"
