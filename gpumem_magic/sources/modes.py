"""Takes a mode off torch's stack of modes. It stands apart because two rooms call it, and
neither may hold it for the other."""

from __future__ import annotations

from typing import Any


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
