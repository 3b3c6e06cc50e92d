"""What the extension is doing in one shell: its device, the running measurement, the history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from gpumem_magic.advice import Advice
from gpumem_magic.devices import choose_source, resolve_device
from gpumem_magic.history import History
from gpumem_magic.magics.display import (
    Progress,
    has_one_page,
    level_line,
    show_brief,
    show_report,
    tell,
    warn,
)
from gpumem_magic.magics.faults import OFF, Faults, harmless
from gpumem_magic.magics.settings import GpuMem
from gpumem_magic.magics.shell_places import shell_roots
from gpumem_magic.measure import finish
from gpumem_magic.renderers.advice import offered
from gpumem_magic.renderers.wording import visible
from gpumem_magic.sources import ACTIVE, Active, Source
from gpumem_magic.sources.holders import take_inventory
from gpumem_magic.sources.holders.growth import Growth, held_by_name
from gpumem_magic.sources.interrupts import Interrupts
from gpumem_magic.sources.objects.namespaces import UserNames, names_of
from gpumem_magic.sources.stacks.callsite import CellFiles
from gpumem_magic.trace.lifetimes import find_large_storages
from gpumem_magic.units import format_bytes
from gpumem_magic.values.inventory import Growing
from gpumem_magic.values.recording import Cell
from gpumem_magic.values.report import Report

_NAMES = 3


class GrowthWatch:
    """Looks at the memory after each cell while it is active; a cell is known by its text."""

    def __init__(self) -> None:
        self._growth: Growth | None = None

    @property
    def active(self) -> bool:
        """Whether cells are watched."""
        return self._growth is not None

    def switch(self, on: bool) -> None:
        """Begin, from the next run of each cell on, or end and forget what was seen."""
        if on != self.active:
            self._growth = Growth() if on else None

    def look(self, shell: Any, source: Source, cell: Cell) -> None:
        """Say which names grew, now that another run of `cell` has ended."""
        if self._growth is None:
            return
        inventory = take_inventory(source, shell.user_ns, shell_roots(shell))
        self._growth.note(cell.source, held_by_name(inventory.holdings))
        growing = self._growth.growing(cell.source)
        for one in growing[:_NAMES]:
            tell(growth_line(one, cell))
        if len(growing) > _NAMES:
            tell(f"... and {len(growing) - _NAMES} more names grew")


def growth_line(growing: Growing, cell: Cell) -> str:
    """Who grew by how much over how many runs, and the line that adds, if it is known."""
    sizes = growing.sizes
    said = (
        f"{visible(growing.name)} grew in each of the last {len(sizes)} runs of this cell, "
        f"from {format_bytes(sizes[0])} to {format_bytes(sizes[-1])}"
    )
    rows = cell.source.splitlines()
    if growing.line is None or not 0 < growing.line <= len(rows):
        return said
    return f"{said}: line {growing.line}, {visible(rows[growing.line - 1].strip())}"


@dataclass(frozen=True, slots=True)
class Offer:
    """Advice as it was shown, in the order of its numbers, and the text of the cell it is about."""

    source: str
    advice: tuple[Advice, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """How a cell or a statement is to be measured.

    name: of the report; None for the cell's number.
    device: the one to go over to; None for the one in use.
    quiet: show nothing. no_plot: show no figure. kept: put the report into the history.
    output, save: the variable and the file that the report goes to.
    ignore: rules that give no advice.
    brief: show one line instead of the report, as `--on` does.
    """

    name: str | None = None
    device: str | None = None
    quiet: bool = False
    output: str | None = None
    save: Path | None = None
    no_plot: bool = False
    ignore: tuple[str, ...] = ()
    brief: bool = False
    kept: bool = True


class Observer(Protocol):
    """Who wants to know when cells run. Called in the shell's thread; must be quick."""

    def cell_began(self) -> None:
        """A cell runs from now on, measured or not."""

    def cell_ended(self) -> None:
        """It has ended, and its report, if there is one, is in the history."""

    def unloaded(self) -> None:
        """The extension goes."""


