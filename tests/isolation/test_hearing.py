"""The user's handler of SIGCHLD hears of the user's own children, and of no other."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

import pytest

from gpumem_magic.isolation.child import Child
from gpumem_magic.sources.signal_actions import read_action, set_action
from gpumem_magic.values.findings import Level

FLAGS = slice(136, 140)
"""Of glibc's struct sigaction; parts of the mask before them are never set."""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")


@pytest.fixture
def heard():
    calls = []
    before = signal.signal(signal.SIGCHLD, lambda *_: calls.append(1))
    yield calls
    signal.signal(signal.SIGCHLD, before)


def live(*children):
    for child in children:
        while not child.poll():
            time.sleep(0.01)
        assert child.answer() == Level(1, 2, 3)
    for child in children:
        child.close()
    time.sleep(0.1)


def test_ours_are_not_heard_of(heard):
    handler = signal.getsignal(signal.SIGCHLD)
    live(Child(lambda inside: Level(1, 2, 3)), Child(lambda inside: Level(1, 2, 3)))
    assert heard == []
    assert signal.getsignal(signal.SIGCHLD) is handler


def test_the_child_finds_the_handler(heard):
    handler = signal.getsignal(signal.SIGCHLD)

    def work(inside):
        assert signal.getsignal(signal.SIGCHLD) is handler
        return Level(1, 2, 3)

    live(Child(work))


def test_one_of_the_users_that_ends_meanwhile_is_told(heard):
    child = Child(lambda inside: Level(1, 2, 3))
    own = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
    assert heard == []
    live(child)
    assert heard == [1]
    own.wait()


@pytest.mark.usefixtures("heard")
def test_system_calls_go_on_after_it_as_before():
    signal.siginterrupt(signal.SIGCHLD, False)
    before = read_action(signal.SIGCHLD)[FLAGS]
    live(Child(lambda inside: Level(1, 2, 3)))
    assert read_action(signal.SIGCHLD)[FLAGS] == before


def test_a_handler_of_c_does_not_hear_of_ours_either():
    calls = []
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(calls.append)
    before = read_action(signal.SIGCHLD)
    ctypes.CDLL(None).signal(signal.SIGCHLD, handler)
    live(Child(lambda inside: Level(1, 2, 3)))
    signal.raise_signal(signal.SIGCHLD)
    set_action(signal.SIGCHLD, before)
    assert calls == [signal.SIGCHLD]
