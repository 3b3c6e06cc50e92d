"""The whole pipeline on one screen: source -> Recording -> Trace -> Report."""

from __future__ import annotations

import linecache
import os.path
import sys
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `import gpumem_magic` loads this file; numpy and torch wait for the first use
    from gpumem_magic.events import Cell
    from gpumem_magic.report import Report
    from gpumem_magic.sources import Source


def finish(
    source: Source,
    cell: Cell,
    cells: Mapping[str, Cell],
    error: BaseException | None,
    name: str,
) -> tuple[Report, ...]:
    """End the source's recording of `cell`; one Report per device, the most used first."""
    from gpumem_magic.report import build_report
    from gpumem_magic.trace import build_trace

    recordings = source.stop(cell, cells, error)
    return tuple(build_report(recording, build_trace(recording), name) for recording in recordings)


class measure:  # noqa: N801 - reads as a verb: `with measure() as m:`
    """Measure a block of a script: `with measure() as m: ...`, then `m.report`.

    name: what the report is called (default: the file and line of the block). device: as for
    `%gpumem --device`; without a GPU the block runs on a virtual Tesla T4. The report is there also
    when the block raises. Its lines are those of the file, or the notebook cell, that holds the
    block. Raises ValueError for a device that does not exist, RuntimeError where there is none to
    measure.
    """

    def __init__(self, name: str | None = None, device: str = "auto") -> None:
        self.name = name
        self.device = device
        self.reports: tuple[Report, ...] = ()

    @property
    def report(self) -> Report:
        """The report of the most used device. Raises RuntimeError before the block has ended."""
        if not self.reports:
            raise RuntimeError("there is no report yet: it is made when the `with` block ends")
        return self.reports[0]

    def __enter__(self) -> measure:
        from gpumem_magic.sources import choose_source
        from gpumem_magic.sources.namespaces import names_of

        caller = sys._getframe(1)
        source = choose_source(self.device)
        if source is None:
            raise RuntimeError(f"device {self.device!r} measures nothing; choose a card such as T4")
        self._source, self._cell = source, _cell_of(caller)
        self._name = self.name or _place(caller)
        source.enter()
        source.start(names_of(caller.f_globals))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.reports = finish(self._source, self._cell, {}, error, self._name)
        finally:
            self._source.leave()
            self._source.close()


def _cell_of(frame: FrameType) -> Cell:
    """The file, or notebook cell, that the frame runs in."""
    from gpumem_magic.events import Cell

    filename = frame.f_code.co_filename
    return Cell("".join(linecache.getlines(filename, frame.f_globals)), filename)


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119 - fast import
