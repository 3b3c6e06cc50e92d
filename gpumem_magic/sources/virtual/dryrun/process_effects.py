"""Other processes, this process itself, and the person in front of it."""

from __future__ import annotations

import builtins
import getpass
import io
import multiprocessing.process
import os
import signal
import subprocess
import sys
import time
import webbrowser
from typing import Any, NoReturn

from gpumem_magic.sources.virtual.dryrun.arrivals import Arrivals
from gpumem_magic.sources.virtual.dryrun.effects import Effects, described

_PIPES = slice(11, 17)
"""Where Popen._execute_child has the ends of its pipes: p2cread, p2cwrite, c2pread, c2pwrite,
errread, errwrite, after self and ten others."""


def install_process_effects(effects: Effects, arrivals: Arrivals) -> None:
    """Replace what starts, signals or ends processes, asks the user or waits."""
    effects.put(subprocess.Popen, "_execute_child", _not_started(effects))
    for name in ("system", "spawnl", "spawnle", "spawnlp", "spawnlpe", "spawnv", "spawnve"):
        effects.skip(os, name, f"os.{name}", 0)
    for name in ("spawnvp", "spawnvpe", "posix_spawn", "posix_spawnp", "nice", "setpriority"):
        effects.skip(os, name, f"os.{name}", 0)
    for name in ("kill", "killpg", "startfile", "setuid", "setgid", "setsid"):
        effects.skip(os, name, f"os.{name}")
    effects.skip(os, "popen", "os.popen", _empty_pipe)
    for name in ("_exit", "abort"):
        effects.skip(os, name, f"os.{name}", _exit)
    for name in ("execl", "execle", "execlp", "execlpe", "execv", "execve", "execvp", "execvpe"):
        effects.put(os, name, _refused(f"os.{name}"))
    for name in ("fork", "forkpty"):
        effects.put(os, name, _refused(f"os.{name}"))
    start = _refused("multiprocessing.Process.start")
    effects.put(multiprocessing.process.BaseProcess, "start", start)
    pools = _refused("concurrent.futures.ProcessPoolExecutor")
    arrivals.expect(
        "concurrent.futures.process",
        lambda module: effects.put(module.ProcessPoolExecutor, "submit", pools),
    )
    for name in ("signal", "alarm", "setitimer", "raise_signal", "set_wakeup_fd"):
        effects.put(signal, name, _ignored_signal(name))
    effects.skip(webbrowser, "open", "webbrowser.open", True)
    _install_waiting(effects)


def _install_waiting(effects: Effects) -> None:
    """Nobody is asked, and nothing is waited for."""
    effects.put(time, "sleep", lambda seconds: None)
    for owner, name in ((builtins, "input"), (getpass, "getpass")):
        effects.put(owner, name, _asking)


def _asking(prompt: Any = "", *args: Any, **kwargs: Any) -> str:
    sys.stdout.write(f"{prompt}\n" if prompt else "")
    return ""


def _not_started(effects: Effects) -> Any:
    """A process that has ended at once, without output, and successfully."""

    def execute_child(process: Any, args: Any, *others: Any) -> None:
        effects.tell(described(f"subprocess.{_called_by_name()}", (args,)))
        pipes = (process, args, *others)[_PIPES]
        if os.name == "posix" and pipes[1] != -1:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, pipes[1])
            os.close(null)
        process._close_pipe_fds(*pipes)
        process.pid, process.returncode = os.getpid(), 0
        process._child_created = False

    return execute_child


def _called_by_name() -> str:
    """The function of subprocess that the user called: run, check_output, ..., Popen."""
    name = "Popen"
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "subprocess":
            function = frame.f_code.co_name
            name = "Popen" if function == "__init__" else function
        elif name != "Popen":
            break
        frame = frame.f_back
    return name


class _EmptyPipe(io.StringIO):
    """os.popen's answer: it closes without an exit status."""

    def close(self) -> None:
        super().close()


def _empty_pipe(*args: Any, **kwargs: Any) -> io.StringIO:
    return _EmptyPipe()


def _exit(code: int = 1) -> NoReturn:
    raise SystemExit(code)


def _ignored_signal(name: str) -> Any:
    def ignored(*args: Any) -> Any:
        if name == "signal":
            return signal.getsignal(args[0])
        return {"alarm": 0, "setitimer": (0.0, 0.0), "set_wakeup_fd": -1}.get(name)

    return ignored


def _refused(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"{name} is not supported in a dry run: it follows one process; call the work of the "
            "other processes directly to predict it"
        )

    return refuse
