"""Answers about the device that libraries remember: inside a dry run they are asked for anew, apart
from what torch itself remembers, which changes with every card (virtual/gpu.py)."""

from __future__ import annotations

import functools
import gc
import sys
from contextlib import suppress
from typing import Any

import torch

from gpumem_magic.virtual.devices import DEVICE

_MADE = (torch.Tensor, torch.nn.Module)


def forget_answers() -> None:
    """Forget what functions of loaded modules have remembered of the device, and set the one that
    Accelerate keeps; only in a process that ends with the dry run."""
    for module in list(sys.modules.values()):
        with suppress(Exception):  # modules may be any objects
            for value in list(vars(module).values()):
                if type(value) is functools._lru_cache_wrapper and _answers_for_device(value):
                    value.cache_clear()
    _answer_for_accelerate()


def _answers_for_device(function: Any) -> bool:
    """Whether it asks for the device, and what it remembers are answers, not tensors or models."""
    code = getattr(function.__wrapped__, "__code__", None)
    asks = code is not None and any("cuda" in name or "gpu" in name for name in code.co_names)
    return asks and not any(isinstance(it, _MADE) for it in _remembered(function))


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
