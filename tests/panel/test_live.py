"""What is known of a running cell: its peak between two looks, its line, its course."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from gpumem_magic.panel.live import POINTS, Follower
from gpumem_magic.values.findings import Level
from gpumem_magic.values.recording import Device

MIB = 1 << 20


class Counted:
    """A glancer whose device has a level and a peak counter of its own."""

    device = Device("Fake GPU", 0, 16 << 30, (7, 5), virtual=True)

    def __init__(self):
        self.level = self.counter = 0

    def look(self):
        glance = SimpleNamespace(
            device=self.device, level=Level(self.level, self.level, None), highest=self.counter,
            kinds={},
        )  # fmt: skip
        return (glance,)

    def highest(self):
        return (self.counter,)

    def close(self):
        pass


def following(namespace=None):
    follower, glancer = Follower({} if namespace is None else namespace), Counted()
    follower._glancer = glancer
    return follower, glancer


def test_the_peak_between_two_looks_is_the_allocators_own():
    follower, device = following()
    device.level, device.counter = 10 * MIB, 50 * MIB  # an older cell went to 50
    follower.begin(None, threading.get_ident())
    follower.look()
    assert follower.live.highest == [10 * MIB]
    device.counter = 70 * MIB
    follower.look()
    assert follower.live.highest == [70 * MIB]


def test_a_peak_below_an_older_one_is_the_highest_that_was_seen():
    follower, device = following()
    device.counter = 50 * MIB
    follower.begin(None, threading.get_ident())
    for device.level in (20 * MIB, 30 * MIB, 10 * MIB):
        follower.look()
    assert follower.live.highest == [30 * MIB]


def test_a_long_cell_keeps_its_course_in_few_points():
    follower, device = following()
    follower.begin(None, threading.get_ident())
    for device.level in range(5 * POINTS):
        follower.look()
    trail = [allocated for allocated, _ in follower.live.trail]
    assert POINTS // 2 <= len(trail) <= POINTS
    assert trail == sorted(trail)
    assert trail[0] == 0
    assert trail[-1] > 4 * POINTS


def test_the_running_line_is_that_of_the_cell_itself():
    namespace = {}
    follower, _ = following(namespace)
    namespace["look"] = lambda: (follower.look(), follower.live.place)[1]
    follower.begin(None, threading.get_ident())
    exec(compile("\n\nfound = look()", "<a cell>", "exec"), namespace)
    assert namespace["found"].number == 3
    follower.end()
    assert follower.live.place is None
