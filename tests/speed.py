"""A pytest plugin: with --most-seconds, a test not marked `slow` may take no more than that.

What counts is processor time, of this process and of all below it, in seconds of a machine on
which the reference loop takes `REFERENCE`: neither load nor a slow processor fails a test. What
tests share is nobody's: fixtures of a wider scope, and libraries that are imported on the way.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

REFERENCE = 0.06
"""Seconds of `reference_loop` on the two cores for which the limit is meant."""

LIBRARY = 100
"""Modules that a test has to load for the first time to be taken for an import of a library."""


def pytest_addoption(parser):
    parser.addoption("--most-seconds", type=float, help="of processor time, for unmarked tests")


def pytest_configure(config):
    if limit := config.getoption("--most-seconds", None):
        config.pluginmanager.register(Judge(limit))


class Judge:
    """Fails what passed, but took too long."""

    def __init__(self, limit):
        self.limit = limit

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item):
        self.modules, self.begun = len(sys.modules), spent(os.getpid())
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef):
        begun = spent(os.getpid())
        result = yield
        if fixturedef.scope != "function":
            self.begun += spent(os.getpid()) - begun
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.when == "call" and report.passed and "slow" not in item.keywords:
            seconds = spent(os.getpid()) - self.begun
            loaded = len(sys.modules) - self.modules
            if seconds > self.limit and loaded < LIBRARY and seconds > self.limit * pace():
                report.outcome = "failed"
                report.longrepr = (
                    f"{item.nodeid} took {seconds:.1f} s of processor time, {self.limit:g} are "
                    "allowed: make it cheaper, or name its file in SLOW of tests/conftest.py"
                )
        return report


def spent(process):
    """Seconds of processor time of a process and of all below it that it or they have not lost."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
        tasks = [*Path(f"/proc/{process}/task").iterdir()]
        below = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has ended, or this is not Linux
        return sum(os.times()[:4]) if process == os.getpid() else 0.0
    own = sum(map(int, stat.rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(spent, map(int, below)))


def pace():
    """How many times slower this machine is at present than the one that the limit is meant for."""
    return max(1.0, *(reference_loop() / REFERENCE for _ in range(3)))


def reference_loop():
    """Work that needs memory as tests do: neighbours slow that down more than plain arithmetic."""
    begun = time.thread_time()
    table = {number: [number, str(number)] for number in range(150_000)}
    sorted(table.values(), key=lambda pair: pair[1])
    del table
    return time.thread_time() - begun
