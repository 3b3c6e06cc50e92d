"""Answers about the device that libraries remember: inside a dry run they are asked for anew, apart
from what torch itself remembers, which changes with every card (virtual/gpu.py). And the one about
torch's build that they ask beside it."""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.in_modules import InModules, namespace_of
from gpumem_magic.isolation.telling import users_modules
from gpumem_magic.virtual.devices import DEVICE

_CACHED = functools._lru_cache_wrapper
_MADE = (torch.Tensor, torch.nn.Module)

_RUNTIME = "12.8"
"""The CUDA version of a torch that was built without."""


def forget_answers() -> None:
    """Forget what functions of loaded modules have remembered of the device, and set the one that
    Accelerate keeps; only in a process that ends with the dry run."""
    anew = (found for module in ("__main__", *users_modules()) for found in _functions_of(module))
    for module, name in {*functions_that_ask(), *anew}:
        function = getattr(sys.modules[module], name, None)
        # what they remember are answers, not tensors or models
        if isinstance(function, _CACHED) and not any(
            isinstance(it, _MADE) for it in _remembered(function)
        ):
            function.cache_clear()
    _answer_for_accelerate()


def _functions_of(module: str) -> Iterator[tuple[str, str]]:
    for name, value in [*namespace_of(sys.modules.get(module)).items()]:
        if type(value) is _CACHED and _asks(value):
            yield module, name


functions_that_ask = InModules(_functions_of)
"""Module and name of what asks for the device and remembers it."""


def _asks(function: Any) -> bool:
    with suppress(Exception):  # what is wrapped may be any object
        return any(
            "cuda" in name or "gpu" in name for name in function.__wrapped__.__code__.co_names
        )
    return False


def _remembered(function: Any) -> list[Any]:
    """What a cache holds, and what lies in that, such as a tuple's items."""
    own = id(function.__wrapped__), id(vars(function))
    held = [
        it for it in gc.get_referents(function) if not isinstance(it, type) and id(it) not in own
    ]
    deeper = gc.get_referents(*held)  # of a cache without bound: what is in its table
    return [*held, *deeper, *gc.get_referents(*deeper)]


def _answer_for_accelerate() -> None:
    """Its state is of one process for good: made before there was a card, it is the host's."""
    module = sys.modules.get("accelerate.state")
    for name in ("PartialState", "AcceleratorState"):
        state = getattr(getattr(module, name, None), "_shared_state", {})
        device = state.get("device")
        if isinstance(device, torch.device) and device.type == "cpu" and not state.get("_cpu"):
            state["device"] = DEVICE


def name_a_runtime(arrivals: Arrivals) -> None:
    """Have a torch without CUDA name a version of it, as programs ask for TF32 and kernels by it;
    not to libraries that are being imported: they compare it with what they were built for."""
    if torch.version.cuda or torch.version.hip:
        return

    class Version(types.ModuleType):
        cuda = property(lambda module: None if arrivals.is_importing else _RUNTIME)

    torch.version.__class__ = Version
