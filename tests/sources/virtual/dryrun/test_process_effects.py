"""No process is started, signalled or ended, and nobody is asked or waited for."""

# Users write what is not written elsewhere here.
# ruff: noqa: PLW1510, PTH123, PTH208, SIM115

from __future__ import annotations

import getpass
import multiprocessing
import os
import signal
import subprocess
import sys
import webbrowser
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from time import sleep

import pytest

from gpumem_magic.sources.virtual.dryrun.side_effects import without_side_effects


@pytest.fixture
def command(tmp_path):
    """A command that would leave a file; there must be none."""
    yield [sys.executable, "-c", f"open({str(tmp_path / 'trace')!r}, 'w')"]
    assert list(tmp_path.iterdir()) == []


def name(text):
    return text.partition("(")[0]


def test_commands_succeed_without_output(command):
    told = []
    with without_side_effects(told.append):
        assert subprocess.run(command).returncode == 0
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""
        assert subprocess.call(command) == 0
        assert subprocess.check_call(command) == 0
        assert subprocess.check_output(command) == b""
        assert subprocess.getoutput(" ".join(command)) == ""
        assert subprocess.getstatusoutput(" ".join(command)) == (0, "")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdin.write(b"x" * (1 << 20))
        assert process.communicate(b"more") == (b"", None)
        assert (process.poll(), process.wait(), process.returncode) == (0, 0, 0)
        assert os.system(" ".join(command)) == 0
        assert os.popen(" ".join(command)).read() == ""
    assert [name(text) for text in told] == [
        *("subprocess.run", "subprocess.run", "subprocess.call", "subprocess.check_call"),
        *("subprocess.check_output", "subprocess.getoutput", "subprocess.getstatusoutput"),
        *("subprocess.Popen", "os.system", "os.popen"),
    ]


def test_no_descriptor_is_left_open(command):
    with without_side_effects(print):
        subprocess.run(command)
    before = len(os.listdir("/proc/self/fd"))
    with without_side_effects(print):
        for _ in range(5):
            subprocess.run(command, input=b"x", capture_output=True)
            open("/nowhere", "w").fileno()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "start",
    [
        lambda: multiprocessing.Process(target=print).start(),
        lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
        lambda: ProcessPoolExecutor().submit(print),
        lambda: os.fork(),  # noqa: PLW0108 - not the real one
        lambda: os.execv(sys.executable, [sys.executable]),
    ],
)
def test_other_processes_that_compute_are_refused(start):
    with without_side_effects(print), pytest.raises(NotImplementedError, match="in a dry run"):
        start()


def test_threads_work():
    with without_side_effects(print), ThreadPoolExecutor() as pool:
        assert list(pool.map(abs, [-1, 2])) == [1, 2]


def test_this_process_lives_on():
    told, handler = [], signal.getsignal(signal.SIGTERM)
    with without_side_effects(told.append):
        os.kill(os.getpid(), signal.SIGKILL)
        assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is handler
        assert signal.alarm(1) == 0
        with pytest.raises(SystemExit) as left:
            os._exit(3)
        with pytest.raises(SystemExit):
            sys.exit()
    assert left.value.code == 3
    assert signal.getsignal(signal.SIGTERM) is handler
    assert [name(text) for text in told] == ["os.kill", "os._exit"]


def test_nobody_is_asked(capsys):
    told = []
    with without_side_effects(told.append):
        assert input("Your name? ") == ""
        assert getpass.getpass() == ""
        assert webbrowser.open("http://localhost")
    assert told == ["webbrowser.open('http://localhost')"]
    assert "Your name?" in capsys.readouterr().out


def test_sleep_takes_no_time_and_is_not_told(monkeypatch):
    import time

    monkeypatch.setattr(time, "sleep", sleep)
    told = []
    with without_side_effects(told.append):
        time.sleep(1_000_000)
    assert told == []
