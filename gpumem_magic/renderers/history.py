"""The history as a list: which report was what, one line each."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.columns import WIDTH, left, right
from gpumem_magic.renderers.markup import ROOT, element, row, table
from gpumem_magic.units import format_bytes
from gpumem_magic.values.report import Report

_EMPTY = "The history is empty."


def history_text(reports: Sequence[Report]) -> str:
    """A heading and one line for each report."""
    if not reports:
        return _EMPTY
    rows = [f"{'':>4}  {left('report', 34)}{'peak':>12}{'kept or freed':>20}{'time':>8}"]
    rows += [_line(number, report) for number, report in enumerate(reports, 1)]
    return "\n".join(rows)


def _line(number: int, report: Report) -> str:
    numbers = right(format_bytes(report.peak.allocated), 12) + right(
        wording.kept_phrase(report), 20
    )
    tail = numbers + right(wording.format_seconds(report.seconds), 8)
    return f"{number:>4}  " + left(_name(report), WIDTH - 6 - len(tail)) + tail


def _name(report: Report) -> str:
    """What tells reports apart: the name, the device, and whether the cell failed."""
    state = "out of memory, " if report.oom else ""
    return f"{wording.title(report)} ({state}{wording.device_phrase(report)})"


def history_html(reports: Sequence[Report]) -> str:
    """The same as a table with inline styles."""
    if not reports:
        return element("div", _EMPTY)
    head = ("report", "peak", "kept or freed", "time", "device")
    rows = [
        row(
            f"{number}  {wording.title(report)}{' (out of memory)' if report.oom else ''}",
            format_bytes(report.peak.allocated),
            wording.kept_phrase(report),
            wording.format_seconds(report.seconds),
            wording.device_phrase(report),
        )
        for number, report in enumerate(reports, 1)
    ]
    return element("div", table("Measured so far", head, rows), style=ROOT)
