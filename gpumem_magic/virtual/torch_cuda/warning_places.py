"""Warnings at the user's line, where torch or Python would take the façade's for it, and texts of
errors without our frames."""

from __future__ import annotations

import functools
import sys
import traceback
import warnings
from types import FrameType
from typing import Any

from torch import _ops, overrides

from gpumem_magic.sources.stacks.frames import PACKAGE, outwards
from gpumem_magic.sources.stacks.tracebacks import without_ours


def install(patches: Any) -> None:
    """Replace warnings.warn, and what shows the warnings that C++ raises."""
    patches.set(warnings, "warn", counted(warnings.warn))
    patches.set(warnings, "_showwarnmsg", raised_anew(warnings._showwarnmsg))  # type: ignore[attr-defined]
    texts = traceback.TracebackException
    patches.set(texts, "__init__", _of_user_code(texts.__init__))


def _of_user_code(make: Any) -> Any:
    """TracebackException.__init__, on which traceback.print_exc and logging stand."""

    @functools.wraps(make)
    def make_shorter(self: Any, kind: Any, error: Any, raised: Any, **options: Any) -> None:
        make(self, kind, error, raised and without_ours(raised), **options)

    return make_shorter


def counted(warn: Any) -> Any:
    """warnings.warn that counts no frames of the façade's detour: torch's functions name the user's
    line by how far away it is."""

    @functools.wraps(warn)
    def warn_at(
        message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **options: Any
    ) -> None:
        frame, level = sys._getframe(1), stacklevel + 1
        for _ in range(stacklevel - 1):
            inner, outer = frame, frame.f_back
            while outer is not None and _is_between(outer):
                outer, level = outer.f_back, level + 1
            if outer is not None and outer is not inner.f_back and outer.f_code is inner.f_code:
                outer, level = outer.f_back, level + 1  # where the function began, to ask for modes
            if outer is None:
                break
            frame = outer
        warn(message, category, level, source, **options)

    return warn_at


def raised_anew(show: Any) -> Any:
    """warnings._showwarnmsg that raises a warning of C++ code anew where the user's code called it.

    C++ names the innermost line of Python, which is ours. Python's filters, and its memory of what
    was shown at which line, then see the user's.
    """

    def show_message(told: Any) -> None:
        frame = _caller_of_ours(sys._getframe(1)) if _is_way(told.filename) else None
        if frame is None:
            show(told)
            return
        names = frame.f_globals
        sys._getframe(1).f_globals.pop("__warningregistry__", None)
        place = frame.f_code.co_filename, frame.f_lineno, names.get("__name__") or "<unknown>"
        registry = names.setdefault("__warningregistry__", {})
        warnings.warn_explicit(told.message, told.category, *place, registry, source=told.source)

    return show_message


def _caller_of_ours(frame: FrameType | None) -> FrameType | None:
    """The first frame that is neither ours nor torch's way from ours to an operator; None where no
    frame of ours is before it."""
    is_ours = False
    for each in outwards(frame):
        if not (_is_between(each) or _is_way(each.f_code.co_filename)):
            return each if is_ours else None
        is_ours = is_ours or each.f_code.co_filename.startswith(PACKAGE)
    return None


def _is_way(filename: str) -> bool:
    return filename.startswith(PACKAGE) or filename == _ops.__file__


def _is_between(frame: FrameType) -> bool:
    filename = frame.f_code.co_filename
    return filename.startswith(PACKAGE) or filename == overrides.__file__
