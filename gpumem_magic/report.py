"""The user's handle on one measured or predicted cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from gpumem_magic.advice.rule import Advice
from gpumem_magic.events import Category, Cell, Device, Reading, Recording
from gpumem_magic.trace.findings import Block, Level, Line, OutOfMemory, Timeline, Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Report:
    """Where the memory of one cell went on one device. Sizes in bytes, times in seconds, read-only.

    A number that is not known is None and `unknown` says why ("peak.device_used": "...").
    context: bytes the CUDA context takes; others: bytes of other processes; both after the cell.
    output: what a predicted cell printed in its dry run. error_line: the line of the cell that
    raised `error`. flow_guessed: in a dry run, unknown values decided which way the cell went.
    advice: what to change, what saves most first.
    """

    name: str
    cell: Cell
    device: Device
    predicted: bool
    started: float
    seconds: float
    before: Level
    peak: Level
    after: Level
    context: int | None
    others: int | None
    lines: tuple[Line, ...]
    blocks: tuple[Block, ...]
    at_peak: Mapping[Category, int]
    at_end: Mapping[Category, int]
    timeline: Timeline
    oom: OutOfMemory | None
    retries: int
    error: str | None
    unknown: Mapping[str, str]
    notes: tuple[str, ...]
    output: str = ""
    error_line: int | None = None
    flow_guessed: bool = False
    advice: tuple[Advice, ...] = ()

    def text(self) -> str:
        """The report for a terminal of 80 columns."""
        from gpumem_magic.renderers.text import report_text

        return report_text(self)

    def plot(self) -> Figure:
        """The timeline as a matplotlib Figure; pyplot is not touched."""
        from gpumem_magic.renderers.figure import timeline_figure

        return timeline_figure(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything in the report as plain values, with a format number."""
        from gpumem_magic.renderers.json import to_dict

        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The report that `to_dict` made `data` of. Raises ValueError that says what is wrong."""
        from gpumem_magic.renderers.json import from_dict

        return from_dict(data)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the report as .json, .csv, .html, .txt, or its figure as .png or .svg.

        Raises ValueError for another suffix; a file that was there stays whole if anything fails.
        """
        from gpumem_magic.renderers.files import save_report

        save_report(self, path)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        from gpumem_magic.renderers.text import summary_line
        from gpumem_magic.renderers.wording import title

        return f"<Report {title(self)}: {summary_line(self)}>"

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        from gpumem_magic.renderers import mimebundle

        return mimebundle(self)


def build_report(
    recording: Recording, trace: Trace, name: str, advice: tuple[Advice, ...] = ()
) -> Report:
    """Put what was recorded, what it means and what to change into one value.

    Of the memory in use after the cell, `context` is this process's share beyond PyTorch's own, and
    `others` what no share of this process explains; each is None, with its reason, where a reading
    it needs is not known.
    """
    before, after = recording.before, recording.after
    context = _difference(after.process_used, after.reserved)
    others = _difference(after.device_used, after.process_used)
    unknown = _unread("before", before) | _unread("after", after) | dict(trace.unknown)
    if context is None:
        unknown["context"] = _reason(after, "process_used", "reserved")
    if others is None:
        unknown["others"] = _reason(after, "device_used", "process_used")
    return Report(
        name=name,
        cell=recording.cell,
        device=recording.device,
        predicted=recording.predicted,
        started=recording.started,
        seconds=recording.seconds,
        before=trace.before,
        peak=trace.peak,
        after=trace.after,
        context=context,
        others=others,
        lines=trace.lines,
        blocks=trace.blocks,
        at_peak=trace.at_peak,
        at_end=trace.at_end,
        timeline=trace.timeline,
        oom=trace.oom,
        retries=recording.retries,
        error=recording.error,
        unknown=unknown,
        notes=recording.notes,
        output=recording.output,
        error_line=recording.error_line,
        flow_guessed=recording.flow_guessed,
        advice=advice,
    )


def _difference(whole: int | None, part: int | None) -> int | None:
    """What of `whole` is not `part`; readings a moment apart may cross, which leaves nothing."""
    return None if whole is None or part is None else max(whole - part, 0)


def _unread(moment: str, reading: Reading) -> dict[str, str]:
    """Why each size of a reading that a Level shows is not known, by its name in the report."""
    shown = ("allocated", "reserved", "device_used")
    missing = [size for size in shown if getattr(reading, size) is None]
    return {f"{moment}.{size}": _reason(reading, size) for size in missing}


def _reason(reading: Reading, *sizes: str) -> str:
    """Why the first of these sizes that the reading lacks is not known."""
    missing = next(size for size in sizes if getattr(reading, size) is None)
    return reading.unknown.get(missing, f"{missing} was not read")
