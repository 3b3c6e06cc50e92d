"""What code holds: functions, generators, frames, exceptions, classes. Nothing of it is run."""

from __future__ import annotations

import contextvars
import functools
import gc
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from gpumem_magic.sources.objects.contents import FOREIGN, attribute, fields, is_plain, package_of
from gpumem_magic.sources.objects.namespaces import locals_of
from gpumem_magic.sources.stacks.frames import LIBRARIES
from gpumem_magic.values.inventory import HolderKind

LRU_CACHE: Final[type] = functools._lru_cache_wrapper
_GENERATORS: Final = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_FRAMES: Final = ("gi_frame", "cr_frame", "ag_frame")
_OURS: Final = __name__.partition(".")[0]
_chain: Any = BaseException


class Edge(NamedTuple):
    """Something that is held. kind: the kind of holder that a variable becomes by it, and label
    what that is called; None: it stays what it is."""

    path: str
    thing: Any
    kind: HolderKind | None = None
    label: str = ""


Edges = Iterator[Edge]


def of_function(function: Any, path: str) -> Edges:
    """Closure, defaults and attributes."""
    closure = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, closure, strict=False):
        try:
            contents = cell.cell_contents
        except ValueError:  # empty as yet
            continue
        yield Edge(f"{path}: closure.{name}", contents, HolderKind.CLOSURE, path)
    code, defaults = function.__code__, function.__defaults__ or ()
    named = code.co_varnames[: code.co_argcount][-len(defaults) :]
    for name, value in (
        *zip(named, defaults, strict=False),
        *(function.__kwdefaults__ or {}).items(),
    ):
        yield Edge(f"{path}: defaults.{name}", value, HolderKind.CLOSURE, path)
    for name, value in list(fields(function).items()):
        yield Edge(attribute(path, str(name)), value)


def of_method(method: types.MethodType, path: str) -> Edges:
    """What it is bound to."""
    yield Edge(f"{path}.__self__", method.__self__)
    yield Edge(path, method.__func__)


def of_builtin(method: Any, path: str) -> Edges:
    """What a method of C is bound to; functions of C are bound to their modules."""
    if type(method.__self__) is not types.ModuleType:
        yield Edge(f"{path}.__self__", method.__self__)


def of_partial(partial: Any, path: str) -> Edges:
    """The function and its arguments. The C type is read: a subclass could hide them."""
    partial_type: Any = functools.partial
    for name in ("func", "args", "keywords"):
        value = partial_type.__dict__[name].__get__(partial)
        yield Edge(f"{path}.{name}", value, HolderKind.CLOSURE, path)


def of_cache(function: Any, path: str) -> Edges:
    """Arguments and results that functools.lru_cache remembers, and the function."""
    wrapped = fields(function).get("__wrapped__")
    for thing in gc.get_referents(function):
        if thing is wrapped:
            yield Edge(path, thing)
        elif not is_plain(thing) and thing is not fields(function):
            yield Edge(f"{path}: cache", thing, HolderKind.CACHE, path)


def of_generator(generator: Any, path: str) -> Edges:
    """The variables of the suspended function, and what it has at hand without a name."""
    frame = next((f for name in _FRAMES if (f := getattr(generator, name, None))), None)
    if frame is None:  # it has ended
        return
    running = frame.f_back is not None
    named = () if running else of_frame(frame, path)
    for edge in named:
        yield edge._replace(kind=HolderKind.GENERATOR, label=path)
    for thing in (*gc.get_referents(generator), *gc.get_referents(frame)):
        if _is_value(thing, frame):
            yield Edge(f"{path}: {frame.f_code.co_name}()", thing, HolderKind.GENERATOR, path)


def of_frame(frame: types.FrameType, path: str) -> Edges:
    """The variables of a function that runs or has ended; not those of modules and cells."""
    name = frame.f_code.co_name
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        values: Mapping[str, Any] = locals_of(frame)
    elif frame.f_locals is frame.f_globals:
        return
    else:  # the body of a class
        values = dict(frame.f_locals)
    for local, value in values.items():
        yield Edge(f"{path}: {name}().{local.strip('.')}", value)


def of_traceback(traceback: Any, path: str) -> Edges:
    """The variables of all its frames."""
    while traceback is not None:
        for edge in of_frame(traceback.tb_frame, path):
            yield edge._replace(kind=HolderKind.EXCEPTION, label=path)
        traceback = traceback.tb_next


