"""What is done with a measured cell: its source's recording is ended and analysed."""

from __future__ import annotations

import linecache
import os.path
import sys
from collections.abc import Collection, Mapping
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `import gpumem_magic` loads this file; numpy and torch wait for the first use
    from gpumem_magic.pipeline import Analysis
    from gpumem_magic.sources import Source
    from gpumem_magic.values.recording import Cell
    from gpumem_magic.values.report import Report


def finish(
    source: Source,
    cell: Cell,
    cells: Mapping[str, Cell],
    error: BaseException | None,
    name: str,
    ignore: Collection[str] = (),
) -> tuple[Analysis, ...]:
    """End the source's recording of `cell`; one Analysis per device, the most used first.

    name: what the reports are called. ignore: rules that give no advice.
    """
    from gpumem_magic.pipeline import analyse
    from gpumem_magic.sources.cuda.recorder import no_collection

    with no_collection():  # of a long cell there are millions of objects, and no garbage
        found = tuple(analyse(one, name, ignore) for one in source.stop(cell, cells, error))
        for each in found:
            source.remember(each.recording, each.trace)
    return found


class measure:  # noqa: N801 - reads as a verb: `with measure() as m:`
    """Measure a block of a script: `with measure() as m: ...`, then `m.report`.

    name: what the report is called (default: the file and line of the block). device: as for
    `%gpumem --device`; without a GPU the block runs on a virtual Tesla T4, in a notebook on the
    device that %gpumem has chosen. The report is there also when the block raises; its lines are
    those of the file, or the notebook cell, that holds the block. A block inside a measured cell or
    block just runs: it is part of that one's report. Raises ValueError for a device that does not
    exist, RuntimeError where none can be measured or the notebook has chosen another.
    """

    def __init__(self, name: str | None = None, device: str = "auto") -> None:
        self.name = name
        self.device = device
        self.reports: tuple[Report, ...] = ()

    @property
    def report(self) -> Report:
        """The report of the most used device. Raises RuntimeError before the block has ended."""
        if not self.reports:
            raise RuntimeError(
                "there is no report: it is made when the `with` block ends, and a block inside a "
                "measured cell or block has none of its own"
            )
        return self.reports[0]

    def __enter__(self) -> measure:
        from gpumem_magic.sources import ACTIVE, Active
        from gpumem_magic.sources.objects.namespaces import names_of

        caller = sys._getframe(1)
        self._outer = ACTIVE.get()
        if self._outer is not None and self._outer.recording:
            return self
        if self._outer is not None and self.device != "auto":
            raise RuntimeError("this notebook's device is chosen with %gpumem --device")
        self._source = self._outer.source if self._outer else _open(self.device)
        self._cell, self._name = _cell_of(caller), self.name or _place(caller)
        try:
            self._source.start(names_of(caller.f_globals))
        except BaseException:
            self._close()
            raise
        ACTIVE.set(Active(self._source, recording=True))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        from gpumem_magic.sources import ACTIVE

        if self._outer is not None and self._outer.recording:
            return
        try:
            found = finish(self._source, self._cell, {}, error, self._name)
            self.reports = tuple(each.report for each in found)
        finally:
            ACTIVE.set(self._outer)
            self._close()

    def _close(self) -> None:
        """Close what was opened for this block."""
        if self._outer is None:
            self._source.leave()
            self._source.close()


def _open(device: str) -> Source:
    from gpumem_magic.devices import choose_source

    source = choose_source(device)
    if source is None:
        raise RuntimeError(f"device {device!r} measures nothing; choose a card such as T4")
    source.enter()
    return source


def _cell_of(frame: FrameType) -> Cell:
    """The file, or notebook cell, that the frame runs in."""
    from gpumem_magic.values.recording import Cell

    filename = frame.f_code.co_filename
    return Cell("".join(linecache.getlines(filename, frame.f_globals)), filename)


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119 - fast import
