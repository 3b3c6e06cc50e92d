"""`%%gpumem` as a mark on a cell that IPython itself runs: an input transformer and cell hooks."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import leading_indent
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell

from gpumem_magic.magics.display import warn
from gpumem_magic.magics.gpumem import read_cell
from gpumem_magic.magics.monitor import Monitor, Request
from gpumem_magic.sources.failures import lacks_cuda, lacks_driver, out_of_memory
from gpumem_magic.sources.stacks.frames import outwards
from gpumem_magic.values.recording import Cell
from gpumem_magic.values.report import Report

_MARK = re.compile(r"%%gpumem(?:\s+(.*))?\s*")
_OURS = ("%%gpumem", "%%gpucheck")
_HELP = re.compile(r"%(%gpu(?:mem|check)\s+(?:-h|--help)\s*)")
_COMMANDS = re.compile(r"(?:\s*(?:%gpu(?:mem|check)\b.*|#.*)?(?:\n|$))+")
_RUN_CELL = InteractiveShell.run_cell_async.__code__


def read_mark(lines: Sequence[str]) -> Request | None:
    """What `%%gpumem` on the first line asks for; None without it, or with a wrong option."""
    match = _MARK.fullmatch(lines[0]) if lines else None
    if match is None:
        return None
    try:
        return read_cell(match.group(1) or "")
    except UsageError:
        return None  # left in place, it reaches the magic, which raises this for the user to see


def without_mark_above(code: str) -> str:
    """`code` with a blank line for a `%%gpumem` that it begins with. Raises UsageError if that has
    a wrong option."""
    lines = code.splitlines(keepends=True)
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    match = _MARK.fullmatch(lines[first]) if lines else None
    if match is None:
        return code
    read_cell(match.group(1) or "")
    below = without_mark(lines[first:])
    return "".join(["\n" * (len(lines) - len(below)), *below])


def without_mark(lines: list[str]) -> list[str]:
    """The cell without its mark: an empty line stays, unless another magic has to be first.

    As in a cell without the mark, all lines may be indented as the first one is.
    """
    below = lines[1:]
    while below and below[0].isspace():
        below = below[1:]
    code: list[str] = leading_indent(below)  # type: ignore[no-untyped-call]
    if code and code[0].startswith("%%"):
        return code
    return ["\n", *lines[1 : len(lines) - len(below)], *code]


@dataclass(frozen=True, slots=True)
class _Started:
    """A cell that runs now: its text as typed and as Python code."""

    raw: str
    code: str
    number: int


def _harmless(hook: Callable[..., None]) -> Callable[..., None]:
    """IPython prints a traceback of what comes out of a hook."""

    @functools.wraps(hook)
    def harmless(self: CellHooks, *args: Any) -> None:
        with self._monitor.faults.kept_away("following the cell"):
            hook(self, *args)

    return harmless


class CellHooks:
    """Measures the outermost cell that asks for it, around IPython's own run of that cell."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._shell = monitor.shell
        self._thread = threading.get_ident()  # subshells run cells beside the main one
        self._running: list[_Started | None] = []  # the outermost first; None began before us
        self._transformed = ""
        self._without_mark = False
        self._request: Request | None = None
        self._hinted = False
        self._interrupted = False
        self._fault: Exception | None = None

    def join_running_cell(self) -> None:
        """Act on the rest of the cell that loads the extension, as on every later one."""
        if self._shell.displayhook.exec_result is not None:
            self._running.append(None)
            self._enter()
            self._monitor.cell_began()

    @property
    def _elsewhere(self) -> bool:
        return threading.get_ident() != self._thread

    def transform(self, lines: list[str]) -> list[str]:
        """Take the mark off a cell about to run; inside a running cell the magic measures. Who asks
        for help alone gets it of the line's magic: IPython runs none of a cell without a cell.

        An error here would keep the cell from running: `pre_run_cell` tells of it.
        """
        with contextlib.suppress(Exception):  # `pre_run_cell` will meet it, too
            self._forget_ended(_cells_on_stack())
        if len(lines) == 1 and (asked := _HELP.fullmatch(lines[0])):
            return [asked[1]]
        try:
            marked = not self._running and read_mark(lines) is not None
        except Exception as error:
            marked, self._fault = "".join(lines[:1]).startswith("%%gpumem"), error
        self._without_mark = marked
        try:
            return without_mark(lines) if marked else lines
        except Exception as error:
            self._fault = error
            return lines

    def remember(self, lines: list[str]) -> list[str]:
        """Keep the final text of the cell: its file name is made from it."""
        if self._without_mark and len(lines) == 2 and lines[0].isspace():
            with self._monitor.faults.kept_away("reading the line below the mark"):
                lines = self._prefiltered(lines)
        self._transformed = "".join(lines)
        return lines

    def _prefiltered(self, lines: list[str]) -> list[str]:
        """A line below the mark as IPython reads one that is alone: automagic, aliases, ..."""
        prefilter: Any = self._shell.prefilter_manager
        with self._shell.builtin_trap:
            return [lines[0], prefilter.prefilter_lines(lines[1].rstrip("\n")) + "\n"]

    @_harmless
    def pre_execute(self) -> None:
        """Before a cell, and before a widget's callback, which may use the device as well."""
        try:
            self._enter()
        except KeyboardInterrupt:  # before our own handler stood
            self._keep_interrupt()
            self._enter()

    def _enter(self) -> None:
        if self._elsewhere:
            return
        if not self._running:
            self._monitor.faults.cell_begins()
        with self._kept_away("standing before Ctrl-C"):
            self._monitor.interrupts.install()
        with self._kept_away("entering the device"):
            self._monitor.enter()

    def _let_interrupts_come(self) -> None:
        try:
            self._monitor.interrupts.remove()
        except BaseException:  # what was held until now, or has come since, raises what it likes
            warn("the end of the cell was interrupted, your code is not affected")

    @_harmless
    def post_execute(self) -> None:
        """After a widget's callback, or a silent cell; a cell proper ends in `post_run_cell`."""
        if not self._elsewhere and not self._running:
            self._forget_interrupt()
            with self._kept_away("leaving the device"):
                self._monitor.leave()
            self._let_interrupts_come()

    @_harmless
    def pre_run_cell(self, info: ExecutionInfo) -> None:
        """Start to measure, if the cell or the settings ask for it."""
        if self._elsewhere:
            return
        with self._kept_away("looking for cells that ended"):
            self._forget_ended(_cells_on_stack() - 1)
        raw, number = info.raw_cell or "", self._shell.execution_count
        self._running.append(_Started(raw, self._transformed, number))
        if len(self._running) == 1:
            fault, self._fault = self._fault, None
            if fault is not None:
                self._monitor.faults.tell("reading the options", fault)
            with self._kept_away("starting to measure"):
                self._begin(raw)
            self._monitor.cell_began()
            if self._monitor.interrupts.take_held():
                self._interrupted = True
            if self._interrupted:
                self._shell.ast_transformers.append(_Interruption(self._shell.ast_transformers))

    @_harmless
    def post_run_cell(self, result: ExecutionResult | None) -> None:
        """End the measurement and show its Report below the cell's output, also after an error."""
        blank = result is not None and not ((result.info and result.info.raw_cell) or "").strip()
        if self._elsewhere or blank or not self._running:  # a blank cell has no pre_run_cell
            return
        with self._monitor.faults.kept_away("looking for cells that ended"):
            self._forget_ended(_cells_on_stack() + 1)
        started = self._running.pop()
        if not self._running:
            asked, faults = self._request is not None, self._monitor.faults
            with faults.kept_away("the report"):
                self._forget_interrupt()
                self._end(started, result)
            with faults.kept_away("leaving the device"):
                self._monitor.end_cell()  # where the step before did not come to it
            self._monitor.cell_ended()
            if asked:
                faults.cell_was_measured()
            self._let_interrupts_come()

    def _forget_ended(self, most: int) -> None:
        """Let go of cells that ended without `post_run_cell`: no more than `most` run."""
        if self._elsewhere or len(self._running) <= most:
            return
        del self._running[most:]
        if not self._running:
            self._request = None
            self._monitor.end_cell()
            self._monitor.cell_ended()

    def _kept_away(self, what: str) -> AbstractContextManager[None]:
        """An interrupt before the cell is the cell's, and not lost."""
        return self._monitor.faults.kept_away(what, self._keep_interrupt)

    def _keep_interrupt(self) -> None:
        self._interrupted = True

    def _forget_interrupt(self) -> None:
        if self._interrupted:
            self._interrupted = False
            transformers = self._shell.ast_transformers
            transformers[:] = [one for one in transformers if not isinstance(one, _Interruption)]

    def _begin(self, raw: str) -> None:
        lines = self._cleaned(raw)
        request = read_mark(lines)
        if request is None and self._monitor.settings.every_cell:
            request = None if _is_own(lines) else Request(brief=True)
        if request is None and self._monitor.watch.active and not _is_own(lines):
            request = Request(quiet=True, kept=False)  # for the lines that allocate
        if request is not None and self._monitor.start(request):
            self._request = request

    def _end(self, started: _Started | None, result: ExecutionResult | None) -> None:
        request, self._request = self._request, None
        reports: tuple[Report, ...] = ()
        try:
            if request is not None and started is not None:
                cell = self._cell(started, result)
                reports = self._monitor.stop(request, cell, _error(result))
                self._watch(cell)
        finally:
            self._monitor.end_cell()
        error, source = _error(result), self._monitor.source
        if request is not None:
            self._monitor.show(request, reports)
        elif started is not None and not _names_us(started.raw):
            self._hint(error)
        if source is not None and source.device.virtual and lacks_driver(error):
            warn(
                "Triton's kernels run on a real GPU only; %%gpucheck on top of the cell predicts "
                "it without running them"
            )

    def _hint(self, error: BaseException | None) -> None:
        """After a cell that used the device that is off; once in a session, after memory ran out in
        a cell that nobody measured."""
        if self._monitor.source is None:
            if lacks_cuda(error):
                warn(
                    'the device is off, so there is no "cuda" here; %gpumem --device auto brings '
                    "the virtual GPU back"
                )
        elif not self._hinted and out_of_memory(error) is not None:
            self._hinted = True
            warn(
                "%gpucheck --explain tells what it means; %%gpumem on top of the cell tells where "
                "it went"
            )

    def _watch(self, cell: Cell) -> None:
        if self._monitor.source is not None:
            with self._monitor.faults.kept_away("looking for growth"):
                self._monitor.watch.look(self._shell, self._monitor.source, cell)

    def _cell(self, started: _Started, result: ExecutionResult | None) -> Cell:
        """The cell that ran, under the name that its frames carry; no number outside `In`."""
        counted = result.execution_count if result else None
        cell = self._monitor.files.cell(started.raw, started.code, counted or started.number)
        return replace(cell, number=counted)

    def _cleaned(self, raw: str) -> list[str]:
        """The lines of a cell as they were when `transform` saw them."""
        lines = raw.splitlines(keepends=True)
        for clean in self._shell.input_transformers_cleanup:
            if clean == self.transform:
                break
            lines = clean(lines)
        return lines


