"""Replaced attributes, and the way back: everything the virtual GPU changes in torch goes through
here. What it does not have says so by its name; it never quietly does something else."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch

_ABSENT: Any = object()


@dataclass(slots=True)
class _Patch:
    """An attribute that was replaced. before: what it goes back to. ours: what stands there."""

    owner: Any
    name: str
    before: Any
    ours: Any = _ABSENT

    @property
    def place(self) -> tuple[int, str]:
        return id(self.owner), self.name

    @property
    def is_covered(self) -> bool:
        """Whether other code has put a function of its own in the place of ours. Values are torch's
        own bookkeeping, and go back in any case."""
        now = vars(self.owner).get(self.name, _ABSENT)
        return now is not self.ours and callable(now)

    def undo(self) -> None:
        _put(self.owner, self.name, self.before)


class Patches:
    """Attributes set on modules and classes; `restore` undoes them in reverse order."""

    # What is patched is the process's, so all have to know of each other: two shells may load the
    # extension, and the first one may be the first to unload it.
    _standing: ClassVar[dict[tuple[int, str], list[_Patch]]] = {}

    def __init__(self) -> None:
        self._own: list[_Patch] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Set `owner.name`; returns what `vars(owner)` held before (None where it held nothing)."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        patch = _Patch(owner, name, before, vars(owner).get(name, _ABSENT))
        self._own.append(patch)
        self._standing.setdefault(patch.place, []).append(patch)
        return None if before is _ABSENT else before

    def wrap(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Set `owner.name` to a function that gives `call` what stood there, and its arguments."""
        before = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return call(before, *args, **kwargs)

        self.set(owner, name, staticmethod(wrapped) if isinstance(owner, type) else wrapped)

    def restore(self) -> tuple[str, ...]:
        """Put everything back as it was before the first `set`. Gives the names that stay as they
        are, since other code has replaced them in the meantime."""
        covered = []
        while self._own:
            patch = self._own.pop()
            stack = self._standing[patch.place]
            at = next(i for i, one in enumerate(stack) if one is patch)
            del stack[at]
            if at < len(stack):
                stack[at].before = patch.before  # that one goes back to what ours would
            elif patch.is_covered:
                covered.append(f"{getattr(patch.owner, '__name__', '')}.{patch.name}")
            else:
                patch.undo()
            if not stack:
                del self._standing[patch.place]
        return tuple(covered)

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Within, everything is as it was before the first `set`."""
        now = [(one.owner, one.name, vars(one.owner).get(one.name, _ABSENT)) for one in self._own]
        for patch in reversed(self._own):
            patch.undo()
        try:
            yield
        finally:
            for change in now:
                _put(*change)


class OperatorPatches:
    """Kernels that stand in the place of torch's own for operators of `aten`, until `restore`.
    Those of several virtual GPUs in one process lie on top of each other: the newest serves."""

    def __init__(self) -> None:
        self._library: Any = None

    def __bool__(self) -> bool:
        return self._library is not None

    def set(self, name: str, key: str, kernel: Callable[..., Any]) -> None:
        """Register it for `aten::name` and a dispatch key."""
        if self._library is None:
            self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of every kernel that is replaced
            # its own `impl` refuses a second one for a key up to torch 2.12
            self._library.m.impl(name, key, kernel, False)

    def restore(self) -> None:
        """Take all of them out."""
        if self._library is not None:
            self._library._destroy()
            self._library = None


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
    vars(call).update(__wrapped__=getattr(original, "__wrapped__", original))  # dynamo asks for it
    return call
