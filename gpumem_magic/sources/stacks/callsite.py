"""Which line of which cell, and which phase, a Python stack belongs to."""

from __future__ import annotations

import functools
import linecache
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Final, cast

from gpumem_magic.sources.stacks.frames import went_through
from gpumem_magic.values.recording import Cell, Frame, Phase, Stack

_NUMBERED: Final = re.compile(r"<ipython-input-(\d+)-")
_OURS: Final = ("%%gpumem", "%%gpucheck")
_CELL_MAGIC: Final = re.compile(r"%%(?!(?:gpumem|gpucheck)\b)\w")
_MAGIC_BODIES: Final = frozenset({"<timed exec>", "<timed eval>", "<magic-timeit>"})
"""What `%%time` and `%%timeit` call their code (IPython/core/magics/execution.py)."""


def shell_in_use() -> Any:
    """IPython's shell that this process is of; None where there is none."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def cell_number(filename: str) -> int | None:
    """The `In[number]` that the name of a cell's file tells; None where it tells none."""
    match = _NUMBERED.match(filename)
    return int(match[1]) if match else None


def line_of(stack: Stack, filename: str) -> int | None:
    """The line of the cell that was running: its innermost frame's; None when it has no frame."""
    return next((frame.line for frame in stack if frame.filename == filename), None)


def call_of(stack: Stack, filename: str, cells: Mapping[str, Cell]) -> tuple[Cell, int, str] | None:
    """The innermost frame that the cell's line had called in another cell: cell, line, function.

    Where this cell has no frame (a thread, a callback) the whole stack counts as called.
    """
    for frame in stack:
        if frame.filename == filename:
            return None
        if cell := cells.get(frame.filename):
            return cell, frame.line, frame.function
    return None


def phase_of(stack: Stack) -> Phase:
    """OPTIMIZER inside an optimizer's `step`, otherwise FORWARD; a source tells BACKWARD.

    A closure that `step` calls back (LBFGS) is forward again: it shows as a module's call, or as a
    frame outside torch below torch's own `step`.
    """
    outside = False
    for frame in stack:
        path = frame.filename.replace("\\", "/")
        if path.endswith("torch/nn/modules/module.py") and frame.function.endswith("_call_impl"):
            return Phase.FORWARD
        if _is_step(path, frame.function):
            return Phase.FORWARD if outside else Phase.OPTIMIZER
        if path.endswith("torch/optim/optimizer.py") and frame.function == "wrapper":
            return Phase.OPTIMIZER  # it wraps every subclass's step, also those of other packages
        outside = outside or "/torch/" not in path
    return Phase.FORWARD


def _is_step(path: str, function: str) -> bool:
    return function == "step" and "torch/optim/" in path and not path.endswith("lr_scheduler.py")


def unfold_all(stacks: Sequence[Stack], cell: Cell, cells: Mapping[str, Cell]) -> tuple[Stack, ...]:
    """Stacks with what ran below a cell magic (`%%time`, `%%capture`) told as lines of the cell.

    Such a magic gets its body as text and compiles it under another file name, with its own lines.
    A dry run, which runs the body itself, keeps the cell's: such a stack stays as it is.
    """
    body = body_of(cell.source)
    if body is None:
        return tuple(stacks)
    magic, first, text = body
    bodies = {name for name, other in cells.items() if other.source.strip() == text}
    return tuple(_unfolded(one, cell, magic, first, bodies | _MAGIC_BODIES) for one in stacks)


def _unfolded(stack: Stack, cell: Cell, magic: int, first: int, bodies: Set[str]) -> Stack:
    outer = next((i for i, frame in enumerate(stack) if frame.filename == cell.filename), None)
    if outer is None or stack[outer].line >= first:
        return stack
    return (
        *(_moved(f, cell, first - 1) if f.filename in bodies else f for f in stack[:outer]),
        *(
            _moved(f, cell, magic - f.line) if f.filename == cell.filename else f
            for f in stack[outer:]
        ),
    )


def error_line(error: BaseException | None, cell: Cell, cells: Mapping[str, Cell]) -> int | None:
    """The cell's line that `error` came from; None where none of its frames is the cell's."""
    walked = went_through(error)
    stack = [Frame(f.f_code.co_filename, line, f.f_code.co_name) for f, line in walked]
    return line_of(unfold_all([tuple(reversed(stack))], cell, cells)[0], cell.filename)


def _moved(frame: Frame, cell: Cell, lines: int) -> Frame:
    return Frame(cell.filename, frame.line + lines, frame.function)


def body_of(source: str) -> tuple[int, int, str] | None:
    """Of a cell with a magic on top, which IPython makes one call: the line of that magic, the line
    at which the body begins, and the body without blank edges. None for other cells."""
    lines = source.splitlines()
    for number, text in enumerate(lines, 1):
        if _CELL_MAGIC.match(text):
            rest = lines[number:]
            blank = next((i for i, later in enumerate(rest) if later.strip()), 0)
            return number, number + 1 + blank, "\n".join(rest).strip()
        if text.strip() and not text.startswith(_OURS):
            return None
    return None


