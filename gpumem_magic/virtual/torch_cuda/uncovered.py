"""What the virtual GPU does not have says so by its name; it never quietly does something else."""

from __future__ import annotations

from typing import Any, NoReturn


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
