"""Tracebacks as they would be without the virtual GPU between a cell and torch's operators."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from gpumem_magic.magics.faults import Faults
from gpumem_magic.sources.stacks.tracebacks import PACKAGE, without_ours


class CleanTracebacks:
    """Leaves our frames out of what the shell prints of an error in user code. The error itself is
    not touched: `%debug` and `sys.last_traceback` have every frame."""

    def __init__(self, shell: InteractiveShell, faults: Faults) -> None:
        self._faults = faults
        self._formatter: Any = shell.InteractiveTB
        self._structured = self._formatter.structured_traceback
        self._parts = self._formatter.get_parts_of_chained_exception
        self._syntax_formatter: Any = shell.SyntaxTB
        self._structured_syntax = self._syntax_formatter.structured_traceback

    def install(self) -> None:
        """Stand before the shell's formatters."""
        self._formatter.structured_traceback = self._clean
        self._formatter.get_parts_of_chained_exception = self._clean_parts
        self._syntax_formatter.structured_traceback = self._clean_syntax

    def remove(self) -> None:
        """Give way again, unless someone else stands before us by now."""
        for formatter, name, ours in (
            (self._formatter, "structured_traceback", self._clean),
            (self._formatter, "get_parts_of_chained_exception", self._clean_parts),
            (self._syntax_formatter, "structured_traceback", self._clean_syntax),
        ):
            if vars(formatter).get(name) == ours:
                delattr(formatter, name)

    def _clean(
        self, kind: Any = None, error: Any = None, traceback: Any = None, *rest: Any, **options: Any
    ) -> Any:
        return self._structured(kind, error, self._shortened(traceback), *rest, **options)

    def _clean_parts(self, error: BaseException | None) -> Any:
        """The type, value and traceback of what caused `error`, or was handled then."""
        parts = self._parts(error)
        return parts and (*parts[:2], self._shortened(parts[2]))

    def _shortened(self, traceback: Any) -> Any:
        if isinstance(traceback, TracebackType):
            with self._faults.kept_away("shortening the traceback"):
                return without_ours(traceback)
        return traceback

    def _clean_syntax(
        self, kind: Any, error: Any, entries: Any = None, *rest: Any, **options: Any
    ) -> Any:
        """Code that our magics could not compile is shown as a cell that IPython could not."""
        if any(str(entry[0]).startswith(PACKAGE) for entry in entries or ()):
            entries = []
        return self._structured_syntax(kind, error, entries, *rest, **options)
