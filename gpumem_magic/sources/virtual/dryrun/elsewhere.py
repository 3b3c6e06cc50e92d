"""What else holds what a dry run copies, found without running any of the user's code."""

from __future__ import annotations

import gc
import sys
import time
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from gpumem_magic.sources.virtual.dryrun.atoms import ATOMS

_NODES: Final = 50_000
_SECONDS: Final = 0.1
_STOPS: Final = (types.ModuleType, type, types.FrameType, types.CodeType)
_base: Any = torch._C.TensorBase


def holds_tensors(names: Mapping[str, Any]) -> bool:
    """Whether a tensor can be reached from the values of `names`."""
    return next(iter(_tensors(names.values())), None) is not None


def copies_held(
    names: Mapping[str, Any],
    memo: Mapping[int, Any],
    storages: Mapping[int, torch.UntypedStorage],
) -> list[object]:
    """Copies of what the values of `names` lead to as well: objects by `memo`, else storages.

    memo: copies by the id of the original. storages: by the original's `_cdata`. What a copied
    object holds is not looked at: a dry run may take a gradient from a parameter that it shares.
    """
    found: list[object] = []
    for thing in _referred(names.values(), memo):
        copied = memo.get(id(thing), thing)
        if copied is not thing:
            found.append(copied)
        elif isinstance(thing, torch.Tensor):
            parts = (thing, _base.grad.__get__(thing) if thing.is_leaf else None)
            found += [storages.get(_storage(each)) for each in parts if each is not None]
    return [copied for copied in found if copied is not None]


def _storage(tensor: torch.Tensor) -> int:
    if not torch._C._has_storage(tensor):
        return 0
    address: int = _base.untyped_storage(tensor)._cdata
    return address


def _tensors(things: Iterable[Any]) -> Iterator[torch.Tensor]:
    return (thing for thing in _referred(things, {}) if isinstance(thing, torch.Tensor))


def _referred(things: Iterable[Any], ends: Mapping[int, Any]) -> Iterator[Any]:
    """What the things refer to, themselves included: up to 50,000 objects and 0.1 s. Not entered:
    modules, classes, and what `ends` knows by its id."""
    deadline = time.perf_counter() + _SECONDS
    seen = {id(vars(m)) for m in list(sys.modules.values()) if type(m) is types.ModuleType}
    kept: list[Any] = []  # so that ids stay theirs
    waiting = [thing for thing in things if type(thing) not in ATOMS]
    while waiting and len(seen) < _NODES and time.perf_counter() < deadline:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _STOPS):
            continue
        seen.add(id(thing))
        kept.append(thing)
        yield thing
        if gc.is_tracked(thing) and id(thing) not in ends:
            waiting += [each for each in gc.get_referents(thing) if type(each) not in ATOMS]
