"""Whether a predicted cell fits its card, in the words that text and HTML share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpumem_magic.renderers import wording
from gpumem_magic.report import Report
from gpumem_magic.trace.findings import OutOfMemory
from gpumem_magic.units import format_bytes

GUESSED = "The way through the cell was guessed: values that a dry run does not know decided it."


@dataclass(frozen=True, slots=True)
class Entry:
    """One prediction among others, and what it is called beside them."""

    label: str
    report: Report


def fits(report: Report) -> bool | None:
    """Whether the cell fits; None where another error ended the prediction."""
    if report.oom:
        return False
    return None if report.error else True


def free(report: Report) -> int | None:
    """Bytes of the card that stay free at the peak."""
    used = wording.full(report, report.peak)
    return None if used is None else max(report.device.total - used, 0)


def short(oom: OutOfMemory) -> int | None:
    """Bytes that the card lacked; None where that is not known, or not why it failed."""
    wanted = oom.requested if oom.segment is None else oom.segment
    if oom.device_free is None or wanted is None or oom.fragmented:
        return None
    return wanted - oom.device_free if wanted > oom.device_free else None


def word(report: Report) -> str:
    """ "fits", "does not fit" or "ends early"; "probably" where the way was guessed."""
    found = {True: "fits", False: "does not fit", None: "ends early"}[fits(report)]
    return f"probably {found}" if report.flow_guessed and not _raised(report) else found


def verdict(report: Report) -> str:
    """The headline of a prediction: fits or not, and by how much."""
    if _raised(report):
        where = f" in line {report.error_line}" if report.error_line else ""
        return f"The prediction ends{where}: {wording.visible(report.error or '')[:300]}"
    said = word(report)
    return f"{said[0].upper()}{said[1:]}: {by_how_much(report)}"


def by_how_much(report: Report) -> str:
    """What stays free of the card or what was missing and where, as far as it is known."""
    used = format_bytes(wording.full(report, report.peak))
    total = format_bytes(report.device.total)
    if report.oom:
        return f"out of memory{_place(report.oom.line)}{_lack(report.oom)}"
    if report.error:
        return f"up to there {used} of {total} in use at the peak"
    return f"{used} of {total} in use at the peak, {format_bytes(free(report))} free"


def failing_line(report: Report) -> int | None:
    """The line of the cell where memory runs out, or where an error ends the prediction."""
    return report.oom.line if report.oom else report.error_line


def output_phrase(report: Report) -> str:
    """ "12 lines of output", for what the dry run printed."""
    count = len(report.output.splitlines())
    return f"{count} line{'' if count == 1 else 's'} of output of the dry run"


def notes_of(reports: Sequence[Report]) -> tuple[str, ...]:
    """What the reports say below their numbers, every sentence once."""
    return tuple(dict.fromkeys(note for report in reports for note in report.notes))


def composition(report: Report) -> str:
    """ "at the peak: parameter 1.20 GiB, ...", or when memory ran out."""
    moment, held = "at the peak", report.at_peak
    if report.oom:
        moment, held = wording.held_at_failure(report, report.oom)
    parts = [f"{kind.value} {format_bytes(size)}" for kind, size in wording.shown(held)]
    return f"{moment}: {', '.join(parts)}" if parts else ""


def _raised(report: Report) -> bool:
    """Whether an error other than out of memory ended the prediction."""
    return fits(report) is None


def _place(line: int | None) -> str:
    return f" in line {line}" if line else ""


def _lack(oom: OutOfMemory) -> str:
    missing = short(oom)
    if missing is not None:
        return f", at least {format_bytes(missing)} short"
    return "; the free memory is in pieces that are too small" if oom.fragmented else ""
