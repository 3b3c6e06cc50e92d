"""Functions of C that do something else from here on, whoever has kept them: a default argument, a
list, functools.partial, another module; and methods of C."""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from gpumem_magic.isolation.in_modules import InModules, namespace_of

_OURS = f"{__name__.partition('.')[0]}."
_LIKE_CALL = 0x3  # METH_VARARGS | METH_KEYWORDS of CPython's Include/methodobject.h
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE of its Include/object.h
_FLAGS = (
    object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t) + 18 * ctypes.sizeof(ctypes.c_void_p)
)
"""Where a PyTypeObject has its flags."""


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_void_p),
    )


class _Function(ctypes.Structure):
    """What follows the head of a PyCFunctionObject."""

    _fields_ = (
        ("method", ctypes.POINTER(_Method)),
        ("self", ctypes.c_void_p),
        ("module", ctypes.c_void_p),
        ("references", ctypes.c_void_p),
        ("vectorcall", ctypes.c_void_p),
    )


def is_builtin(function: object) -> bool:
    """Whether it is a function of a module of C."""
    own = getattr(function, "__self__", function)
    return type(function) is types.BuiltinFunctionType and isinstance(own, types.ModuleType)


def redirect(function: Any, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Let `function` do what `make(a copy of it)` does. Where our own modules have it by a name of
    theirs, that means the copy."""
    inside = _inside(function)
    copy = _copy(function, inside)
    for name, key, value in builtins_of_ours():
        if value is function:
            namespace_of(sys.modules[name])[key] = copy
    called = {"__call__": staticmethod(make(copy))}
    # a module, as pickle and `__qualname__` expect one there
    target: Any = type("module", (types.ModuleType,), called)(function.__module__)
    old = inside.method.contents
    call = ctypes.cast(ctypes.pythonapi.PyObject_Call, ctypes.c_void_p).value
    method = _Method(old.name, call, _LIKE_CALL, old.doc)
    target.method = method
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(target))  # `function` has it from here on
    changed = _Function.from_buffer_copy(inside)
    changed.self, changed.method = id(target), ctypes.pointer(method)
    changed.vectorcall = None  # as with all of that kind
    whole = (ctypes.c_char * ctypes.sizeof(changed)).from_address(ctypes.addressof(inside))
    whole.raw = bytes(changed)  # at once: a collection of garbage may call it in between


def set_in_class(owner: Any, name: str, value: Any) -> None:
    """Set `owner.name`, also of a class of C. Raises TypeError for one that is not laid out as
    known."""
    try:
        setattr(owner, name, value)
        return
    except TypeError:
        flags = ctypes.c_ulong.from_address(id(owner) + _FLAGS)
        if not isinstance(owner, type) or flags.value != owner.__flags__:
            raise
    flags.value &= ~_IMMUTABLE
    try:
        setattr(owner, name, value)
    finally:
        flags.value |= _IMMUTABLE


def _inside(function: object) -> _Function:
    return _Function.from_address(id(function) + object.__basicsize__)


def _copy(function: Any, inside: _Function) -> Any:
    new = ctypes.pythonapi.PyCMethod_New
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return new(ctypes.addressof(inside.method.contents), inside.self, function.__module__, None)


def _in_ours(module: str) -> Iterator[tuple[str, str, Any]]:
    if module.startswith(_OURS):
        for key, value in [*namespace_of(sys.modules.get(module)).items()]:
            if is_builtin(value):
                yield module, key, value


builtins_of_ours = InModules(_in_ours)
