"""Answers about the device that libraries remember: inside a dry run they are asked for anew, apart
from what torch itself remembers, which changes with every card (virtual/gpu.py)."""

from __future__ import annotations

import functools
import sys
from contextlib import suppress
from typing import Any

import torch

from gpumem_magic.virtual.devices import DEVICE


def forget_answers() -> None:
    """Forget what functions of loaded modules have remembered of the device, and set the one that
    Accelerate keeps; only in a process that ends with the dry run."""
    for module in list(sys.modules.values()):
        with suppress(Exception):  # modules may be any objects
            for value in list(vars(module).values()):
                if type(value) is functools._lru_cache_wrapper and _asks_for_device(value):
                    value.cache_clear()
    _answer_for_accelerate()


def _asks_for_device(function: Any) -> bool:
    code = getattr(function.__wrapped__, "__code__", None)
    return code is not None and any("cuda" in name or "gpu" in name for name in code.co_names)


def _answer_for_accelerate() -> None:
    """Its state is of one process for good: made before there was a card, it is the host's."""
    module = sys.modules.get("accelerate.state")
    for name in ("PartialState", "AcceleratorState"):
        state = getattr(getattr(module, name, None), "_shared_state", {})
        device = state.get("device")
        if isinstance(device, torch.device) and device.type == "cpu" and not state.get("_cpu"):
            state["device"] = DEVICE
