"""Copies of what cannot be copied attribute by attribute: locks, files, iterators, arrays, random
generators, weak references, scripted modules."""

from __future__ import annotations

import io
import os
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

from gpumem_magic.sources.virtual.dryrun.container_copies import Handler, instances_of
from gpumem_magic.sources.virtual.dryrun.paths import ATTRIBUTE, ITEM, PART, Path, Step, written

if TYPE_CHECKING:
    from gpumem_magic.sources.virtual.dryrun.copier import Copier

_LARGE: Final = 64 * 2**20
_LOCK: Final = type(threading.Lock())
_RLOCK: Final = type(threading.RLock())


def special(kind: type) -> Handler | None:
    """How to copy objects of this class, if it is one that needs its own way."""
    for base, handler in _WAYS:
        if issubclass(kind, base):
            return handler
    return None


class _Unadvanceable:
    """Stands for something that the user's own next step would be taken from."""

    def __init__(self, what: str, path: str) -> None:
        self._refusal = f"a dry run cannot advance the {what} `{path}` without changing yours"

    def __iter__(self) -> _Unadvanceable:
        return self

    def __next__(self) -> Any:
        raise NotImplementedError(self._refusal)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(self._refusal)

    def close(self) -> None:
        """Nothing is open."""


def _generator(copier: Copier, thing: Any, path: Path) -> Any:
    return _Unadvanceable("generator", written(path))


def _loader_iterator(copier: Copier, thing: Any, path: Path) -> Any:
    return _Unadvanceable("iterator of a DataLoader", written(path))


def _loader(copier: Copier, thing: Any, path: Path) -> Any:
    """A DataLoader starts its workers anew."""
    copy_instance = instances_of(type(thing))
    assert copy_instance is not None
    made = copy_instance(copier, thing, path)
    made.__dict__["_iterator"] = None
    return made


def _lock(copier: Copier, thing: Any, path: Path) -> Any:
    made = threading.Lock()
    if thing.locked():
        made.acquire()
    return made


def _rlock(copier: Copier, thing: Any, path: Path) -> Any:
    return threading.RLock()


def _weakref(copier: Copier, thing: weakref.ref[Any], path: Path) -> Any:
    """To the copy of what it refers to."""
    target = thing()
    if target is None:
        return thing
    copied = copier.copy(target, Step(path, PART, "weak reference"))
    copier.weakly_held.append(copied)
    if copied is target:
        return thing
    callback = copier.copy(thing.__callback__, path)
    return type(thing)(copied, *(() if callback is None else (callback,)))


def _proxy(copier: Copier, thing: Any, path: Path) -> Any:
    target = thing.__repr__.__self__  # a proxy passes attributes on, methods of its target too
    copied = copier.copy(target, Step(path, PART, "weak reference"))
    copier.weakly_held.append(copied)
    return weakref.proxy(copied)


def _weak_set(copier: Copier, thing: Any, path: Path) -> Any:
    return type(thing)([copier.copy(item, Step(path, ITEM, i)) for i, item in enumerate(thing)])


def _weak_keys(copier: Copier, thing: Any, path: Path) -> Any:
    made = type(thing)()
    copier.memo[id(thing)] = made
    for key, value in list(thing.items()):
        made[copier.copy(key, path)] = copier.copy(value, Step(path, ITEM, key))
    return made


def _array(copier: Copier, thing: Any, path: Path) -> Any:
    if thing.dtype == object:
        made = np.empty_like(thing)
        copier.memo[id(thing)] = made
        for index, item in np.ndenumerate(thing):
            made[index] = copier.copy(item, Step(path, ITEM, index))
        return made
    if thing.nbytes < _LARGE:
        return thing.copy(order="K")
    copier.say(f"{written(path)} is large: the dry run reads your array, and cannot write to it")
    view = thing.view()
    view.flags.writeable = False
    return view


def copy_generator(copier: Copier, thing: torch.Generator, path: Path) -> torch.Generator:
    """In the same state; a virtual card's cannot have the state of a real one's, only its seed."""
    made = torch.Generator(thing.device.type)
    try:
        made.set_state(thing.get_state())
    except RuntimeError:
        made.manual_seed(thing.initial_seed())
    return made


def _file(copier: Copier, thing: Any, path: Path) -> Any:
    """Another one at the same place of a file that is read; one that leads nowhere for writing."""
    if thing in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        return thing
    if thing.closed:
        return thing
    if _is_written(thing):
        copier.say(f"what the cell writes to {written(path)} is left out")
        return _opened_as(thing, os.devnull, "w")
    if isinstance(thing.name, str) and os.path.isfile(thing.name):  # noqa: PTH113
        try:
            position = thing.tell()
        except OSError:  # a text file in the middle of a loop
            return _Unadvanceable("file", written(path))
        made = _opened_as(thing, thing.name, "r")
        made.seek(position)
        return made
    return _Unadvanceable("file", written(path))


def _is_written(thing: Any) -> bool:
    return bool(thing.writable())


def _opened_as(thing: Any, name: str, mode: str) -> Any:
    raw = io.FileIO(name, mode)
    if isinstance(thing, io.FileIO):
        return raw
    buffer: Any = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    if isinstance(thing, io.TextIOWrapper):
        return io.TextIOWrapper(buffer, thing.encoding, thing.errors)
    return buffer


def _scaler(copier: Copier, thing: Any, path: Path) -> Any:
    """A GradScaler knows its optimizers by their ids."""
    copy_instance = instances_of(type(thing))
    assert copy_instance is not None
    made = copy_instance(copier, thing, path)

    def follow_ids() -> None:
        states = made._per_optimizer_states
        for key in list(states):
            states[id(copier.memo.get(key))] = states.pop(key)

    copier.later.append(follow_ids)
    return made


def _scripted(copier: Copier, thing: Any, path: Path) -> Any:
    """Its C++ side is copied without its tensors, then has ours set in their places."""
    wrap: Any = torch.jit._recursive.wrap_cpp_module
    return wrap(_scripted_part(copier, thing._c, path))


def _scripted_part(copier: Copier, part: Any, path: Path) -> Any:
    made = part.__copy__()
    tables: tuple[Any, ...] = torch._C.ParameterDict, torch._C.BufferDict
    for table in tables:
        for name, tensor in table(part).items():
            made.setattr(name, copier.copy(tensor, Step(path, ATTRIBUTE, name)))
    modules: Any = torch._C.ModuleDict(part)
    for name, inner in modules.items():
        made.setattr(name, _scripted_part(copier, inner, Step(path, ATTRIBUTE, name)))
    return made


_WAYS: Final[tuple[tuple[Any, Handler], ...]] = (
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), _generator),
    (_BaseDataLoaderIter, _loader_iterator),
    (DataLoader, _loader),
    (torch.jit.ScriptModule, _scripted),
    (torch.amp.GradScaler, _scaler),
    (_LOCK, _lock),
    (_RLOCK, _rlock),
    (weakref.WeakSet, _weak_set),
    (weakref.WeakKeyDictionary, _weak_keys),
    (weakref.WeakValueDictionary, _weak_keys),
    (weakref.ref, _weakref),
    ((weakref.ProxyType, weakref.CallableProxyType), _proxy),
    (np.ndarray, _array),
    ((io.TextIOWrapper, io.BufferedIOBase, io.FileIO), _file),
)
