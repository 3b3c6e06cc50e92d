"""A deep digest of objects: identities, values, bytes and positions, read without using them up."""

from __future__ import annotations

import array
import asyncio
import collections
import ctypes
import functools
import hashlib
import io
import itertools
import mmap
import os
import pathlib
import queue
import random
import re
import socket
import sqlite3
import sys
import threading
import types
import warnings
import weakref
from contextlib import suppress

import numpy as np
import torch

PLAIN = (int, float, complex, str, bool, type(None), type(...), range, slice, re.Pattern)
PLAIN += (pathlib.PurePath, torch.dtype, torch.device, torch.Size, np.dtype, np.generic)
OPAQUE = ("IPython", "gpumem_magic", "matplotlib", "torch._ops", "traitlets", "prompt_toolkit")
MOST = 60_000
"""Objects looked at; more would be a flaw of an attack's setup."""

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_ITERATORS = (
    *(type(iter(things)) for things in ([], (), "", b"", bytearray(), set(), {}, range(1))),
    *(type(iter({}.items())), type(iter({}.values())), type(iter(range(1 << 70)))),
    *(enumerate, zip, map, filter, type(reversed([])), reversed, type(iter(int, 1))),
    *(kind for kind in vars(itertools).values() if isinstance(kind, type)),
)
_FUTURES = (asyncio.Future, asyncio.Task)
_VIEWS = (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)


def hashed(data: bytes) -> str:
    """Some bytes as a short text that differs where they differ."""
    return f"{len(data)} bytes {hashlib.blake2b(data, digest_size=8).hexdigest()}"


