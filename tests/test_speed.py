"""The plugin fails tests that take long, by whichever process, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Whatever the machine, a reference loop takes half of what is allowed below; the work takes six.
TESTS = """
import subprocess, sys
import pytest
from speed import reference_loop

def work():
    for _ in range(6):
        reference_loop()

@pytest.fixture(scope="module")
def shared():
    work()

def test_quick():
    pass

def test_long():
    work()

def test_long_below():
    code = "import speed; [speed.reference_loop() for _ in range(6)]"
    subprocess.run([sys.executable, "-c", code], check=True)

@pytest.mark.slow
def test_marked():
    work()

def test_with_what_tests_share(shared):
    pass

def test_that_fails_as_it_is():
    work()
    assert False
"""


@pytest.fixture
def outcomes(tmp_path):
    """What pytest says of each test."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: long\n")
    (tmp_path / "test_times.py").write_text(TESTS)

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-p", "speed", "-rA", "--tb=short", *options]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        environment.pop("CI", None)  # there pytest says all of it twice
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        summary = done.stdout.split("short test summary info")[-1].splitlines()
        lines = [line.split(" - ")[0].split() for line in summary if "::" in line]
        return {name.split("::test_")[1]: outcome for outcome, name in lines}, done.stdout

    return run


def test_what_takes_long_fails_and_says_so(outcomes):
    found, text = outcomes("--most-seconds=0.05")
    assert found == {
        "quick": "PASSED",
        "long": "FAILED",
        "long_below": "FAILED",
        "marked": "PASSED",
        "with_what_tests_share": "PASSED",
        "that_fails_as_it_is": "FAILED",
    }
    assert text.count("s of processor time, 0.05 are allowed") == 2


def test_nothing_is_judged_where_nobody_asked(outcomes):
    found, _ = outcomes()
    assert [name for name, outcome in found.items() if outcome == "FAILED"] == [
        "that_fails_as_it_is"
    ]
