"""When a child is given up, by a clock that the test turns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumem_magic.isolation import watch
from gpumem_magic.isolation.child import DryRunError
from gpumem_magic.units import GIB


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watch, "monotonic", lambda: now[0])
    monkeypatch.setattr(watch, "_processor_seconds", lambda pid: None)
    monkeypatch.setattr(watch, "_read_status", lambda pid: (0, 1))
    return now


class Child:
    """A child that always comes to something new, at lines that it is given."""

    pid = 1
    scratch = "/"

    def __init__(self):
        self.news, self.line = 0, 0
        self.progress = SimpleNamespace(read=lambda: (self.news, self.line, 0))


def run(clock, child, lines):
    follow = watch.Watch(child, timeout=10)
    for line in lines:
        clock[0] += 1
        child.news += 1
        child.line = line
        follow.check()


def test_one_that_goes_on_for_ever_is_ended_and_the_line_that_took_longest_is_named(clock):
    run(clock, Child(), [3] * 50)
    with pytest.raises(DryRunError, match="took more than 50 s, 40 s of it at line 3"):
        run(clock, Child(), [2] * 11 + [3] * 40)


def test_one_that_comes_to_nothing_new_is_ended_sooner(clock):
    child = Child()
    follow = watch.Watch(child, timeout=10)
    for _ in range(10):
        clock[0] += 1
        follow.check()
    clock[0] += 2
    with pytest.raises(DryRunError, match="nothing new in 10 s"):
        follow.check()


def test_one_that_fills_the_disk_is_ended(clock, monkeypatch):
    free = iter([5 * GIB, 4 * GIB, 3 * GIB, 2 * GIB])
    monkeypatch.setattr(watch, "_room_for", lambda child: (100 * GIB, next(free)))
    with pytest.raises(DryRunError, match=r"at line 2, and only 2\.00? GiB are left"):
        run(clock, Child(), [1, 1, 2, 2])


def test_a_full_disk_alone_ends_nothing(clock, monkeypatch):
    monkeypatch.setattr(watch, "_room_for", lambda child: (100 * GIB, GIB))
    run(clock, Child(), [1, 1, 2, 2])


def test_one_with_threads_without_end_is_ended(clock, monkeypatch):
    monkeypatch.setattr(watch, "_read_status", lambda pid: (0, 5001))
    with pytest.raises(DryRunError, match="5,001 threads at line 3"):
        run(clock, Child(), [3])