class Digest:
    """`found` tells what is at each path; objects that are met again are told by their first path.

    home: the folder whose modules are the user's, and are followed.
    """

    def __init__(self, home: str) -> None:
        self.home = home
        self.found: dict[str, str] = {}
        self._seen: dict[int, str] = {}

    def add(self, path: str, value: object) -> None:
        """Note what is at `path`, and all that it holds."""
        if isinstance(value, PLAIN):
            self.found[path] = f"{type(value).__name__} {value!r}"
            return
        if isinstance(value, bytes):
            self.found[path] = hashed(value)
            return
        if id(value) in self._seen:
            self.found[path] = f"as {self._seen[id(value)]}"
            return
        if len(self.found) > MOST:
            raise RuntimeError(f"too many objects; the last one at {path}")
        self._seen[id(value)] = path
        self.found[path] = f"{type(value).__qualname__} at {id(value):x}"
        self._look(path, value)

    def note(self, path: str, said: object) -> None:
        """Note a fact about what is at `path`."""
        self.found[path] = str(said)

    def _look(self, path: str, value: object) -> None:
        for kinds, look in _LOOKS:
            if isinstance(value, kinds):
                look(self, path, value)
                return
        module = type(value).__module__
        if not module.startswith(OPAQUE):
            self._attributes(path, value)

    def _attributes(self, path: str, value: object) -> None:
        with suppress(AttributeError, TypeError):
            self._named(path, object.__getattribute__(value, "__dict__"))
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                member = vars(kind).get(name)
                if isinstance(member, types.MemberDescriptorType):
                    with suppress(AttributeError):
                        self.add(f"{path}.{name}", member.__get__(value))

    def _named(self, path: str, names: dict) -> None:
        self.note(f"{path} has", " ".join(map(str, names)))
        for name, value in list(names.items()):
            self.add(f"{path}.{name}", value)

    def _sequence(self, path: str, values) -> None:
        self.note(f"{path} length", len(values))
        for index, value in enumerate(list(values)):
            self.add(f"{path}[{index}]", value)

    def _set(self, path: str, values) -> None:
        plain = sorted(repr(value) for value in values if isinstance(value, PLAIN))
        others = sorted(id(value) for value in values if not isinstance(value, PLAIN))
        self.note(f"{path} elements", (plain, others))

    def _mapping(self, path: str, mapping) -> None:
        items = list(dict.items(mapping) if isinstance(mapping, dict) else mapping.items())
        self.note(f"{path} length", len(items))
        for index, (key, value) in enumerate(items):
            name = repr(key) if isinstance(key, PLAIN) else f"key {index}"
            self.add(f"{path}[{name}]", value)
            if not isinstance(key, PLAIN):
                self.add(f"{path}.key({index})", key)
        if type(mapping) is not dict:
            self._attributes(path, mapping)

    def _buffer(self, path: str, value) -> None:
        with suppress(ValueError, BufferError):  # a memoryview that was released
            self.note(f"{path} content", hashed(bytes(value)))

    def _mmap(self, path: str, value) -> None:
        self.note(f"{path} open", not value.closed)
        if not value.closed:
            self.note(f"{path} content", (value.tell(), hashed(value[:])))

    def _tensor(self, path: str, value) -> None:
        with suppress(RuntimeError, NotImplementedError):  # sparse, meta: no storage
            storage = value.untyped_storage()
            self.note(f"{path} storage", (storage._cdata, storage.data_ptr(), storage.nbytes()))
            self.note(f"{path} bytes", _memory(storage))
        facts = (value.dtype, tuple(value.shape), value.requires_grad, value.is_leaf)
        self.note(f"{path} is", (*facts, value._version, type(value.grad_fn).__name__))
        with suppress(RuntimeError):
            self.note(f"{path} lies", (value.stride(), value.storage_offset()))
        if value.is_leaf:
            self.add(f"{path}.grad", value.grad)
        self.add(f"{path}._backward_hooks", value._backward_hooks)
        self._attributes(path, value)

    def _storage(self, path: str, value) -> None:
        self.note(f"{path} bytes", (value.data_ptr(), value.nbytes(), _memory(value)))

    def _array(self, path: str, value) -> None:
        flags = (value.flags.writeable, value.shape, value.strides, str(value.dtype))
        self.note(f"{path} is", (value.__array_interface__["data"][0], *flags))
        if value.dtype.hasobject:
            self._sequence(path, value.ravel().tolist())
        else:
            self.note(f"{path} bytes", hashed(value.tobytes()))

    def _file(self, path: str, value) -> None:
        self.note(f"{path} open", not value.closed)
        if value.closed:
            return
        if isinstance(value, io.BytesIO | io.StringIO):
            self.note(f"{path} content", (value.tell(), value.getvalue()))
            return
        with suppress(OSError, ValueError, AttributeError):
            number = value.fileno()
            self.note(f"{path} descriptor", (number, os.lseek(number, 0, os.SEEK_CUR)))
        with suppress(OSError, ValueError, AttributeError):
            # tell() of a text file that is written would flush it
            teller = value.buffer if isinstance(value, io.TextIOWrapper) else value
            self.note(f"{path} position", teller.tell() if teller.seekable() else None)
        self._attributes(path, value)

    def _socket(self, path: str, value) -> None:
        self.note(f"{path} is", (value.fileno(), value.gettimeout()))
        with suppress(OSError):
            self.note(f"{path} ends", value.getsockname())

    def _generator(self, path: str, value) -> None:
        for kind in ("gi", "cr", "ag"):
            frame = getattr(value, f"{kind}_frame", None)
            if hasattr(value, f"{kind}_frame"):
                self.note(f"{path} running", getattr(value, f"{kind}_running"))
                self.note(f"{path} ended", frame is None)
            if frame is not None:
                self.note(f"{path} line", (frame.f_lasti, frame.f_lineno))
                self._mapping(f"{path} locals", dict(frame.f_locals))

    def _iterator(self, path: str, value) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                state = value.__reduce__()
            except (TypeError, AttributeError):
                with suppress(TypeError, AttributeError):
                    self.note(f"{path} left", value.__length_hint__())
                return
        for index, part in enumerate(state[1:]):
            for place, each in enumerate(part if isinstance(part, tuple) else (part,)):
                self._iterator_part(f"{path} state {index}.{place}", each)

    def _iterator_part(self, path: str, value) -> None:
        if isinstance(value, _ITERATORS):  # perhaps made for __reduce__: its id says nothing
            self._iterator(path, value)
        elif isinstance(value, list | tuple):
            self.note(path, [_brief(each) for each in value])
        else:
            self.add(path, value)

    def _function(self, path: str, value) -> None:
        self.note(f"{path} code", f"{id(value.__code__):x}")
        for name in ("__defaults__", "__kwdefaults__", "__dict__"):
            self.add(f"{path}.{name}", getattr(value, name))
        for index, cell in enumerate(value.__closure__ or ()):
            with suppress(ValueError):  # an empty cell
                self.add(f"{path}.cell({index})", cell.cell_contents)

    def _method(self, path: str, value) -> None:
        self.add(f"{path}.__self__", value.__self__)

    def _partial(self, path: str, value) -> None:
        for name in ("func", "args", "keywords"):
            self.add(f"{path}.{name}", getattr(value, name))

    def _cached(self, path: str, value) -> None:
        self.note(f"{path} cache", value.cache_info())
        self.add(f"{path}.__wrapped__", value.__wrapped__)

    def _class(self, path: str, value) -> None:
        if self.is_users(value.__module__):
            hidden = "__dict__", "__weakref__", "__slotnames__"
            names = {k: v for k, v in vars(value).items() if k not in hidden}
            self._named(path, names)

    def _module(self, path: str, value) -> None:
        if self.is_users(value.__name__) and value.__name__ != "__main__":  # looked at as names
            hidden = ("__builtins__", "__spec__", "__loader__")
            self._named(path, {k: v for k, v in vars(value).items() if k not in hidden})

    def is_users(self, name: object) -> bool:
        """Whether a module is the user's: the notebook, or one of the working folder."""
        names = getattr(sys.modules.get(str(name)), "__dict__", {})
        return name == "__main__" or str(names.get("__file__")).startswith(self.home)

    def _lock(self, path: str, value) -> None:
        self.note(f"{path} state", repr(value))

    def _queue(self, path: str, value) -> None:
        self.note(f"{path} waiting", value.qsize())
        self._attributes(path, value)

    def _database(self, path: str, value) -> None:
        try:
            self.note(f"{path} changes", (value.total_changes, value.in_transaction))
            self.note(f"{path} rows", hashed(value.serialize()))
        except (sqlite3.Error, AttributeError) as error:
            self.note(f"{path} changes", type(error).__name__)

    def _weak(self, path: str, value) -> None:
        there = value()
        self.note(f"{path} to", None if there is None else f"{id(there):x}")

    def _finalizer(self, path: str, value) -> None:
        self.note(f"{path} alive", (value.alive, value.atexit))

    def _weak_collection(self, path: str, value) -> None:
        self.note(f"{path} length", len(value))

    def _random(self, path: str, value) -> None:
        self.note(f"{path} state", hashed(repr(value.getstate()).encode()))

    def _numpy_random(self, path: str, value) -> None:
        source = value.bit_generator if isinstance(value, np.random.Generator) else value
        state = source.get_state() if isinstance(source, np.random.RandomState) else source.state
        self.note(f"{path} state", hashed(repr(state).encode()))

    def _torch_random(self, path: str, value) -> None:
        self.note(f"{path} state", hashed(value.get_state().numpy().tobytes()))

    def _future(self, path: str, value) -> None:
        self.note(f"{path} state", value._state)
        if isinstance(value, asyncio.Task):
            self.add(f"{path} runs", value.get_coro())
        if value.done() and not value.cancelled():
            self.add(f"{path} gave", value._result)

    def _loop(self, path: str, value) -> None:
        ways = (value.is_running(), value.is_closed())
        self.note(f"{path} state", (*ways, len(value._ready), len(value._scheduled)))

    def _descriptor(self, path: str, value) -> None:
        for name in ("__func__", "fget", "fset"):
            if hasattr(value, name):
                self.add(f"{path}.{name}", getattr(value, name))

    def _shared_lock(self, path: str, value) -> None:
        self.note(f"{path} state", value._get_value())

    def _ctypes(self, path: str, value) -> None:
        self.note(f"{path} content", hashed(bytes(value)))

    def _reader(self, path: str, value) -> None:
        self.note(f"{path} line", value.line_num)


