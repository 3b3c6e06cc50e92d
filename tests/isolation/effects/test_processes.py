"""No process is started, signalled or ended, and nobody is asked."""

from __future__ import annotations

import sys

import pytest

from .forked import network, processes, run_cell, waiting


@pytest.fixture
def command(tmp_path):
    """A command that would leave a file; there must be none."""
    yield [sys.executable, "-c", f"open({str(tmp_path / 'trace')!r}, 'w')"]
    assert list(tmp_path.iterdir()) == []


def run(cell, **names):
    return run_cell(cell, processes, waiting, network, names=names)


def test_it_stays_who_it_is():
    cell = """
        import os
        who = os.getresuid(), os.getresgid(), os.getgroups()
        os.setuid(65534), os.seteuid(65534), os.setresgid(65534, 65534, 65534), os.setgroups([1])
        assert who == (os.getresuid(), os.getresgid(), os.getgroups())
    """
    after = run(cell)
    assert after.error is None
    told = [text.partition("(")[0] for text in after.told]
    assert told == ["os.setuid", "os.seteuid", "os.setresgid", "os.setgroups"]


def test_commands_succeed_without_output(command):
    cell = """
        import os, subprocess
        assert subprocess.run(command).returncode == 0
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""
        assert subprocess.call(command) == 0
        assert subprocess.check_call(command) == 0
        assert subprocess.check_output(command) == b""
        assert subprocess.check_output(["git", "version"]) == b"git version 2.40.0"
        assert subprocess.getoutput(" ".join(command)) == ""
        assert subprocess.getstatusoutput(" ".join(command)) == (0, "")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdin.write(b"x" * (1 << 20))
        assert process.communicate(b"more") == (b"", None)
        assert (process.poll(), process.wait(), process.returncode) == (0, 0, 0)
        assert os.system(" ".join(command)) == 0
        assert os.popen(" ".join(command)).read() == ""
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            subprocess.run(command, input=b"x", capture_output=True)
        assert len(os.listdir("/proc/self/fd")) == before
    """
    after = run(cell, command=command)
    assert after.error is None
    assert [text.partition("(")[0] for text in after.told] == [
        *("subprocess.run", "subprocess.run", "subprocess.call", "subprocess.check_call"),
        *("subprocess.check_output", "subprocess.check_output"),
        *("subprocess.getoutput", "subprocess.getstatusoutput"),
        *("subprocess.Popen", "os.system", "os.popen", "subprocess.run"),
    ]
    assert after.told[0].endswith("(line 3)")


def test_commands_of_asyncio_end_at_once(command):
    cell = """
        import asyncio
        from subprocess import PIPE

        async def main():
            process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
            text = await process.stdout.read()
            return text, await process.communicate(), await process.wait()

        x = asyncio.run(main())
    """
    after = run(cell, command=command)
    assert (after.error, after.x) == (None, (b"", (b"", b""), 0))
    assert [text.partition("(")[0] for text in after.told] == ["asyncio.create_subprocess_exec"]


@pytest.mark.parametrize(
    "start",
    [
        "multiprocessing.Process(target=print).start()",
        "multiprocessing.get_context('spawn').Process(target=print).start()",
        "os.fork()",
        "os.execv(sys.executable, [sys.executable])",
        "signal.pause()",
    ],
)
def test_other_processes_that_compute_are_refused(start):
    after = run(f"import multiprocessing, os, signal, sys\n{start}")
    assert after.error.startswith("NotImplementedError")
    assert "in a dry run" in after.error


def test_what_pools_of_processes_compute_is_computed_here():
    cell = """
        import os
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context
        me = os.getpid()
        with get_context("spawn").Pool(2) as pool:
            assert pool.apply(os.getpid) == me
        with ProcessPoolExecutor() as pool:
            x = pool.submit(os.getpid).result() == me
        try:
            pool.submit(print)
        except RuntimeError as error:
            x = x, str(error)
    """
    after = run(cell)
    assert (after.error, after.x) == (None, (True, "cannot schedule new futures after shutdown"))
    assert after.told == [
        "multiprocessing.Pool (line 6)",
        "concurrent.futures.ProcessPoolExecutor (line 9)",
    ]


def test_this_process_lives_on_and_hears_its_signals():
    cell = """
        import os, signal, sys
        x = []
        os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getppid(), signal.SIGTERM)
        os.kill(os.getpid(), 0)
        signal.signal(signal.SIGTERM, lambda number, frame: x.append(number))
        os.kill(os.getpid(), signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        x.append(signal.signal(signal.SIGALRM, print))
        x.append(signal.signal(signal.SIGALRM, x[-1]) is print)
        x.append(signal.alarm(1))
        try:
            os._exit(3)
        except SystemExit as left:
            x.append(left.code)
        sys.exit(4)
    """
    after = run(cell)
    assert (after.error, after.x) == ("SystemExit: 4", [15, 15, 0, True, 0, 3])
    assert [text.partition("(")[0] for text in after.told] == ["os.kill", "os.kill", "os._exit"]


@pytest.mark.parametrize(
    "asking",
    [
        *("input('Your name? ')", "[input][0]()", "getpass.getpass()", "sys.stdin.readline()"),
        *("sys.stdin.read()", "list(sys.stdin)", "sys.stdin.buffer.read()"),
    ],
)
def test_asking_ends_the_prediction(asking):
    after = run(f"import getpass, sys\n{asking}")
    assert after.error.startswith("NotImplementedError: ")
    assert "nobody is asked in a dry run: put the value into the cell" in after.error


def test_a_kernel_does_not_ask_either():
    pytest.importorskip("ipykernel.kernelbase")
    after = run("from ipykernel.kernelbase import Kernel\nKernel._input_request(None, 'Name?')")
    assert "nobody is asked" in after.error


def test_a_browser_is_not_opened():
    after = run("import webbrowser\nx = webbrowser.open('http://localhost')")
    assert (after.x, after.told) == (True, ["webbrowser.open('http://localhost') (line 2)"])
