"""The process that every attack's process is forked from: warm, without threads, never used.

python troupe.py COMMANDS ANSWERS: numbers of descriptors; a line of JSON in, a line of JSON out.
"""

from __future__ import annotations

import ctypes
import dataclasses
import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from process import descendants

PR_SET_CHILD_SUBREAPER = 36
STDIN = b"line one\nline two\n"


def main() -> None:
    """Say that all is loaded, then play one attack for each line."""
    commands, answers = (int(number) for number in sys.argv[1:])
    adopt_orphans()
    import play

    play.warm_up()
    with open(commands) as lines, open(answers, "w") as out:  # noqa: PTH123
        print("{}", file=out, flush=True)
        for line in lines:
            order = json.loads(line)
            out.write(json.dumps(stage(order)) + "\n")
            out.flush()


def adopt_orphans() -> None:
    """From now on, a process below this one whose parent ends is this one's child."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def stage(order: dict) -> dict:
    """Fork, play, wait until it ends or the time is over, and end all that is left of it.

    Between this process and the user's is another, so that what is done to "the parent" is seen.
    """
    result = Path(order["result"])
    if os.fork() == 0:
        actor = os.fork()
        if actor:
            os.waitpid(actor, 0)
            os._exit(0)
        try:
            _act(order, result)
        finally:
            os._exit(0)
    over = _wait(result, order["seconds"])
    _end_all(over)
    if result.exists() and not over:
        return json.loads(result.read_text())
    stacks = result.with_suffix(".stacks").read_text()
    errors = result.with_suffix(".stderr").read_text()[-2000:]
    how = "hangs" if over else "died"
    return {"failures": [f"the user's process {how}:\n{stacks}\n{errors}"], "died": True}


def _wait(result: Path, seconds: float) -> bool:
    """Wait for the user's process; whether the time is over."""
    number = result.with_suffix(".pid")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if number.exists() and not _is_alive(int(number.read_text())):
            return False
        time.sleep(0.004)
    return True


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _end_all(ask_where: bool) -> None:
    left = descendants(os.getpid())
    if ask_where:
        for number in left:
            with suppress(OSError):
                os.kill(number, signal.SIGCONT)
                os.kill(number, signal.SIGUSR1)  # faulthandler writes where it is
        time.sleep(0.3)
    while left := descendants(os.getpid()):
        for number in left:
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _act(order: dict, result: Path) -> None:
    """In the child: become an ordinary process of a user, play, write the outcome."""
    import play

    number = result.with_suffix(".started")
    number.write_text(str(os.getpid()))
    number.rename(result.with_suffix(".pid"))
    os.setpgid(0, 0)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, value in order["environ"].items():
        os.environ[name] = value
    os.chdir(order["folders"]["work"])
    sys.path[0] = ""  # as in a notebook
    tempfile.tempdir = None
    tempfile.gettempdir()
    _connect_streams(result)
    stacks = result.with_suffix(".stacks").open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    attack = play.Attack(**order["attack"])
    stage = play.Stage(order["folders"], order["record"], order["names"])
    outcome = play.perform_safely(attack, stage, order["really"])
    written = result.with_suffix(".part")
    written.write_text(json.dumps(dataclasses.asdict(outcome), default=str))
    written.rename(result)


def _connect_streams(result: Path) -> None:
    receive, send = os.pipe()
    os.write(send, STDIN)
    os.close(send)
    os.dup2(receive, 0)
    os.close(receive)
    for number in (1, 2):
        path = result.with_suffix(".stdout" if number == 1 else ".stderr")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    main()
