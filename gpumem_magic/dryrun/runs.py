"""Carries dry runs out, several at a time where there are processors for them."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from time import sleep
from typing import TYPE_CHECKING, Generic, TypeVar, Union

from gpumem_magic.isolation.child import Child, DryRunError
from gpumem_magic.isolation.watch import StandsStillError, Watch, room_for_another
from gpumem_magic.sources.interrupts import Interrupts

if TYPE_CHECKING:
    from gpumem_magic.allocator.caching import CachingAllocator
    from gpumem_magic.dryrun.inside import Outcome, Plan
    from gpumem_magic.values.recording import Recording

_POLL = 0.05  # seconds; a limit is noticed, and an interrupt acted upon, that late at most

Result = Union["Outcome", DryRunError]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DryRun:
    """A plan, and what starts a process that carries it out. allocator: makes a second one of what
    the run begins with. ended: called with what it came to, as soon as that is known."""

    plan: Plan
    start: Callable[[Plan], Child]
    allocator: Callable[[], CachingAllocator]
    ended: Callable[[Result], object] = lambda result: None


class StoppedError(DryRunError):
    """What a dry run came to that was stopped, or not begun."""


Flow = Generator[tuple[DryRun, ...], tuple["Result", ...], T]
"""A computation that asks for dry runs by yielding them, all that can be made side by side at once,
and is sent what they came to, in the same order."""


@dataclass(slots=True)
class _Running:
    place: int
    run: DryRun
    child: Child
    watch: Watch
    stood_still: bool = False


class Runner(Generic[T]):
    """Goes on with a flow step by step. tell(done, asked): called after each dry run, with how many
    of those that were asked for so far are done."""

    def __init__(
        self, flow: Flow[T], tell: Callable[[int, int], object] = lambda done, asked: None
    ) -> None:
        self._flow = flow
        self._tell = tell
        self._waiting: deque[tuple[int, DryRun]] = deque()
        self._running: list[_Running] = []
        self._results: list[Result | None] | None = None
        self._done = self._asked = 0
        self._most = _processors()
        self._result: T | None = None

    @property
    def result(self) -> T:
        """What the flow came to, once `step` has returned True."""
        assert self._result is not None
        return self._result

    def step(self, seconds: float = _POLL) -> bool:
        """Do what can be done now, waiting so long at most; whether the flow has ended. Raises what
        the flow raises."""
        if self._result is not None:
            return True
        if self._results is None:
            self._advance(None)
        self._start_some()
        _wait(self._running, seconds)
        for each in tuple(self._running):
            self._look_at(each)
        if self._results is not None and not self._waiting and not self._running:
            self._advance(tuple(r for r in self._results if r is not None))
        return self._result is not None

    def stop(self) -> T:
        """End now: what is not done is a StoppedError, and so is all that is asked for from here
        on; what the flow makes of that. Raises what the flow raises."""
        while self._result is None:
            self._kill()
            if self._results is None:
                self._advance(None)
            else:
                self._advance(tuple(r or StoppedError("stopped") for r in self._results))
        return self._result

    def close(self) -> None:
        """Kill what still runs."""
        self._flow.close()
        self._kill()

    def _kill(self) -> None:
        self._waiting.clear()
        while self._running:
            self._running.pop().child.close()

    def _advance(self, results: tuple[Result, ...] | None) -> None:
        try:
            wanted = self._flow.send(results)  # type: ignore[arg-type] # None starts a generator
        except StopIteration as ended:
            self._result = ended.value
            return
        self._results = [None] * len(wanted)
        self._waiting.extend(enumerate(wanted))
        self._asked += len(wanted)

    def _start_some(self) -> None:
        while self._waiting and len(self._running) < self._most:
            if self._running and not room_for_another():
                break
            self._start(*self._waiting.popleft())

    def _start(self, place: int, run: DryRun, stood_still: bool = False) -> None:
        with contextlib.ExitStack() as undo:
            child = run.start(run.plan)
            undo.callback(child.close)
            watch = Watch(child, run.plan.scenario.timeout)
            self._running.append(_Running(place, run, child, watch, stood_still))
            undo.pop_all()

    def _look_at(self, each: _Running) -> None:
        result: Result
        try:
            if not each.child.poll():
                each.watch.check()
                return
            result = each.child.answer()
        except DryRunError as error:
            result = error
        self._running.remove(each)
        each.child.close()
        if isinstance(result, StandsStillError) and not each.stood_still:
            # a thread of the notebook may have held a lock when the child was made
            self._start(each.place, each.run, stood_still=True)
        else:
            self._finish(each, result)

    def _finish(self, each: _Running, result: Result) -> None:
        if not isinstance(result, DryRunError) and result.skipped and _failed(result.recording):
            # perhaps for want of the iterations that were left out
            plan = replace(each.run.plan, may_skip=False)
            self._start(each.place, replace(each.run, plan=plan))
        else:
            self._keep(each, result)

    def _keep(self, each: _Running, result: Result) -> None:
        assert self._results is not None
        self._results[each.place] = result
        each.run.ended(result)
        self._done += 1
        self._tell(self._done, self._asked)


def carry_out(
    flow: Flow[T],
    tell: Callable[[int, int], object] = lambda done, asked: None,
    *,
    partly: bool = False,
) -> T:
    """What the flow comes to. Raises what it raises; an interrupt ends all that runs. partly: what
    is done by then is enough for the flow to come to something, unless it raises a StoppedError."""
    runner = Runner(flow, tell)
    interrupts = Interrupts()
    interrupts.install()
    try:
        return _until_done(runner)
    except KeyboardInterrupt:
        if not partly:
            raise
        with contextlib.suppress(StoppedError):
            return runner.stop()
        raise
    finally:
        runner.close()
        interrupts.remove()


def _until_done(runner: Runner[T]) -> T:
    """The result. An interrupt that a callback swallows (hooks of os.fork, objects that die), or of
    which other code makes another error, ends this too."""
    handled = Interrupts.handled
    try:
        while not runner.step():
            if Interrupts.handled > handled:
                raise KeyboardInterrupt
    except Exception as error:
        if Interrupts.handled > handled and not isinstance(error, Interrupts.raised):
            raise KeyboardInterrupt from None
        raise
    return runner.result


def together(flows: Sequence[Flow[T]]) -> Flow[tuple[T, ...]]:
    """One flow of several: their dry runs are made side by side."""
    ended: dict[int, T] = {}
    wanted: dict[int, tuple[DryRun, ...]] = {}
    results: dict[int, tuple[Result, ...] | None] = dict.fromkeys(range(len(flows)))
    try:
        while True:
            for place, sent in results.items():
                try:
                    wanted[place] = flows[place].send(sent)  # type: ignore[arg-type] # None begins
                except StopIteration as stop:  # noqa: PERF203 - each flow may end
                    ended[place] = stop.value
            if not wanted:
                return tuple(ended[place] for place in range(len(flows)))
            got = iter((yield tuple(run for runs in wanted.values() for run in runs)))
            results = {place: tuple(next(got) for _ in runs) for place, runs in wanted.items()}
            wanted = {}
    finally:
        for flow in flows:
            flow.close()


def outcome_of(result: Result) -> Outcome:
    """The outcome; raises the error that there is in its place."""
    if isinstance(result, DryRunError):
        raise result
    return result


def _failed(recording: Recording) -> bool:
    return recording.error is not None and recording.failure is None


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _wait(running: Sequence[_Running], seconds: float) -> None:
    """Until one of them has something to say, or so long."""
    if sys.platform == "win32" and running:  # pipes cannot be waited for
        sleep(max(0.0, min(seconds, 0.02)))
    elif running:
        poller = select.poll()
        for each in running:
            poller.register(each.child.descriptor, select.POLLIN)
        poller.poll(1000 * seconds)
