"""When a child is given up, by a clock that the test turns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumem_magic.isolation import watch
from gpumem_magic.isolation.child import DryRunError


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(watch, "_processor_seconds", lambda pid: None)
    monkeypatch.setattr(watch, "_memory_of", lambda pid: 0)
    return now


class Child:
    """A child that always comes to something new, at lines that it is given."""

    pid = 1

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
