"""Where a process cannot be forked: a fresh one, to which the namespace is sent. What cannot be
sent is told, and undefined there."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import importlib
import io
import os
import pickle
import random
import re
import subprocess
import sys
import types
import weakref
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.shared_memory import ShareableList, SharedMemory
from pathlib import Path
from typing import Any, Final

import cloudpickle
import numpy as np
import torch

from gpumem_magic.dryrun.in_use import CardInUse
from gpumem_magic.dryrun.inside import Outcome, Plan, run_inside
from gpumem_magic.dryrun.shapes.valueless import tensor_over, untouched
from gpumem_magic.isolation.child import Child, Inside, Work, answer_of, explaining, read_file
from gpumem_magic.isolation.effects import stop_effects
from gpumem_magic.isolation.progress import Progress
from gpumem_magic.sources.failures import one_line

_NOT_SENT: Final = frozenset(
    ("In", "Out", "get_ipython", "exit", "quit", "open", "display", "__builtins__", "__spec__")
)
_OF_IPYTHON: Final = re.compile("_+|_i*[0-9]*|_[iod]h|_exit_code|__[a-z]+__")
"""The notebook's own, which no message speaks of."""

_NOT_READ: Final = (
    *(ctypes.CDLL, ctypes.Structure, torch._C.Generator),
    *(SharedMemory, ShareableList, memoryview, *weakref.ProxyTypes),
)
"""A process that opens shared memory by its name has multiprocessing remove it at its end."""

_PROTOCOL: Final = 3
"""Of pickle, which numbers what it has written: what follows on a thing that cannot be read can."""

_KEPT_VALUES = 2**20
"""Bytes up to which a storage is sent with its values."""

_base: Any = torch._C.TensorBase
_START = "from gpumem_magic.dryrun.fresh import main; main()"


class FreshProcess(Child):
    """A process that did not know the notebook before; seen from its parent it is as a Child."""

    def __init__(self, plan: Plan, in_use: CardInUse) -> None:
        self._plan, self._in_use = plan, in_use
        super().__init__(lambda inside: None)

    def _begin(self, work: Work) -> tuple[int, int]:
        order = self.scratch / "order"
        order.write_bytes(_order(self._plan, self._in_use))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(self.scratch)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # for its end alone: that of the process
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        return self._process.pid, self._process.stdout.fileno()

    def poll(self) -> bool:
        """Whether the process has ended."""
        if self._process.poll() is None:
            return False
        self._parts = read_file(self.scratch / "answer")
        return True

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _status(self) -> int | None:
        status = self._process.wait()
        return -status if status < 0 else status << 8


def main() -> None:
    """What the fresh process does; its argument: the folder of the run."""
    scratch = Path(sys.argv[1])
    inside = Inside(scratch, Progress(scratch / "progress"), -1)
    (scratch / "answer").write_bytes(answer_of(lambda: _carry_out(scratch, inside)))
    os._exit(0)


def _carry_out(scratch: Path, inside: Inside) -> Outcome:
    with (scratch / "order").open("rb") as file:
        sys.path[:], filename, randoms, dtype, modules, head, parts = pickle.load(file)
    stopped = stop_effects(inside, filename)
    stopped.close_doors()  # what comes next imports the user's modules
    unpickler = _Unpickler()
    with explaining("the cell cannot be sent to the dry run"):
        plan, anchor, sent, missing = unpickler.read(head)
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    made = {name: unpickler.read_or_error(part) for name, part in parts.items()}
    printed = stopped.output()  # by modules that were imported
    random.setstate(randoms[0])
    np.random.set_state(randoms[1])
    torch.set_rng_state(randoms[2])
    torch.set_default_dtype(dtype)
    namespace = anchor.__globals__  # of all functions that came from the notebook
    namespace.update({name: value for name, (value, error) in made.items() if not error})
    namespace["__name__"] = "__main__"
    plan = replace(plan, scenario=replace(plan.scenario, namespace=namespace))
    outcome = run_inside(plan, sent.card(unpickler.storages.values()), stopped)
    lost = [f"{name} ({error})" for name, (_, error) in made.items() if error]
    notes = (
        *_told("as it cannot be sent to its process", missing),
        *_told("as it cannot be made in its process", lost),
    )
    recording = outcome.recording
    output = recording.output.removeprefix(printed)
    notes = (*recording.notes, *notes)
    return replace(outcome, recording=replace(recording, notes=notes, output=output))


def _told(why: str, names: list[str]) -> tuple[str, ...]:
    return (f"Not defined in the dry run, {why}: {', '.join(names)}.",) if names else ()


def _order(plan: Plan, in_use: CardInUse) -> bytes:
    scenario = plan.scenario
    names = {name: value for name, value in scenario.namespace.items() if _is_users(name)}
    randoms = random.getstate(), np.random.get_state(), torch.get_rng_state()
    bare = replace(plan, scenario=replace(scenario, namespace={}, cells=dict(scenario.cells)))
    anchor = types.FunctionType((lambda: None).__code__, scenario.namespace)
    anchor.__module__ = "__main__"
    missing = _cannot_be_sent(names, in_use)
    pickler = _Pickler(in_use)
    head = pickler.write((bare, anchor, in_use.sent(scenario.cell), missing))
    parts = {name: pickler.write(value) for name, value in names.items() if name not in missing}
    state = list(sys.path), scenario.cell.filename, randoms, torch.get_default_dtype()
    return pickle.dumps((*state, _submodules(scenario.cell.python, names), head, parts))


