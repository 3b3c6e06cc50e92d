"""Copies everything that names lead to, and knows by its path what it could not copy."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import gc
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gpumem_magic.sources.virtual.dryrun.atoms import (
    ATOMS,
    FAMILIES,
    OUTSIDE_PACKAGES,
    SHARED_PACKAGES,
)
from gpumem_magic.sources.virtual.dryrun.code_copies import CODE, CodeCopies
from gpumem_magic.sources.virtual.dryrun.container_copies import CONTAINERS, Handler, instances_of
from gpumem_magic.sources.virtual.dryrun.paths import ATTRIBUTE, PART, Path, Step, written
from gpumem_magic.sources.virtual.dryrun.special_copies import copy_generator, special
from gpumem_magic.sources.virtual.dryrun.tensor_copies import (
    CopiesOfStorages,
    RefusedError,
    TensorCopies,
    copies_of_storage,
)
from gpumem_magic.sources.virtual.patches import Patches

_ABSENT: Final = object()
_OWN_PACKAGE: Final = __name__.partition(".")[0]


class Copier:
    """Copies objects, each once. memo: copies by the id of the original, as copy.deepcopy has it.

    What cannot be copied is shared, and `notes` says so. `code.exchanges` is what hangs on
    functions, classes and modules; `later` is to be called when all has been copied.
    """

    def __init__(self, namespace: dict[str, Any], storages: CopiesOfStorages) -> None:
        self.memo: dict[int, Any] = {id(namespace): namespace}
        self.memo.update((id(vars(m)), vars(m)) for m in list(sys.modules.values()) if _is_plain(m))
        self.alive: list[Any] = []  # originals: their ids must stay theirs
        self.weakly_held: list[Any] = []  # copies that weak references lead to
        self.later: list[Callable[[], None]] = []
        self.tensors = TensorCopies(self, storages)
        self.code = CodeCopies(self, namespace)
        self._handlers: dict[type, Handler] = {**CONTAINERS, **CODE}
        self._shared: dict[str, list[str]] = {}
        self._said: dict[str, None] = {}

    def copy(self, thing: Any, path: Path) -> Any:
        """The copy of `thing`, or itself where it is shared. Raises only where all must end."""
        kind = type(thing)
        if kind in ATOMS:
            return thing
        key = id(thing)
        found = self.memo.get(key, _ABSENT)
        if found is not _ABSENT:
            return found
        handler = self._handlers.get(kind) or self._learn(kind)
        try:
            made = handler(self, thing, path)
        except RefusedError:
            raise
        except Exception:  # whatever the code of its class raises
            made = self.share(thing, path)
        self.memo[key] = made
        self.alive.append(thing)
        return made

    def share(self, thing: Any, path: Path) -> Any:
        """Use the user's own object, and say so."""
        self._shared.setdefault(type(thing).__name__, []).append(written(path))
        return thing

    def say(self, sentence: str) -> None:
        """Something that the user should know of the copies."""
        self._said[sentence] = None

    def notes(self) -> tuple[str, ...]:
        """All that is to be said, one sentence each."""
        return (*self._said, *(_sharing(kind, paths) for kind, paths in self._shared.items()))

    def finish(self) -> None:
        """What can only be done when everything has its copy."""
        while self.later:
            self.later.pop()()

    def held_elsewhere(self) -> tuple[Any, ...]:
        """Copies that nothing holds but weak references: what holds the originals was not copied,
        so nothing in a dry run can let them go."""
        targets: dict[int, Any] = {id(copied): copied for copied in self.weakly_held}
        self.weakly_held.clear()
        self.memo[0] = targets[0] = _Nothing()  # held by us alone: how many references that makes
        counts = {key: sys.getrefcount(copied) for key, copied in targets.items()}
        return tuple(targets[key] for key, count in counts.items() if key and count <= counts[0])

    def forget(self) -> None:
        """Let go of all originals and copies; notes and exchanges remain."""
        self.memo.clear()
        self.alive.clear()
        self.later.clear()
        self.weakly_held.clear()
        self.tensors.forget()

    def _learn(self, kind: type) -> Handler:
        self.code.instance_of(kind)
        handler = self._handlers[kind] = self._handler_of(kind)
        return handler

    def _handler_of(self, kind: type) -> Handler:
        package = (getattr(kind, "__module__", None) or "").partition(".")[0]
        if issubclass(kind, type):
            return CodeCopies.of_class
        if issubclass(kind, torch._C.Generator):  # a virtual card's own, too
            return copy_generator
        if package in SHARED_PACKAGES or package == _OWN_PACKAGE or issubclass(kind, FAMILIES):
            return _shared
        if issubclass(kind, types.ModuleType):
            return CodeCopies.of_module
        if issubclass(kind, torch.Tensor):
            return self.tensors.handler_of(kind)
        found = special(kind)
        if found is not None:
            return found
        if package in OUTSIDE_PACKAGES:
            return Copier.share
        if issubclass(kind, (torch.UntypedStorage, torch.storage.TypedStorage)):
            return copies_of_storage
        if hasattr(kind, "__deepcopy__"):
            return _deepcopied
        if kind in copyreg.dispatch_table:
            return _reduced
        return instances_of(kind) or _reduced


