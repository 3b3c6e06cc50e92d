"""Frames of Python, those of errors too: the way outwards, whose code it is, what its text is."""

from __future__ import annotations

import ast
import linecache
import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = str(_ROOT)
"""Where our own code lies."""


class Libraries:
    """File names of code that is not the user's: the standard library's, installed packages'."""

    def __init__(self) -> None:
        keys = ("stdlib", "platstdlib", "purelib", "platlib")
        folders = {*map(sysconfig.get_path, keys), PACKAGE}
        self._starts = ("<frozen ", *(os.path.join(folder, "") for folder in folders))  # noqa: PTH118

    def __contains__(self, filename: str) -> bool:
        installed = "site-packages" in filename or "dist-packages" in filename
        return installed or filename.startswith(self._starts)


LIBRARIES: Final = Libraries()


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame, what called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def went_through(error: BaseException | None) -> Iterator[tuple[FrameType, int]]:
    """The frames that an error went through, the outermost first, and its line in each. Nothing of
    the user's runs."""
    raised: Any = BaseException.__traceback__
    return traceback.walk_tb(None if error is None else raised.__get__(error))


def place_of(error: BaseException) -> str:
    """The innermost line of ours that the error went through, such as "trace/peak.py:17"."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(_ROOT):
            return f"{Path(frame.filename).relative_to(_ROOT)}:{frame.lineno}"
    return ""


def parsed(filename: str) -> ast.Module | None:
    """The text of a file or a cell; None where none is known."""
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return None
