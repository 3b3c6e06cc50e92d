"""The user's handle on one measured or predicted cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from gpumem_magic.values.advice import Advice
from gpumem_magic.values.findings import Block, Level, Line, OutOfMemory, Timeline
from gpumem_magic.values.recording import Category, Cell, Device

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
        from gpumem_magic.renderers.figure.timeline import timeline_figure

        return timeline_figure(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything in the report as plain values, with a format number."""
        from gpumem_magic.renderers.formats.json import to_dict

        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The report that `to_dict` made `data` of. Raises ValueError that says what is wrong."""
        from gpumem_magic.renderers.formats.json import from_dict

        return from_dict(data)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the report as .json, .csv, .html, .txt, or its figure as .png or .svg.

        Raises ValueError for another suffix; a file that was there stays whole if anything fails.
        """
        from gpumem_magic.renderers.formats.files import save_report

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
