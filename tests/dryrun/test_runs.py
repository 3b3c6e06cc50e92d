"""Flows of dry runs: what becomes of an interrupt, wherever it comes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from gpumem_magic import measure, predict
from gpumem_magic.dryrun import runs
from gpumem_magic.dryrun.runs import DryRun, carry_out
from gpumem_magic.isolation.child import DryRunError
from gpumem_magic.isolation.watch import Watch
from gpumem_magic.sources.interrupts import Interrupts


@pytest.fixture(autouse=True)
def handler(monkeypatch):
    """Python's own, which a shell may have switched off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    yield
    assert Interrupts.standing is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Dies:
    def __del__(self) -> None:
        interrupt()


def swallowed() -> Iterator[tuple[()]]:
    thing = Dies()
    del thing  # Python prints what is raised in there, and goes on
    while True:
        yield ()


def made_another_error() -> Iterator[tuple[()]]:
    yield ()
    try:
        interrupt()
    except KeyboardInterrupt:
        raise RuntimeError("as `__set_name__` makes one of it") from None


def caught() -> Iterator[tuple[()]]:
    with contextlib.suppress(BaseException):
        interrupt()
    while True:
        yield ()


@pytest.mark.parametrize("flow", [swallowed, made_another_error, caught])
def test_no_interrupt_is_lost(flow):
    with pytest.raises(KeyboardInterrupt):
        carry_out(flow())


def test_errors_that_no_interrupt_made_stay():
    def flow():
        yield ()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        carry_out(flow())


def test_an_interrupt_that_the_users_handler_takes_ends_nothing():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))

    def flow():
        interrupt()
        yield ()
        return "done"

    assert carry_out(flow()) == "done"
    assert seen == [1]
    signal.signal(signal.SIGINT, before)


def test_a_child_that_cannot_be_watched_is_ended(monkeypatch):
    class Child:
        closed = False

        def close(self):
            self.closed = True

    def flow(child):
        yield (
            DryRun(SimpleNamespace(scenario=SimpleNamespace(timeout=1)), lambda plan: child, None),
        )

    def fail(child, timeout):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "Watch", fail)
    child = Child()
    with pytest.raises(KeyboardInterrupt):
        carry_out(flow(child))
    assert child.closed


def test_one_without_end_is_ended_whatever_stands_in_place_of_the_systems_functions(monkeypatch):
    children = set()
    monkeypatch.setattr(
        runs, "Watch", lambda child, *args: children.add(child) or Watch(child, *args)
    )
    for owner, name in ((os, "kill"), (os, "waitpid"), (time, "sleep"), (time, "monotonic")):
        monkeypatch.setattr(owner, name, lambda *args: 5.0)
    with pytest.raises(DryRunError, match="nothing new in"):
        predict("while True: pass", {}, "T4", timeout=0.2)
    monkeypatch.undo()
    (child,) = children
    time.sleep(0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_one_with_a_blocked_alarm_is_seen_to_go_on():
    step = "xs.append(torch.ones(9, device='cuda'))", "select.poll().poll(250)"
    lines = ["import select, torch", "xs = []", *step * 7]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        report = predict("\n".join(lines), {}, "T4", timeout=1)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert report.error is None


def test_a_thread_of_a_measured_block_predicts_from_what_is_held():
    reports = []

    def ask():
        reports.append(predict("y = held * 2", {"held": held}))

    with measure(device="T4"):
        held = torch.ones(1 << 20, device="cuda")
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        ask()
    assert [report.error for report in reports] == [None] * 2
    assert [report.before.allocated for report in reports] == [4 << 20] * 2
    assert [report.peak.allocated for report in reports] == [8 << 20] * 2
