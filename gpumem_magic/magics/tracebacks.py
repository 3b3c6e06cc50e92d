"""Tracebacks as they would be without the virtual GPU between a cell and torch's operators."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from gpumem_magic.magics.faults import Faults

_PACKAGE = str(Path(__file__).parents[1])
_REDIRECTION = "handle_torch_function"  # torch/overrides.py: how a Python function meets a mode
_OPERATORS = ("torch", "_ops.py")


class CleanTracebacks:
    """Leaves our frames out of what the shell prints of an error in user code. The error itself is
    not touched: `%debug` and `sys.last_traceback` have every frame."""

    def __init__(self, shell: InteractiveShell, faults: Faults) -> None:
        self._faults = faults
        self._formatter: Any = shell.InteractiveTB
        self._structured = self._formatter.structured_traceback
        self._syntax_formatter: Any = shell.SyntaxTB
        self._structured_syntax = self._syntax_formatter.structured_traceback

    def install(self) -> None:
        """Stand before the shell's formatters."""
        self._formatter.structured_traceback = self._clean
        self._syntax_formatter.structured_traceback = self._clean_syntax

    def remove(self) -> None:
        """Give way again, unless someone else stands before us by now."""
        for formatter, ours in (
            (self._formatter, self._clean),
            (self._syntax_formatter, self._clean_syntax),
        ):
            if vars(formatter).get("structured_traceback") == ours:
                del formatter.structured_traceback

    def _clean(
        self, kind: Any = None, error: Any = None, traceback: Any = None, *rest: Any, **options: Any
    ) -> Any:
        if isinstance(traceback, TracebackType):
            with self._faults.kept_away("shortening the traceback"):
                traceback = without_ours(traceback)
        return self._structured(kind, error, traceback, *rest, **options)

    def _clean_syntax(
        self, kind: Any, error: Any, entries: Any = None, *rest: Any, **options: Any
    ) -> Any:
        """Code that our magics could not compile is shown as a cell that IPython could not."""
        if any(str(entry[0]).startswith(_PACKAGE) for entry in entries or ()):
            entries = []
        return self._structured_syntax(kind, error, entries, *rest, **options)


def without_ours(traceback: TracebackType) -> TracebackType:
    """`traceback` without our frames, and without the detour that torch takes to reach them.

    An error that was raised in user code stays as it is, and so does one that is only ours.
    """
    entries = []
    entry: TracebackType | None = traceback
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    if not any(map(_is_ours, entries)):
        return traceback
    kept = [
        entry
        for i, entry in enumerate(entries)
        if not (_is_ours(entry) or _is_detour(entries, i) or _is_our_call(entries, i))
    ]
    cleaned: TracebackType | None = None
    for entry in reversed(kept):
        cleaned = TracebackType(cleaned, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return cleaned or traceback


def _is_ours(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _is_detour(entries: list[TracebackType], index: int) -> bool:
    """A function that asked torch for a mode, which then called the same function once more."""
    names = [entry.tb_frame.f_code.co_name for entry in entries[index : index + 2]]
    return _REDIRECTION in names


def _is_our_call(entries: list[TracebackType], index: int) -> bool:
    """What torch needs of Python to run the operator that one of our modes passes on."""
    code = entries[index].tb_frame.f_code
    place = Path(code.co_filename).parts[-2:]
    return index > 0 and _is_ours(entries[index - 1]) and place == _OPERATORS
