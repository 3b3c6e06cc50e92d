from __future__ import annotations

import os
import signal
import threading

import pytest

from gpumem_magic.sources.virtual.dryrun.exchanges import Entries, exchanged, uninterrupted


@pytest.fixture(autouse=True)
def _interrupts_raise():
    """As in a notebook; a process that was started in the background ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupting(dict):
    """A dict in whose changes the user's interrupt arrives."""

    presses = 0

    def update(self, *args):
        if self.presses:
            self.presses -= 1
            os.kill(os.getpid(), signal.SIGINT)
        super().update(*args)


def test_an_interrupt_while_things_are_put_back_waits_until_they_are():
    held = Interrupting(a=1, b=2)
    exchange = Entries(held, {"a": 10})
    with pytest.raises(KeyboardInterrupt), exchanged([exchange]):  # noqa: PT012  (as a cell would)
        assert held == {"a": 10, "b": 2}
        del held["b"]
        held["c"] = 3
        held.presses = 1
    assert list(held.items()) == [("a", 1), ("b", 2)]


def test_an_interrupt_while_things_are_exchanged_brings_them_back():
    held = Interrupting(a=1, b=2)
    exchange = Entries(held, {"a": 10})
    held.presses = 1
    with pytest.raises(KeyboardInterrupt), exchanged([exchange]):
        raise AssertionError("not reached")
    assert list(held.items()) == [("a", 1), ("b", 2)]


def test_the_order_of_names_is_restored():
    held = {"a": 1, "b": 2, "c": 3}
    with exchanged([Entries(held, {})]):
        held["a"] = held.pop("a")
        del held["b"]
        held["d"] = 4
    assert list(held.items()) == [("a", 1), ("b", 2), ("c", 3)]


def test_the_handler_of_interrupts_is_the_users_again():
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_cannot_be_interrupted_anyway():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