class _Nothing:
    pass


def _is_plain(module: object) -> bool:
    return type(module) is types.ModuleType


def _sharing(kind: str, paths: list[str]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return (
        f"{paths[0]}{more} ({kind}) cannot be copied: what the dry run changes in it stays changed"
    )


def _shared(copier: Copier, thing: Any, path: Path) -> Any:
    return thing


def _deepcopied(copier: Copier, thing: Any, path: Path) -> Any:
    """By the way of its class, which asks copy.deepcopy for the parts; that asks us."""
    return thing.__deepcopy__(copier.memo)


def _reduced(copier: Copier, thing: Any, path: Path) -> Any:
    """As copy.deepcopy does where a class tells how to make another of its instances."""
    kind = type(thing)
    reduce = copyreg.dispatch_table.get(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # iterators, from Python 3.12 on
        value = reduce(thing) if reduce else thing.__reduce_ex__(4)
    if isinstance(value, str):
        return thing
    make, args, state, items, entries = (*value, None, None, None)[:5]
    copier.alive.append(value)
    made = make(*(copier.copy(arg, Step(path, PART, f"part {i}")) for i, arg in enumerate(args)))
    copier.memo[id(thing)] = made
    if state is not None:
        _set_state(made, copier.copy(state, path))
    for item in items or ():
        made.append(copier.copy(item, path))
    for key, item in entries or ():
        made[copier.copy(key, path)] = copier.copy(item, Step(path, ATTRIBUTE, key))
    return made


def _set_state(made: Any, state: Any) -> None:
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
        return
    slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    if state:
        made.__dict__.update(state)
    for name, value in (slots or {}).items():
        setattr(made, name, value)


@contextlib.contextmanager
def copying(copier: Copier) -> Iterator[None]:
    """Within, copy.deepcopy and what tensors do in it ask `copier` where its memo is handed in.

    Torch's modes are off, and the many new objects do not bring a garbage collection forward. A
    module that is imported meanwhile may keep what stands for copy.deepcopy: afterwards that knows
    nothing of `copier`.
    """
    patches = Patches()
    at_work = [copier]
    collects = gc.isenabled()
    gc.disable()
    try:
        places = (
            torch.Tensor,
            torch.nn.Parameter,
            torch.UntypedStorage,
            torch.storage.TypedStorage,
        )
        for owner in places:
            patches.set(owner, "__deepcopy__", _asking(at_work, owner.__deepcopy__))
        deepcopy = copy.deepcopy

        def copied(x: Any, memo: Any = None, *rest: Any) -> Any:
            if at_work and memo is at_work[0].memo:
                return at_work[0].copy(x, "...")
            return deepcopy(x, memo, *rest)

        patches.set(copy, "deepcopy", copied)
        with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.enable_grad():
            yield
    finally:
        patches.restore()
        at_work.clear()
        if collects:
            gc.enable()


def _asking(at_work: list[Copier], original: Any) -> Any:
    def __deepcopy__(self: Any, memo: Any) -> Any:  # noqa: N807
        if at_work and memo is at_work[0].memo:
            return at_work[0].copy(self, "...")
        return original(self, memo)

    return __deepcopy__
