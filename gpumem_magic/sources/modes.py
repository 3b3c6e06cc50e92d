"""Puts a mode onto torch's stack of modes, and takes it off. It stands apart because two rooms call
it, and neither may hold it for the other."""

from __future__ import annotations

from typing import Any

from torch.utils._device import DeviceContext


def enter_mode(mode: Any, stack: list[Any], module: Any) -> None:
    """Enter `mode` below those that user code has left open: what ends one of them takes the
    uppermost off, which has to be theirs. module: as for `leave_mode`."""
    above = [one for one in stack if not _is_torchs(one)]
    for _ in above:
        module._pop_mode()
    mode.__enter__()
    for other in above:
        module._push_mode(other)


def _is_torchs(mode: Any) -> bool:
    """Whether torch keeps it at the bottom, or apart from the others."""
    return isinstance(mode, DeviceContext) or getattr(mode, "_mode_key", None) is not None


def leave_mode(mode: Any, stack: list[Any], module: Any) -> None:
    """Take `mode` off, from wherever it is in the stack; those that user code has left open above
    stay. module: has the `_pop_mode` and `_push_mode` of that stack."""
    if mode not in stack:
        return
    above = stack[stack.index(mode) + 1 :]
    for _ in above:
        module._pop_mode()
    mode.__exit__(None, None, None)
    for other in above:
        module._push_mode(other)
