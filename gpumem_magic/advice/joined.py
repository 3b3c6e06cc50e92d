"""A cell and those before it whose functions ran in it, as one text: what a function is given comes
from the cell that calls it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpumem_magic.advice.code import Code
from gpumem_magic.trace.cell_flow import Parse, parse_cell, python_of
from gpumem_magic.trace.lifetimes import with_lines_of
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.recording import Cell, Frame, Recording


class JoinedCode(Code):
    """The text of several cells. Its lines are called by the cells that they are of, and nothing
    of it is written out."""

    def __init__(self, cells: list[Cell], filename: str, known: Mapping[str, str]) -> None:
        self.begins = [0]
        texts = [python_of(cell) for cell in cells]
        for text in texts:
            self.begins.append(self.begins[-1] + text.count("\n") + 1)
        self._titles = [cell.title for cell in cells[:-1]]
        super().__init__(Cell("\n".join(texts), filename), known)

    def place(self, line: int) -> str:
        """What a line of the text is called: "line 3", or "In[2] line 3" of an earlier cell."""
        at = bisect_right(self.begins, line - 1) - 1
        own = f"line {line - self.begins[at]}"
        return f"{self._titles[at]} {own}" if at < len(self._titles) else own


@dataclass(frozen=True, slots=True)
class Texts:
    """How the texts of cells are read. parse: makes the tree of one. join: makes one text of the
    cell and the earlier ones whose functions ran (`join_cells`)."""

    parse: Parse = parse_cell
    join: Callable[[], tuple[JoinedCode, Trace] | None] = lambda: None


def join_cells(recording: Recording, trace: Trace) -> tuple[JoinedCode, Trace] | None:
    """The cell joined to the earlier ones, and the trace by the lines of that text; None where only
    its own code ran, or a text of them is no Python."""
    ran = {frame.filename for stack in trace.lives.stacks for frame in stack}
    earlier = [name for name in recording.cells if name in ran - {recording.cell.filename}]
    earlier.sort(key=lambda name: recording.cells[name].number or 0)
    cells = [*map(recording.cells.__getitem__, earlier), recording.cell]
    if not earlier or any("\r" in one.source or parse_cell(one) is None for one in cells):
        return None
    code = JoinedCode(cells, recording.cell.filename, recording.names.known)
    first = dict(zip([*earlier, recording.cell.filename], code.begins, strict=False))

    def moved(frame: Frame) -> Frame:
        at = first.get(frame.filename)
        return frame if at is None else replace(frame, filename=name, line=frame.line + at)

    name = code.cell.filename
    stacks = tuple(tuple(map(moved, stack)) for stack in recording.stacks)
    joined = replace(recording, cell=code.cell, cells={}, stacks=stacks)
    return code, replace(trace, lifetimes=with_lines_of(joined, trace.lives))