class _Interruption(ast.NodeTransformer):
    """Interrupts the next cell at its first line, once: Ctrl-C came before IPython could see it."""

    def __init__(self, transformers: list[Any]) -> None:
        self._transformers = transformers

    def visit(self, tree: Any) -> Any:
        """The cell as IPython is to run it."""
        self._transformers.remove(self)  # an error in the code may be raised before this
        interrupt = ast.parse("raise KeyboardInterrupt").body[0]
        for node in ast.walk(interrupt):
            if tree.body and hasattr(node, "lineno"):
                ast.copy_location(node, tree.body[0])
        tree.body.insert(0, interrupt)
        return tree


def _cells_on_stack() -> int:
    """How many cells run in this thread, each inside the one before."""
    return sum(frame.f_code is _RUN_CELL for frame in outwards(sys._getframe()))


def _names_us(raw: str) -> bool:
    """Whether a cell uses our magics somewhere, so that its author knows them."""
    return any(name.lstrip("%") in raw for name in _OURS)


def _is_own(lines: list[str]) -> bool:
    """Whether the cell is nothing but our magics."""
    return lines[0].startswith(_OURS) or _COMMANDS.fullmatch("".join(lines)) is not None


def _error(result: ExecutionResult | None) -> BaseException | None:
    return (result.error_in_exec or result.error_before_exec) if result else None
