"""Dry runs that the panel asks for, while the kernel stays free: their processes are looked after
between other messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from gpumem_magic.dryrun.runs import Flow, Runner, StoppedError
from gpumem_magic.panel.state import Host

T = TypeVar("T")

_EVERY = 0.1  # seconds between two looks at the processes

Say = Callable[[str], object]


class DryRuns:
    """At most one flow at a time. say: shows a message; guarded: makes a callback that tells its
    errors; changed: called when a flow begins and when it ends."""

    def __init__(
        self, host: Host, say: Say, guarded: Callable[[str, Callable[[], object]], Any]
    ) -> None:
        self._host = host
        self._say = say
        self._guarded = guarded
        self._runner: Runner[Any] | None = None
        self._what = ""
        self._partly = False
        self._show: Callable[[Any], object] = lambda result: None
        self.changed: list[Callable[[bool], object]] = []

    @property
    def running(self) -> bool:
        """Whether there is a flow under way."""
        return self._runner is not None

    def carry_out(
        self, what: str, flow: Flow[T], show: Callable[[T], object], *, partly: bool = False
    ) -> None:
        """Have `flow` carried out and its result shown; a kernel without a loop does it at once.
        partly: what is done when it is cancelled is shown, too."""
        self.cancel("Another dry run was asked for.")
        self._what, self._show, self._partly = what, show, partly
        with self._dry():
            self._runner = Runner(flow, self._tell)
        self._mark()
        if self._loop is None:
            while self.running:
                self._step(0.1)
        else:
            self._loop.call_later(0, self._guarded(what, self._go_on))

    def cancel(self, why: str = "Cancelled.") -> None:
        """Kill what runs, if anything does; what came of it is shown where that is worth it."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        try:
            if self._partly:
                with suppress(StoppedError):
                    self._show(runner.stop())
        finally:
            runner.close()
            self._mark()
            self._say(why)

    @property
    def _loop(self) -> Any:
        return getattr(getattr(self._host.shell, "kernel", None), "io_loop", None)

    def _go_on(self) -> None:
        if self.running:
            self._step(0)
        if self.running:
            self._loop.call_later(_EVERY, self._guarded(self._what, self._go_on))

    def _step(self, seconds: float) -> None:
        runner = self._runner
        assert runner is not None
        try:
            with self._dry():
                ended = runner.step(seconds)
        except BaseException:
            self._end(runner)
            raise
        if ended:
            self._end(runner)
            self._show(runner.result)

    def _end(self, runner: Runner[Any]) -> None:
        runner.close()
        self._runner = None
        self._mark()

    def _mark(self) -> None:
        for change in self.changed:
            change(self.running)

    def _tell(self, done: int, asked: int) -> None:
        if asked > 1:
            self._say(f"{self._what}: {done} of {asked} dry runs are done ...")

    @contextmanager
    def _dry(self) -> Iterator[None]:
        """Dry runs begin with what is on the device."""
        self._host.enter()
        try:
            with self._host.prediction():
                yield
        finally:
            self._host.leave()
