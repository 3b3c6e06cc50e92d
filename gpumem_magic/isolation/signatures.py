"""Replacements that take what the replaced function takes."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_OURS = str(Path(__file__).parent)
_NOT_TAKEN = re.compile(r"\(\) (missing|takes|got) |^by name$")


def called_like(original: Callable[..., Any], made: Callable[..., Any]) -> Callable[..., Any]:
    """`made`; what it does not take as it comes it is given by position, and what `original` does
    not take either is left to that, as it has its own words for it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return made(*args, **kwargs)
        except TypeError as error:  # to look before would take longer than most calls
            if not _is_not_taken(error):
                raise
        try:
            given = inspect.signature(original).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return original(*args, **kwargs)
        return made(*given.args, **given.kwargs)

    return call


def _is_not_taken(error: TypeError) -> bool:
    """Whether a function of ours was called with other arguments than it has."""
    if not _NOT_TAKEN.search(str(error)):
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code.co_filename.startswith(_OURS)