class CellFiles:
    """The cells of an IPython shell, by the file name that their frames carry.

    Works for IPython 7.34 to 9, with and without ipykernel.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def filename(self, raw_cell: str, transformed_cell: str, number: int) -> str:
        """The file name in a cell's frames.

        number: `result.execution_count`; where that is None, `shell.execution_count`.
        """
        return str(self._shell.compile.get_code_name(raw_cell, transformed_cell, number))

    def cell(self, raw_cell: str, transformed_cell: str, number: int) -> Cell:
        """That cell; line n of its source is line n of its frames."""
        name = self.filename(raw_cell, transformed_cell, number)
        return self._made(raw_cell, transformed_cell, name, number)

    def compiled(self, code: str, above: int, raw: str) -> Cell:
        """The cell that holds `code` below so many lines of `raw`, as IPython would compile it.
        SyntaxErrors go through, before anything is changed."""
        shell = self._shell
        blank = len(code) - len(code.lstrip()) if code.strip() else 0  # IPython drops these lines
        above += len(code[:blank].splitlines())
        text = "\n" * above + str(shell.transform_cell(code))
        running = shell.displayhook.exec_result
        number = running.execution_count if running else None
        filename = shell.compile.cache(text, number or shell.execution_count, raw_code=raw)
        shell.compile.ast_parse(text, filename)
        return Cell(raw, filename, number, text)

    def cells(self) -> Mapping[str, Cell]:
        """All cells that ran, the running one included; number None for those outside `In`. Each
        is read when it is asked for: there may be thousands."""
        return _CellsByFile(self._names(), self._read)

    def _names(self) -> Mapping[str, int | None]:
        """The files that IPython made, each with its cell's number if that is not in its name."""
        numbers = getattr(self._shell.compile, "_filename_map", None)  # IPython 8 and newer
        if numbers is None:
            numbers = dict.fromkeys(getattr(linecache, "_ipython_cache", ()))
        return cast("Mapping[str, int | None]", numbers)

    def _read(self, name: str, number: int | None) -> Cell:
        transformed = "".join(linecache.getlines(name)).rstrip("\n")
        parsed, raw = self._history("input_hist_parsed"), self._history("input_hist_raw")
        if (numbered := cell_number(name)) is not None:
            number = numbered
        elif number is None:
            number = _last_index(parsed, transformed)
        if number is None or number >= len(parsed) or not _same(parsed[number], transformed):
            return Cell(transformed, name)
        return self._made(raw[number], transformed, name, number)

    def python(self, source: str) -> str:
        """A cell as typed, as Python with the same lines; our magics on top are blank lines."""
        lines = source.splitlines(keepends=True)
        ours = (i for i, line in enumerate(lines) if line.strip() and not line.startswith(_OURS))
        first = next(ours, len(lines))
        return "\n" * first + str(self._shell.transform_cell("".join(lines[first:])))

    def with_code(self, cell: Cell) -> Cell:
        """The same with its Python code, which a report of another session may lack."""
        code = self.python(cell.source)
        return replace(cell, code=None if code.rstrip() == cell.source.rstrip() else code)

    def _made(self, raw: str, transformed: str, name: str, number: int) -> Cell:
        typed, code = _aligned(raw, transformed), transformed.rstrip("\n")
        return Cell(typed, name, number, None if code == typed else code)

    def _history(self, name: str) -> Sequence[str]:
        return getattr(self._shell.history_manager, name, ())


class _CellsByFile(Mapping[str, Cell]):
    """Cells by the names of their files, in order; `read` makes one of a name and its number."""

    def __init__(
        self, numbers: Mapping[str, int | None], read: Callable[[str, int | None], Cell]
    ) -> None:
        self._numbers = numbers
        self._read = functools.cache(read)

    def __getitem__(self, name: str) -> Cell:
        return self._read(name, self._numbers[name])

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)


def _same(one: str, other: str) -> bool:
    return one is other or one.rstrip("\n").splitlines() == other.splitlines()


def _last_index(texts: Sequence[str], text: str) -> int | None:
    return next((i for i in range(len(texts) - 1, 0, -1) if _same(texts[i], text)), None)


def _aligned(raw: str, transformed: str) -> str:
    """The cell as typed, without the leading blank lines that IPython drops before it compiles;
    as compiled where its lines do not correspond (`!cmd` continued with a backslash)."""
    lines = raw.rstrip().splitlines()
    start = next((i for i, line in enumerate(lines) if line.strip()), 0)
    typed = "\n".join(lines[start:])
    same = len(lines) - start == len(transformed.rstrip().splitlines())
    return typed if same or body_of(typed) else transformed.rstrip("\n")
