"""Tracebacks as they would be without the virtual GPU between a cell and torch's operators."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from gpumem_magic.magics.faults import Faults
from gpumem_magic.sources.stacks.frames import PACKAGE
from gpumem_magic.sources.stacks.tracebacks import cut_ours, without_ours


class CleanTracebacks:
    """Takes our frames out of errors in user code before the shell shows them: `%debug`, `%tb` and
    `sys.last_traceback` then lead to the user's line too."""

    def __init__(self, shell: InteractiveShell, faults: Faults) -> None:
        self._faults = faults
        self._shell: Any = shell
        self._set_custom: Any = shell.set_custom_exc
        self._custom: Any = None
        self._formatter: Any = shell.InteractiveTB
        self._structured = self._formatter.structured_traceback
        self._syntax_formatter: Any = shell.SyntaxTB
        self._structured_syntax = self._syntax_formatter.structured_traceback

    def install(self) -> None:
        """Stand before the shell's formatters, and the handler that a user has set."""
        self._shell.set_custom_exc = self._set_custom_exc
        self._stand_before_custom()
        self._formatter.structured_traceback = self._clean
        self._syntax_formatter.structured_traceback = self._clean_syntax

    def remove(self) -> None:
        """Give way again, unless someone else stands before us by now."""
        if self._shell.CustomTB == self._call_custom:
            self._shell.CustomTB = self._custom
        if vars(self._shell).get("set_custom_exc") == self._set_custom_exc:
            del self._shell.set_custom_exc
        for formatter, ours in (
            (self._formatter, self._clean),
            (self._syntax_formatter, self._clean_syntax),
        ):
            if vars(formatter).get("structured_traceback") == ours:
                del formatter.structured_traceback

    def _set_custom_exc(self, *args: Any, **options: Any) -> None:
        self._set_custom(*args, **options)
        self._stand_before_custom()

    def _stand_before_custom(self) -> None:
        self._custom, self._shell.CustomTB = self._shell.CustomTB, self._call_custom

    def _call_custom(self, kind: Any, error: Any, traceback: Any, **options: Any) -> Any:
        return self._custom(kind, error, self._shortened(error, traceback), **options)

    def _clean(
        self, kind: Any = None, error: Any = None, traceback: Any = None, *rest: Any, **options: Any
    ) -> Any:
        traceback = self._shortened(error, traceback)
        return self._structured(kind, error, traceback, *rest, **options)

    def _shortened(self, error: Any, traceback: Any) -> Any:
        with self._faults.kept_away("shortening the traceback"):
            cut_ours(error if isinstance(error, BaseException) else None)
            if isinstance(traceback, TracebackType):
                return without_ours(traceback)
        return traceback

    def _clean_syntax(
        self, kind: Any, error: Any, entries: Any = None, *rest: Any, **options: Any
    ) -> Any:
        """Code that our magics could not compile is shown as a cell that IPython could not."""
        if any(str(entry[0]).startswith(PACKAGE) for entry in entries or ()):
            entries = []
        return self._structured_syntax(kind, error, entries, *rest, **options)
