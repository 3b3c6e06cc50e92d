"""Which part of a program is a backward pass and which an optimizer's step, told while it runs:
torch names neither in its memory events, and autograd's threads carry no Python stack."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from gpumem_magic.sources.stacks.frames import PACKAGE, outwards
from gpumem_magic.values.recording import Frame, Phase, Stack

BACKWARD = "backward begins"
STEP = "step begins"
STEPPED = "step ended"


@dataclass(frozen=True, slots=True)
class Span:
    """Events from position `start` to `end` (exclusive) ran in `phase`; `stack` made the call."""

    phase: Phase
    start: int
    end: int
    stack: Stack


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    phase: Phase
    start: int
    stack: Stack
    thread: int


def stack_of(frame: FrameType | None) -> Stack:
    """The Python stack from `frame` outwards, innermost first."""
    return tuple(
        Frame(each.f_code.co_filename, each.f_lineno or 0, each.f_code.co_name)
        for each in outwards(frame)
        if not each.f_code.co_filename.startswith(PACKAGE)
    )


def completed(stack: Stack, caller: Stack) -> Stack:
    """`stack` with the frames of `caller` beneath it, where it began in one of autograd's threads.

    A stack that already ends where the caller's does, or in a thread that Python started, is whole.
    """
    if not stack or not caller:
        return stack or caller
    outermost = stack[-1]
    if outermost.function == caller[-1].function and outermost.filename == caller[-1].filename:
        return stack
    if outermost.function == "_bootstrap" and outermost.filename.endswith("threading.py"):
        return stack
    return stack + caller


def encloses(caller: Stack, stack: Stack) -> bool:
    """Whether `stack` lies inside the call that `caller` was in (its innermost frame moves on)."""
    depth = len(caller) - 1
    return len(stack) > depth and (depth < 1 or stack[-depth:] == caller[1:])


class Regions:
    """Watches backward passes and optimizer steps between `install` and `remove`.

    position: the number of memory events so far (or any mark that grows with it). on_moment(kind,
    optimizer): called when a backward pass begins (BACKWARD, None) and when an optimizer's step
    begins (STEP) and ends (STEPPED); it must not raise. on_backward(n): n backward passes more
    run now. last: what ended last, also in an earlier watch.
    """

    def __init__(
        self,
        position: Callable[[], int],
        on_moment: Callable[[str, object | None], None],
        on_backward: Callable[[int], None] = lambda more: None,
    ) -> None:
        self._position = position
        self._on_moment = on_moment
        self._on_backward = on_backward
        self._open: list[_Open] = []
        self._closed: list[Span] = []
        self.last: Phase | None = None
        self._installed = False
        self._originals: dict[str, Callable[..., Any]] = {}
        self._wrappers: dict[str, Callable[..., Any]] = {}
        self._handles: list[Any] = []
        self._fault: Exception | None = None

    @property
    def spans(self) -> tuple[Span, ...]:
        """Outer spans before the ones they contain, so that later ones may overwrite earlier.

        Raises as `check`.
        """
        self.check()
        still = [self._span(region, sys.maxsize) for region in reversed(self._open)]
        outer_first = list(reversed(self._closed + still))  # inner spans close first
        return tuple(sorted(outer_first, key=lambda span: (span.start, -span.end)))

    def check(self) -> None:
        """Raise what watching has raised, if it did."""
        if self._fault is not None:
            raise self._fault

    def install(self) -> None:
        """Begin to watch. Forgets what an earlier watch saw."""
        import torch
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self._open, self._closed, self._fault = [], [], None
        self._installed = True
        autograd: Any = torch.autograd
        # one door for backward() and grad(); torch 2.1 has not got it
        names = ("_engine_run_backward",)
        for name in names if hasattr(autograd, names[0]) else ("backward", "grad"):
            self._originals[name] = getattr(autograd, name)
            self._wrappers[name] = self._watched(self._originals[name])
            setattr(autograd, name, self._wrappers[name])
        self._handles.append(register_optimizer_step_pre_hook(self._before_step))
        self._handles.append(register_optimizer_step_post_hook(self._after_step))

    def remove(self) -> None:
        """Stop watching and put everything back. What did not end ends here."""
        if not self._installed:
            return
        import torch

        self._installed = False
        for name, wrapper in self._wrappers.items():
            if getattr(torch.autograd, name) is wrapper:  # else someone wrapped ours: it is inert
                setattr(torch.autograd, name, self._originals[name])
        for handle in self._handles:
            handle.remove()
        self._originals, self._wrappers, self._handles = {}, {}, []
        while self._open:
            self._close(self._open[-1])

    def _watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if not self._installed:
                return run(*args, **kwargs)
            region = None
            with self._until_the_end():
                self._on_backward(1)
                self._on_moment(BACKWARD, None)
                region = self._begin(Phase.BACKWARD, sys._getframe(1))
            try:
                return run(*args, **kwargs)
            finally:
                with self._until_the_end():
                    self._on_backward(-1)
                    self._close(region)

        return run_backward

    @contextmanager
    def _until_the_end(self) -> Iterator[None]:
        """Keep an error of ours, which is no matter of the user's backward pass or step."""
        try:
            yield
        except Exception as error:
            self._fault = error

    def _before_step(self, optimizer: object, args: object, kwargs: object) -> None:
        with self._until_the_end():
            self._on_moment(STEP, optimizer)
            self._begin(Phase.OPTIMIZER, sys._getframe(1))

    def _after_step(self, optimizer: object, args: object, kwargs: object) -> None:
        with self._until_the_end():
            steps = [region for region in self._open if region.phase is Phase.OPTIMIZER]
            self._close(steps[-1] if steps else None)
            self._on_moment(STEPPED, optimizer)

    def _begin(self, phase: Phase, frame: FrameType) -> _Open:
        thread = threading.get_ident()
        stack = stack_of(frame)
        self._close_failed_steps(thread, stack)
        if self._open and self._open[-1].thread != thread:
            stack = completed(stack, self._open[-1].stack)
        region = _Open(phase, self._position(), stack, thread)
        self._open.append(region)
        return region

    def _close_failed_steps(self, thread: int, stack: Stack) -> None:
        """A step that raised never says so; it is over when something begins outside of it."""
        while self._open:
            last = self._open[-1]
            if last.phase is not Phase.OPTIMIZER or last.thread != thread:
                return
            if len(stack) > len(last.stack) and encloses(last.stack, stack):
                return
            self._close(last)

    def _close(self, region: _Open | None) -> None:
        """End `region`, if it began, and with it what began inside it and never ended."""
        if region not in self._open:
            return
        end = self._position()
        self.last = region.phase
        while self._open:
            last = self._open.pop()
            self._closed.append(self._span(last, end))
            if last is region:
                break

    def _span(self, region: _Open, end: int) -> Span:
        return Span(region.phase, region.start, end, region.stack)
