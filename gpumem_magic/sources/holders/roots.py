"""Where a walk sets out: the notebook's names, functions that run, other modules, and places that
whoever asks hands in."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from gpumem_magic.sources.holders.code import of_frame
from gpumem_magic.sources.holders.found import Node
from gpumem_magic.sources.objects.contents import fields, is_plain
from gpumem_magic.sources.objects.modules import by_preference
from gpumem_magic.sources.objects.namespaces import is_shells_own, running_locals
from gpumem_magic.sources.stacks.frames import LIBRARIES, PACKAGE, outwards
from gpumem_magic.values.inventory import HolderKind


@dataclass(frozen=True, slots=True)
class Root:
    """A place outside the notebook's names that keeps things alive: a kind of holder, what to call
    it ("Out[5]"), how to look there, and how to empty it. get may raise: then nothing is there."""

    kind: HolderKind
    name: str
    get: Callable[[], object]
    drop: Callable[[], None]

    def nodes(self) -> Iterator[Node]:
        """The node to set out from."""
        try:
            thing = self.get()
        except Exception:  # it is not there, or no more
            return
        if not is_plain(thing):
            yield Node.root(self.kind, self.name, thing)


def named_roots(torch: Any, namespace: Mapping[str, Any], names: Collection[str]) -> list[Node]:
    """The user's names that are among `names`, the shortest first; `self`, and modules that others
    list, last."""
    is_shell = "_oh" in namespace
    named = [
        (name, thing)
        for name, thing in list(namespace.items())
        if type(name) is str
        and name in names
        and not is_plain(thing)
        and not (is_shell and is_shells_own(name))
    ]
    return [
        Node.root(HolderKind.VARIABLE, name, thing)
        for rows in by_preference(torch, named)
        for name, thing in rows
    ]


def running_roots(namespace: Mapping[str, Any]) -> Iterator[Node]:
    """Variables of the functions that run: the user's in this thread, all in others."""
    frames = sys._current_frames()
    here = threading.get_ident()
    for name, value in running_locals(frames.pop(here, None), namespace).items():
        yield Node.root(HolderKind.RUNNING, f"running: {name}", value)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, innermost in frames.items():
        for frame in outwards(innermost):
            if not frame.f_code.co_filename.startswith(PACKAGE):
                for edge in of_frame(frame, f"thread {names.get(ident, ident)}"):
                    yield Node.root(HolderKind.RUNNING, edge.path, edge.thing)


def module_roots(namespace: Mapping[str, Any]) -> Iterator[Node]:
    """Variables of modules that are not installed libraries."""
    for name, module in list(sys.modules.items()):
        held = fields(module)
        if held is namespace or not _is_users_own(name, held):
            continue
        is_shell = "_oh" in held
        for key, value in list(held.items()):
            own = type(key) is str and not key.startswith("__")
            if own and not is_plain(value) and not (is_shell and is_shells_own(key)):
                yield Node.root(HolderKind.MODULE_STATE, f"{name}.{key}", value)


def _is_users_own(name: str, held: Mapping[str, Any]) -> bool:
    """Whether a module is no installed library; one without a file was made by hand."""
    file = held.get("__file__")
    if file is None and held.get("__spec__") is None and "." not in name:
        return True
    return type(file) is str and file not in LIBRARIES


def registry_roots() -> Iterator[Node]:
    """The arguments of what `weakref.finalize` will call, but for torch's own libraries of
    operators: thousands of names."""
    calls = list(weakref.finalize.__dict__.get("_registry", {}).values())
    for number, call in enumerate(calls):
        if type(call.func) is FunctionType and call.func.__module__ == "torch.library":
            continue
        for argument in (*call.args, *(call.kwargs or {}).values()):
            if not is_plain(argument):
                path = f"weakref.finalize: arguments[{number}]"
                yield Node.root(HolderKind.MODULE_STATE, path, argument)


def hook_roots() -> Iterator[Node]:
    """torch's hooks on all modules and optimizers."""
    for name in ("torch.nn.modules.module", "torch.optim.optimizer"):
        for key, value in list(fields(sys.modules.get(name)).items()):
            if key.startswith("_global_") and "hooks" in key:
                yield Node.root(HolderKind.HOOK, f"{name}.{key}", value)
