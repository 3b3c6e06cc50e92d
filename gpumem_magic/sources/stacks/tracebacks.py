"""Tracebacks without our frames, as they would be without the virtual GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from gpumem_magic.sources.stacks.frames import PACKAGE

_NAME = __name__.partition(".")[0] + "."
_REDIRECTION = "handle_torch_function"  # torch/overrides.py: how a Python function meets a mode
_OPERATORS = ("torch", "_ops.py")


def chain_of(error: object) -> Iterator[BaseException]:
    """An error and those that it came from, each once. Nothing of the user's runs."""
    chain: Any = BaseException
    seen: set[int] = set()
    while isinstance(error, BaseException) and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = chain.__cause__.__get__(error) or chain.__context__.__get__(error)


def cut_ours(error: BaseException | None) -> None:
    """Take our frames out of the tracebacks of `error` and of all that led to it, but a first one.

    The errors themselves are changed: for those that nobody can ask for frames any more.
    """
    for one in chain_of(error):
        outer = one.__traceback__
        if outer is not None and (cleaned := without_ours(outer)) is not outer:
            same = cleaned.tb_frame is outer.tb_frame
            outer.tb_next = cleaned.tb_next if same else cleaned


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
        frame = entry.tb_frame
        # An interrupt may come before the first line of a function: that has no number.
        line = entry.tb_lineno or frame.f_code.co_firstlineno
        cleaned = TracebackType(cleaned, frame, entry.tb_lasti, line)
    return cleaned or traceback


def _is_ours(entry: TracebackType) -> bool:
    frame = entry.tb_frame
    if frame.f_code.co_filename.startswith(PACKAGE):
        return True
    return str(frame.f_globals.get("__name__")).startswith(_NAME)  # what dataclasses generate


def _is_detour(entries: list[TracebackType], index: int) -> bool:
    """A function that asked torch for a mode, which then called the same function once more."""
    names = [entry.tb_frame.f_code.co_name for entry in entries[index : index + 2]]
    return _REDIRECTION in names


def _is_our_call(entries: list[TracebackType], index: int) -> bool:
    """What torch needs of Python to run the operator that one of our modes passes on."""
    code = entries[index].tb_frame.f_code
    place = Path(code.co_filename).parts[-2:]
    return index > 0 and _is_ours(entries[index - 1]) and place == _OPERATORS
