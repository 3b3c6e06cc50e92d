"""The history as a list: which report was what, one line each."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.document import Document, Line, Row, Section, Span, Style, Table
from gpumem_magic.units import format_bytes
from gpumem_magic.values.report import Report

_HEAD = ("report", "peak", "kept or freed", "time")


def history_document(reports: Sequence[Report]) -> Document:
    """A row for each report."""
    if not reports:
        return (Section((Line("The history is empty."),)),)
    rows = tuple(_row(number, report) for number, report in enumerate(reports, 1))
    return (Section((Table("Measured so far", _HEAD, rows),)),)


def _row(number: int, report: Report) -> Row:
    """The numbers, and what tells reports apart: name, device, whether the cell failed."""
    state = "out of memory, " if report.oom else ""
    device = Span(f" ({state}{wording.device_phrase(report)})", Style.FAINT)
    return Row(
        (
            (f"{number}  {wording.title(report)}", device),
            format_bytes(report.peak.allocated),
            wording.kept_phrase(report),
            wording.format_seconds(report.seconds),
        )
    )