class Monitor:
    """Owns the source of one shell, and measures one piece of code at a time with it."""

    def __init__(self, shell: InteractiveShell, settings: GpuMem) -> None:
        self.shell = shell
        self.settings = settings
        self.history = History()
        self.source: Source | None = None
        self.files = CellFiles(shell)
        self.names = UserNames()
        self.watch = GrowthWatch()
        self.faults = Faults()
        self.interrupts = Interrupts()
        self.offered: Offer | None = None
        self.last_report: Report | None = None
        self.why_off = ""
        self.measuring = False
        self.predicting = False
        self.running = False
        self.observers: list[Observer] = []
        self._name = "off"
        self._inside = False
        self._progress: Progress | None = None
        self._figures: Any = None  # a panel.front.Figures, where one was needed

    def open(self) -> None:
        """Start on the device of the settings; without torch stay off and remember why."""
        try:
            self._start_on(self.settings.device)
        except ModuleNotFoundError as error:
            self.why_off = str(error)
        self.settings.on_device(self.choose)

    def choose(self, name: str) -> None:
        """Go over to another device. Raises UsageError while code is being measured.

        Another name of the same device changes nothing: what is on a virtual card stays there.
        """
        if resolve_device(name) == resolve_device(self._name):
            self._name = name
            return
        if self.measuring:
            raise UsageError("%gpumem: change the device in a cell that is not being measured")
        inside, before = self._inside, self._name
        self._tell_of_tensors()
        self.close()
        try:
            self._start_on(name)
        except Exception:
            self._start_on(before)
            raise
        finally:
            if inside:
                self.enter()

    def _start_on(self, name: str) -> None:
        self.source = choose_source(name)
        self.why_off = "" if self.source else "the device is off; %gpumem --device auto turns it on"
        self._name = name

    def _tell_of_tensors(self) -> None:
        source = self.source
        if source is not None and source.device.virtual and source.level().allocated:
            warn(f"what was on the virtual {source.device.name} is in host memory now")

    def close(self) -> None:
        """Restore whatever the source replaced."""
        self.leave()
        source, self.source = self.source, None
        if source is not None:
            source.close()

    def enter(self) -> None:
        """Let the source act on the code that runs from now on; more than once is once."""
        if self._inside:
            return
        self._inside = True  # also where it fails half-way: `leave` then ends that half
        if self.source is not None:
            self.source.enter()
            ACTIVE.set(Active(self.source, recording=False))

    def leave(self) -> None:
        """End what `enter` began."""
        if self._inside:
            self._inside = False
            ACTIVE.set(None)
            if self.source is not None:
                self.source.leave()

    def end_cell(self) -> None:
        """Leave nothing on behind a cell."""
        try:
            self.discard()
        finally:
            self.leave()

    def cell_began(self) -> None:
        """Tell the observers that a cell runs."""
        self.running = True
        for observer in self.observers:
            with self.faults.kept_away("following the cell"):
                observer.cell_began()

    def cell_ended(self) -> None:
        """Tell the observers that no cell runs any more."""
        self.running = False
        for observer in self.observers:
            with self.faults.kept_away("following the cell"):
                observer.cell_ended()

    def unload(self) -> None:
        """Let go of observers and device."""
        observers, self.observers = self.observers, []
        for observer in observers:
            with harmless("closing the panel"):
                observer.unloaded()
        if self._figures is not None:
            self._figures.close()
        self.close()
        self.interrupts.remove()

    def start(self, request: Request) -> bool:
        """Begin to measure; False where there is no device to measure."""
        if request.device not in (None, self.settings.device):
            self.settings.device = request.device
        if self.source is None:
            warn(f"not measured: {self.why_off}")
            return False
        if self.faults.too_many:
            if not (request.quiet or request.brief):
                warn(f"not measured: {OFF}")
            return False
        self._start_recording(self.source)
        if not request.quiet:
            with self.faults.kept_away("following the memory"):
                self._follow(self.source)
        return True

    def _start_recording(self, source: Source) -> None:
        try:
            source.start(names_of(self.shell.user_ns, own=self.names))
        except BaseException:
            self._drop_recording()
            raise
        self.measuring = True
        ACTIVE.set(Active(source, recording=True))

    def stop(self, request: Request, cell: Cell, error: BaseException | None) -> tuple[Report, ...]:
        """End what `start` began; put its reports into the history, a file, a variable."""
        self._ended()
        try:
            return self._reports(request, cell, error)
        except BaseException:
            self._drop_recording()
            raise

    def discard(self) -> None:
        """End what `start` began, without report, if `stop` did not."""
        if self.measuring:
            self._ended()
            self._drop_recording()

    def _ended(self) -> None:
        self.measuring = False
        source = self.source if self._inside else None
        ACTIVE.set(Active(source, recording=False) if source is not None else None)
        progress, self._progress = self._progress, None
        if progress is not None:
            with self.faults.kept_away("following the memory"):
                progress.stop()

    def _drop_recording(self) -> None:
        """Whatever the source did begin; nothing for one that has ended."""
        if self.source is not None:
            with suppress(Exception):
                self.source.stop(Cell("", ""), {}, None)

    def _reports(
        self, request: Request, cell: Cell, error: BaseException | None
    ) -> tuple[Report, ...]:
        if self.source is None:
            return ()
        name = request.name or (f"In[{cell.number}]" if cell.number else "")
        ignore = {*request.ignore, *self.settings.ignored}
        found = finish(self.source, cell, self.files.cells(), error, name, ignore)
        reports = tuple(each.report for each in found)
        for failed in {each.failed for each in found if each.failed}:
            warn(failed)
        if request.kept:
            self.take_note(reports, shown=not request.brief)
        for each in found if request.kept else ():
            self.history.append(each.report, find_large_storages(each.recording, each.trace))
        if request.output and reports:
            self.shell.user_ns[request.output] = reports[0]
        if request.save and reports:
            with harmless(f"saving to {request.save}"):
                reports[0].save(request.save)
        return reports

    def show(self, request: Request, reports: Sequence[Report]) -> None:
        """Show what `request` wants to see of its reports."""
        plot = self.settings.plot and not request.no_plot
        for report in reports if not request.quiet else ():
            if request.brief:
                show_brief(self.shell, report)
            else:
                self.show_report(report, plot)

    def show_report(self, report: Report, plot: bool) -> None:
        """Show a report in full, with its figure if `plot`, which answers where the page can."""
        show_report(self.shell, report, plot)
        if not (plot and has_one_page(self.shell)):
            return
        with self.faults.kept_away("making the figure answer"), suppress(ImportError):
            from gpumem_magic.panel.front import Figures

            self._figures = self._figures or Figures(self.history)
            self._figures.shown(report)

    def take_note(self, reports: Sequence[Report], *, shown: bool = True) -> None:
        """Remember the last cell; and its advice, under the numbers that it is shown with."""
        if reports:
            self.last_report = reports[0]
        advised = next((report for report in reports if report.advice), None)
        if shown and advised is not None:
            self.offer(advised, offered(advised.advice))

    def offer(self, report: Report, advice: tuple[Advice, ...]) -> None:
        """Remember advice under the numbers that it is shown with; also that there was none."""
        self.last_report = report
        self.offered = Offer(report.cell.source, advice)

    @contextmanager
    def prediction(self, say: Callable[[float], str] | None = None) -> Iterator[None]:
        """Around dry runs, which change nothing here: code that would be measured just runs.

        say: what the progress line says after so many seconds; None: there is no line.
        """
        measuring, self.measuring, self.predicting = self.measuring, True, True
        try:
            with self.following(say):
                yield
        finally:
            self.measuring, self.predicting = measuring, False

    @contextmanager
    def following(self, say: Callable[[float], str] | None) -> Iterator[None]:
        """Show a progress line around what may take long. say: as for `prediction`."""
        progress = self._follower(say) if say else None
        try:
            if progress is not None:
                progress.start()
            yield
        finally:
            if progress is not None:
                progress.stop()

    def _follow(self, source: Source) -> None:
        self._progress = self._follower(level_line(source.level))
        if self._progress is not None:
            self._progress.start()

    def _follower(self, say: Callable[[float], str]) -> Progress | None:
        # A terminal or a log would keep every update as another line.
        if not self.settings.progress or not hasattr(self.shell, "kernel"):
            return None
        return Progress(say, self.shell.display_pub, self.settings.interval)
