"""Which storages other names hold, found without running any of the user's code."""

from __future__ import annotations

import gc
import sys
import time
import types
from collections.abc import Iterable, Mapping
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


def storages_held(names: Mapping[str, Any]) -> set[int]:
    """The `_cdata` of the storages that the values of `names` lead to, graphs left out."""
    found = set()
    for tensor in _tensors(names.values()):
        for each in (tensor, _base.grad.__get__(tensor) if tensor.is_leaf else None):
            if each is not None and torch._C._has_storage(each):
                found.add(_base.untyped_storage(each)._cdata)
    return found


def _tensors(things: Iterable[Any]) -> Iterable[torch.Tensor]:
    """Tensors among what the things refer to: up to 50,000 objects and 0.1 s."""
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
        if isinstance(thing, torch.Tensor):
            yield thing
        if gc.is_tracked(thing):
            waiting += [each for each in gc.get_referents(thing) if type(each) not in ATOMS]
