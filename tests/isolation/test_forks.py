"""What a fork calls, and what waits until a child is walled in: in a process that has frozen no
objects, as the tests' own has."""

import contextvars
import cProfile
import gc
import os
import subprocess
import sys
import threading
from textwrap import dedent

import pytest

from gpumem_magic.isolation import child
from gpumem_magic.isolation.forks import HeldBack, hold_back

PREPARED = """
    import os, threading
    from gpumem_magic.isolation.forks import _lists, hold_back

    said = []
    for way in ("before", "after_in_parent", "after_in_child"):
        def handler(way=way):
            said.append(way)
        handler.__module__ = "os"  # functools.wraps may have said so
        os.register_at_fork(**{way: handler})

    def fork():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
"""


def run(script):
    subprocess.run([sys.executable, "-c", dedent(PREPARED) + dedent(script)], check=True)


def test_a_fork_within_calls_only_pythons_own():
    run("""
        with hold_back() as held:
            assert threading._after_fork in _lists()[2]
            fork()
            assert said == [], said
        fork()
        assert said == ["before", "after_in_parent"], said
        (handler,) = held.handlers
        handler()
        assert said == ["before", "after_in_parent", "after_in_child"], said
    """)


def test_what_others_register_meanwhile_is_kept():
    run("""
        with hold_back():
            os.register_at_fork(before=lambda: said.append("meanwhile"))
        fork()
        assert said == ["meanwhile", "before", "after_in_parent"], said
    """)


def test_where_all_is_frozen_a_fork_is_as_ever():
    run("""
        import gc
        gc.freeze()
        with hold_back() as held:
            fork()
        assert said == ["before", "after_in_parent"], said
        assert held.handlers == ()
    """)


def test_nothing_is_collected_within():
    with hold_back() as held:
        assert not gc.isenabled()
    assert gc.isenabled()
    assert held.collects


def test_who_collects_by_hand_goes_on_so():
    gc.disable()
    try:
        with hold_back() as held:
            pass
        held.release()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_handler_that_raises_stops_no_other():
    said = []
    HeldBack((lambda: 1 / 0, lambda: said.append(1))).release()
    assert said == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of descriptors")
def test_a_fork_that_fails_leaves_nothing(monkeypatch, tmp_path):
    def fork():
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(child, "fork", fork)
    monkeypatch.setattr(child.tempfile, "tempdir", str(tmp_path))
    gc.collect()  # what earlier tests left open
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    with pytest.raises(child.DryRunError, match="no process: Resource"):
        child.Child(lambda inside: None)
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
    assert [*tmp_path.iterdir()] == []


class Told:
    """Writes its name to a pipe when it dies in another process than the one that made it."""

    def __init__(self, name, pipe):
        self.name, self.pipe, self.made_by = name, pipe, os.getpid()

    def __del__(self):
        if os.getpid() != self.made_by:
            os.write(self.pipe, f"{self.name} ".encode())


def test_nothing_dies_with_the_threads_that_a_child_does_not_have():
    read, write = os.pipe()
    variable, local = contextvars.ContextVar("variable"), threading.local()
    begun, goes_on = threading.Event(), threading.Event()

    def work(argument):
        variable.set(Told("context", write))
        local.data = Told("local", write)
        try:
            raise ValueError(Told("error", write))
        except ValueError:
            begun.set()
            goes_on.wait(60)

    thread = threading.Thread(target=work, args=(Told("argument", write),))
    thread.start()
    begun.wait(60)
    with hold_back() as held:
        forked = os.fork()
        if forked == 0:
            os._exit(0)
    assert held.kept
    os.waitpid(forked, 0)
    goes_on.set()
    thread.join()
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == ""


@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_nothing_is_traced_within(kind):
    put, get = getattr(sys, f"set{kind}"), getattr(sys, f"get{kind}")
    before = get()

    def follow(frame, event, argument):
        """It is called, that is all."""

    put(follow)
    try:
        with hold_back():
            within = get()
        assert (within, get()) == (None, follow)
    finally:
        put(before)


def test_a_profiler_of_c_goes_on():
    profiler, before = cProfile.Profile(), sys.getprofile()
    profiler.enable()
    with hold_back():
        pass
    sum([1])
    profiler.disable()
    sys.setprofile(before)
    assert any("sum" in str(entry.code) for entry in profiler.getstats())
