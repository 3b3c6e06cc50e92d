"""Where a history's backward passes lie: autograd works in threads that have no Python stack."""

from __future__ import annotations

from collections.abc import Iterator

from gpumem_magic.sources.cuda.history import Columns
from gpumem_magic.sources.cuda.regions import Span, completed
from gpumem_magic.values.recording import Phase, Stack

_AUTOGRAD = ("torch/autograd/__init__.py", "torch/autograd/graph.py")


def backward_passes(columns: Columns) -> Iterator[Span]:
    """One span for every stretch of events that autograd's threads made.

    Its stack is that of the call of `backward()` before it, which makes the first gradient itself;
    () where that was given one, or where the stretch came first.
    """
    callers = [_call_of_backward(stack) for stack in columns.stacks]
    if not callers:  # no stack was recorded at all, so their absence tells nothing
        return
    caller: Stack = ()
    begin: int | None = None
    for position, number in enumerate([*columns.events.stack.tolist(), None]):
        inside = number is not None and (number < 0 or _is_below(columns.stacks[number], caller))
        if inside:
            begin = position if begin is None else begin
            continue
        if begin is not None:
            yield Span(Phase.BACKWARD, begin, position, caller)
            begin = None
        caller = callers[number] if number is not None else ()
        if caller:
            begin = position


def _call_of_backward(stack: Stack) -> Stack:
    """The stack from autograd's own call outwards; () outside of one."""
    for depth in range(len(stack) - 1, -1, -1):
        if stack[depth].filename.replace("\\", "/").endswith(_AUTOGRAD):
            return stack[depth:]
    return ()


def _is_below(stack: Stack, caller: Stack) -> bool:
    """Whether a stack that has begun in another thread belongs to the backward pass of `caller`."""
    return bool(caller) and completed(stack, caller) is not stack