def _submodules(code: str, names: Mapping[str, Any]) -> list[str]:
    """Modules that the code finds as attributes of others, since a cell before has imported them:
    `import xml.dom.minidom`."""
    known = {name: value for name, value in names.items() if type(value) is types.ModuleType}
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute):
            name, _, rest = ast.unparse(node).partition(".")
            found |= {f"{known[name].__name__}.{rest}"} if name in known else set()
    return sorted(found & sys.modules.keys())


def _is_users(name: Any) -> bool:
    """Whether the notebook's user has given it, and code can speak of it."""
    return isinstance(name, str) and name not in _NOT_SENT and not _OF_IPYTHON.fullmatch(name)


def _cannot_be_sent(names: dict[str, Any], in_use: CardInUse) -> list[str]:
    def fails(value: Any) -> bool:
        try:
            _Pickler(in_use).write(value)
        except KeyboardInterrupt:
            raise
        except BaseException:  # whatever the user's own ways to be pickled raise
            return True
        return False

    return [name for name, value in names.items() if fails(value)] if fails(names) else []


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no annotations
    """Sends storages once each, large ones and those of a device without values."""

    def __init__(self, in_use: CardInUse) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, _PROTOCOL)
        self._in_use = in_use

    def write(self, thing: Any) -> bytes:
        """For `_Unpickler.read`, in the order in which it was written."""
        self._file.seek(0)
        self._file.truncate()
        self.dump(thing)
        return self._file.getvalue()

    def persistent_id(self, thing: Any) -> Any:
        """What stands for a storage: see `_Unpickler.persistent_load`."""
        if not issubclass(type(thing), torch.UntypedStorage):
            return None
        size = thing.nbytes()
        on_host = torch._C.StorageBase.device.__get__(thing).type == "cpu"  # type: ignore[attr-defined]
        content = ctypes.string_at(thing.data_ptr(), size) if on_host else None
        content = content if size <= _KEPT_VALUES else None
        return thing._cdata, size, content, self._in_use.address(thing)

    def reducer_override(self, thing: Any) -> Any:
        """Tensors are taken apart here: on a virtual card they would tell of a device. What can be
        written but not read elsewhere is refused."""
        kind = type(thing)  # a proxy may run things where it is asked what it is
        if issubclass(kind, _NOT_READ) or kind.__module__ == "_ctypes" or _is_open(thing):
            raise pickle.PicklingError(f"{kind.__name__} is of this process alone")
        if any("__class__" in vars(each) for each in kind.__mro__[:-1]):
            raise pickle.PicklingError(f"{kind.__name__} stands for something else")
        if kind is functools._lru_cache_wrapper and thing.__module__ == "__main__":
            return _cached, (thing.__wrapped__, thing.cache_parameters())
        if kind not in (torch.Tensor, torch.nn.Parameter):
            return super().reducer_override(thing)
        if _base.grad_fn.__get__(thing) is not None:
            raise pickle.PicklingError("the graph of a tensor cannot be sent")
        geometry = _base.dtype.__get__(thing), _base.size(thing), _base.stride(thing)
        place = _base.untyped_storage(thing), _base.storage_offset(thing)
        grad = _base.grad.__get__(thing)
        return _tensor, (type(thing), place, geometry, _base.requires_grad.__get__(thing), grad)


def _is_open(thing: Any) -> bool:
    """Whether it is an open file: cloudpickle would read it, and so move the user's place in it."""
    in_memory = issubclass(type(thing), (io.BytesIO, io.StringIO))
    standard = thing is sys.stdout or thing is sys.stderr  # sent by name
    return issubclass(type(thing), io.IOBase) and not in_memory and not standard


class _Unpickler(pickle.Unpickler):
    """Makes storages anew. storages: each with its address on the card in use, None for one of the
    host, and whether its values came along."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file)
        self.storages: dict[int, tuple[torch.UntypedStorage, int | None, bool]] = {}

    def read(self, part: bytes) -> Any:
        """What `_Pickler.write` was given."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(part)
        self._file.seek(0)
        return self.load()

    def read_or_error(self, part: bytes) -> tuple[Any, str]:
        """What `_Pickler.write` was given, and ""; or why it cannot be made here."""
        try:
            return self.read(part), ""
        except BaseException as error:  # whatever the user's own ways to be read raise
            return None, one_line(error)

    def persistent_load(self, sent: Any) -> torch.UntypedStorage:
        """The storage of a `_cdata`: its size, bytes or None, address or None."""
        identity, size, content, address = sent
        if identity not in self.storages:
            storage = untouched(size)
            if content:
                ctypes.memmove(storage.data_ptr(), content, size)
            self.storages[identity] = storage, address, content is not None
        return self.storages[identity][0]


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _tensor(
    kind: type,
    place: tuple[torch.UntypedStorage, int],
    geometry: tuple[torch.dtype, Any, Any],
    requires_grad: bool,
    grad: torch.Tensor | None,
) -> torch.Tensor:
    made = tensor_over(place[0], *geometry, place[1])
    if kind is torch.nn.Parameter:
        made = torch.nn.Parameter(made, requires_grad)
    elif requires_grad:
        made.requires_grad_(True)
    if grad is not None:
        made.grad = grad
    return made
