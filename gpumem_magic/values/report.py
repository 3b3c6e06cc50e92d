"""The user's handle on one measured or predicted cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from gpumem_magic.values.advice import Advice
from gpumem_magic.values.answer import Answer, form_of
from gpumem_magic.values.findings import Block, CallNode, Level, Line, OutOfMemory, Timeline
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category, Cell, Device, Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gpumem_magic.renderers.forms import ReportForm


@dataclass(frozen=True, slots=True)
class Basis:
    """What a report was made of: all that was recorded, and every storage that lived."""

    recording: Recording
    lifetimes: Lifetimes


@dataclass(frozen=True, slots=True)
class Report(Answer):
    """Where the memory of one cell went on one device. Sizes in bytes, times in seconds, read-only.

    A number that is not known is None and `unknown` says why ("peak.device_used": "...").
    context: bytes the CUDA context takes; others: bytes of other processes; both after the cell.
    output: what a predicted cell printed in its dry run. error_line: the line of the cell that
    raised `error`. flow_guessed: in a dry run, unknown values decided which way the cell went.
    call_tree: who allocated, line by line and module by module, empty where no module is known.
    advice: what to change, what saves most first. uncounted: bytes by which the peak may be
    higher in a convolution, on a card that is not real; likely: by which it likely is. eager: the
    peak of a predicted cell that compiles (torch.compile) as its code is written, on a card that
    never runs out of memory; None where nothing was compiled. basis: the events themselves, which
    only a memory snapshot (`save("x.pickle")`) and comparisons need; None where events are missing,
    and in reports that were loaded from a .json or are older than those that the history keeps
    whole.
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
    call_tree: tuple[CallNode, ...] = ()
    advice: tuple[Advice, ...] = ()
    uncounted: int = 0
    likely: int = 0
    eager: Level | None = None
    basis: Basis | None = field(default=None, repr=False, compare=False)

    @property
    def free_at_peak(self) -> int | None:
        """Bytes of the card that stay free at the peak; None where it is not known."""
        used = self.peak.in_use
        return None if used is None else max(self.device.total - used, 0)

    @property
    def is_tight(self) -> bool:
        """Whether less stays free than `uncounted`."""
        return bool(self.uncounted) and (self.free_at_peak or 0) < self.uncounted

    def plot(self) -> Figure:
        """The timeline as a matplotlib Figure; pyplot is not touched."""
        return report_form().figure(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The report that `to_dict` made `data` of. Raises ValueError that says what is wrong."""
        return report_form().read(data)

    def __repr__(self) -> str:
        return f"<Report {report_form().summary(self)}>"


@dataclass(frozen=True, slots=True)
class Reports(Answer):
    """Several reports, in order."""

    reports: tuple[Report, ...]


def report_form() -> ReportForm:
    """How a report looks, and how it is read back."""
    return cast("ReportForm", form_of(Report))
