"""Reports as a table for spreadsheets: one row each. Sizes are bytes, empty where unknown."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from gpumem_magic.renderers import wording
from gpumem_magic.values.report import Report

_LEVELS = tuple(
    (moment, size)
    for moment in ("before", "peak", "after")
    for size in ("allocated", "reserved", "device_used")
)
COLUMNS = (
    *("name", "cell", "device", "virtual", "predicted", "started", "seconds"),
    *(f"{moment}_{size}" for moment, size in _LEVELS),
    *("kept", "context", "others", "retries", "oom_requested", "peak_line", "peak_source", "error"),
    *("error_line", "fits", "flow_guessed", "output"),
)


def to_csv(reports: Sequence[Report]) -> str:
    """A heading and one row for each report; `started` is in UTC."""
    return written((COLUMNS, *map(_row, reports)))


def written(rows: Iterable[Iterable[object]]) -> str:
    """Rows as text."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows(map(_field, row) for row in rows)
    return buffer.getvalue()


def _row(report: Report) -> tuple[object, ...]:
    line = report.timeline
    number = int(line.line[line.peak]) if line.peak >= 0 else 0
    started = datetime.fromtimestamp(report.started, timezone.utc).isoformat(timespec="seconds")
    return (
        *(report.name, report.cell.number, report.device.name, report.device.virtual),
        *(report.predicted, started, report.seconds),
        *(getattr(getattr(report, moment), size) for moment, size in _LEVELS),
        *(wording.kept(report), report.context, report.others, report.retries),
        *(report.oom.requested if report.oom else None, number or None),
        *(wording.source_of(report, number), report.error, report.error_line),
        *(wording.fits(report) if report.predicted else None, report.flow_guessed, report.output),
    )


def _field(value: object) -> object:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front."""
    if not isinstance(value, str):
        return value
    text = wording.visible(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