def _memory(storage) -> str:
    if not storage.nbytes() or not storage.data_ptr():
        return "none"
    return hashed(ctypes.string_at(storage.data_ptr(), storage.nbytes()))


def _brief(value: object) -> str:
    if isinstance(value, tuple):  # as those of dict.items(), made anew each time
        return str([_brief(each) for each in value])
    return repr(value) if isinstance(value, PLAIN) else f"{id(value):x}"


def _kinds_of(*found):
    return tuple(kind for kind in found if kind is not None)


_csv = type(__import__("csv").reader([]))
_semlock = getattr(__import__("_multiprocessing"), "SemLock", None)

_LOOKS = (
    ((torch.Tensor,), Digest._tensor),
    ((torch.UntypedStorage, torch.TypedStorage), Digest._storage),
    ((torch.Generator,), Digest._torch_random),
    ((np.ndarray,), Digest._array),
    ((np.random.Generator, np.random.RandomState), Digest._numpy_random),
    ((random.Random,), Digest._random),
    ((types.ModuleType,), Digest._module),
    ((type,), Digest._class),
    ((types.FunctionType,), Digest._function),
    ((types.MethodType, types.BuiltinMethodType), Digest._method),
    ((functools.partial,), Digest._partial),
    ((functools._lru_cache_wrapper,), Digest._cached),
    ((staticmethod, classmethod, property), Digest._descriptor),
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), Digest._generator),
    (_ITERATORS, Digest._iterator),
    ((_csv,), Digest._reader),
    ((io.IOBase,), Digest._file),
    ((mmap.mmap,), Digest._mmap),
    ((bytearray, memoryview, array.array), Digest._buffer),
    ((ctypes.Array, ctypes._SimpleCData, ctypes.Structure), Digest._ctypes),
    ((socket.socket,), Digest._socket),
    ((sqlite3.Connection,), Digest._database),
    (_LOCKS, Digest._lock),
    (_kinds_of(_semlock), Digest._shared_lock),
    ((queue.SimpleQueue,), Digest._queue),
    (_FUTURES, Digest._future),
    ((asyncio.BaseEventLoop,), Digest._loop),
    ((weakref.ref,), Digest._weak),
    ((weakref.finalize,), Digest._finalizer),
    (_VIEWS, Digest._weak_collection),
    ((dict, types.MappingProxyType, collections.UserDict), Digest._mapping),
    ((list, tuple, collections.deque), Digest._sequence),
    ((set, frozenset), Digest._set),
)
