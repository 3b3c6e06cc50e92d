"""The thread lives only while there is something to do, and never steps more than four times a
second."""

from __future__ import annotations

import threading
import time

import pytest

from gpumem_magic.panel import live
from gpumem_magic.panel.live import INTERVAL, SHARE, Timer


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(live, "INTERVAL", 0.001)
    monkeypatch.setattr(live, "SHARE", 1.0)


def ended(beat):
    deadline = time.monotonic() + 60
    while beat.active and time.monotonic() < deadline:
        time.sleep(0.001)
    return not beat.active


def test_it_steps_until_nothing_is_left_and_ends():
    left = [3]

    def step():
        left[0] -= 1
        return left[0] > 0

    beat = Timer(step, bool)
    beat.wake()
    assert ended(beat)
    assert left == [0]


def test_it_can_be_woken_again():
    count = []
    beat = Timer(lambda: bool(count.append(1)), bool)
    for expected in (1, 2):
        beat.wake()
        assert ended(beat)
        assert len(count) == expected


def test_waking_during_the_last_step_gives_another():
    steps = []

    def step():
        steps.append(1)
        if len(steps) == 1:
            beat.wake()
        return False

    beat = Timer(step, bool)
    beat.wake()
    assert ended(beat)
    assert len(steps) == 2


def test_stopped_it_never_wakes():
    beat = Timer(lambda: True, bool)
    beat.wake()
    beat.stop()
    assert ended(beat)
    beat.wake()
    assert [t for t in threading.enumerate() if t.name == "gpumem-panel"] == []


def test_four_a_second_at_most():
    assert INTERVAL >= 0.25
    assert SHARE <= 0.01
