"""Replacements that take what the replaced function takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def called_like(original: Callable[..., Any], made: Callable[..., Any]) -> Callable[..., Any]:
    """`made`, given its arguments by position as far as `original` takes them so, unless it takes
    all as they come. What `original` does not take is left to it, as it has its own words for it.
    """
    forms: list[inspect.Signature] = []  # found at the first call: it takes longer than most

    def call(*args: Any, **kwargs: Any) -> Any:
        if not forms:
            own = _form(made, follow_wrapped=False) or _ANY
            forms.extend((_form(original) or own, own))
        try:
            given = forms[0].bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)
        if _kinds(forms[1]) == _kinds(_ANY):
            return made(*args, **kwargs)
        return made(*given.args, **given.kwargs)

    return call


_ANY = inspect.signature(lambda *args, **kwargs: None)


def _kinds(form: inspect.Signature) -> list[object]:
    return [each.kind for each in form.parameters.values()]


def _form(function: Callable[..., Any], follow_wrapped: bool = True) -> inspect.Signature | None:
    try:
        return inspect.signature(function, follow_wrapped=follow_wrapped)
    except Exception:  # it may be any object, if the user replaced it
        return None