def of_exception(error: Any, path: str) -> Edges:
    """Arguments (also a group's exceptions), attributes, traceback, and where it came from."""
    traceback = _chain.__traceback__.__get__(error)
    yield from of_traceback(traceback, path)
    for name in ("args", "__cause__", "__context__"):
        value = getattr(_chain, name).__get__(error)
        if value is not None:
            yield Edge(f"{path}.{name}", value, HolderKind.EXCEPTION, path)
    for name, value in list(fields(error).items()):
        yield Edge(attribute(path, str(name)), value, HolderKind.EXCEPTION, path)


def of_class(kind: type, path: str) -> Edges:
    """What a class of the user's holds; classes of libraries are not looked into."""
    if _is_users(package_of(kind), type.__getattribute__(kind, "__module__")):
        for name, value in list(type.__getattribute__(kind, "__dict__").items()):
            if not name.startswith("__"):
                yield Edge(attribute(path, name), value)


def of_context_variable(variable: contextvars.ContextVar[Any], path: str) -> Edges:
    """What it means in this context."""
    yield Edge(f"{path}.get()", variable.get(None))


def of_property(made: property, path: str) -> Edges:
    """Its functions."""
    for function in (made.fget, made.fset, made.fdel):
        if function is not None:
            yield Edge(path, function)


def of_array(array: Any, path: str) -> Edges:
    """The objects in an array of objects; numbers are none."""
    if array.dtype.hasobject:
        values = array.ravel().tolist()
        for i, value in enumerate(values):
            if not is_plain(value):
                yield Edge(f"{path}.flat[{i}]", value)


def is_array(kind: type) -> bool:
    """Whether it is numpy's own array."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and kind is getattr(numpy, "ndarray", None)


def held_by_array(array: Any) -> tuple[Any, ...] | None:
    """Nothing, of numbers; None of objects."""
    return None if array.dtype.hasobject else ()


def _held_by_function(function: Any) -> list[Any]:
    """All but the variables of its module. (To ask for its `__dict__` would make one.)"""
    names, builtins = function.__globals__, function.__builtins__
    held = gc.get_referents(function)
    return [thing for thing in held if thing is not names and thing is not builtins]


def of_opaque(thing: Any, path: str) -> Edges:
    """What an object of C tells the garbage collector that it holds: iterators, views, ..."""
    for held in gc.get_referents(thing):
        if not is_plain(held) and not issubclass(type(held), type):
            yield Edge(path, held)


def of_foreign(thing: Any, path: str) -> Edges:
    """Nothing: objects of libraries that hold no tensors."""
    return iter(())


def reader_of(kind: type) -> Reader | None:
    """What reads objects of this class, if they are code or their contents hide in C."""
    for base, read in _READERS:
        if issubclass(kind, base):
            return read
    package = package_of(kind)
    numpy = sys.modules.get("numpy")
    if package == "numpy" and numpy is not None and issubclass(kind, numpy.ndarray):
        return of_array
    if package == "pandas":
        return of_opaque
    return of_foreign if package in FOREIGN or package == _OURS else None


def _is_value(thing: Any, frame: types.FrameType) -> bool:
    known = (frame, frame.f_globals, frame.f_builtins, frame.f_back)
    return not any(thing is each for each in known) and type(thing) is not types.FrameType


def _is_users(package: str, module: object) -> bool:
    """Whether the module of this name is the user's: the notebook itself, or no library's."""
    if package == "__main__":
        return True
    known = sys.modules.get(module) if type(module) is str else None
    file = fields(known).get("__file__")
    return type(file) is str and file not in LIBRARIES


LOOKS: Final = {
    id(types.FunctionType): _held_by_function,
    id(types.MethodType): lambda method: [method.__self__, method.__func__],
}
"""What objects hold, by the id of their class, without names for it."""

Reader = Callable[[Any, str], Edges]
_READERS: Final[tuple[tuple[type, Reader], ...]] = (
    (types.FunctionType, of_function),
    (types.MethodType, of_method),
    (types.BuiltinFunctionType, of_builtin),
    (functools.partial, of_partial),
    (LRU_CACHE, of_cache),
    *((kind, of_generator) for kind in _GENERATORS),
    (types.FrameType, of_frame),
    (types.TracebackType, of_traceback),
    (BaseException, of_exception),
    (type, of_class),
    (property, of_property),
    (contextvars.ContextVar, of_context_variable),
)
