"""Replaced attributes, and the way back: everything the virtual GPU changes in torch goes through
here. What it does not have says so by its name; it never quietly does something else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

_ABSENT: Any = object()


class Patches:
    """Attributes set on modules and classes; `restore` undoes them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Set `owner.name`; returns what `vars(owner)` held before (None where it held nothing)."""
        before = vars(owner).get(name, _ABSENT)
        self._undo.append((owner, name, before))
        setattr(owner, name, value)
        return None if before is _ABSENT else before

    def restore(self) -> None:
        """Put everything back as it was before the first `set`."""
        while self._undo:
            _put(*self._undo.pop())

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Within, everything is as it was before the first `set`."""
        now = [(owner, name, vars(owner).get(name, _ABSENT)) for owner, name, _ in self._undo]
        for change in reversed(self._undo):
            _put(*change)
        try:
            yield
        finally:
            for change in now:
                _put(*change)


def _put(owner: Any, name: str, value: Any) -> None:
    if value is not _ABSENT:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


class AbsentError(NotImplementedError, AttributeError):
    """Of a function that the virtual GPU does not have: `hasattr` says so, and a call names it."""


def absent(name: str) -> NoReturn:
    """torch._C's answer for a name that it does not have."""
    if name.startswith("_cuda_"):
        raise AbsentError(f"torch._C.{name} is not covered by the virtual GPU")
    raise AttributeError(f"module 'torch._C' has no attribute {name!r}")


def not_covered(name: str, original: Any = None) -> Any:
    """A stand-in for `name` that says so when it is called; still a class where `original` is one,
    as libraries name these classes in annotations and `isinstance`."""

    def call(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is not covered by the virtual GPU")

    if isinstance(original, type):
        return type(original.__name__, (original,), {"__new__": call, "__doc__": original.__doc__})
    return call
