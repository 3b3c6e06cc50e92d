"""Other processes, this process itself, and the person in front of it."""

from __future__ import annotations

import asyncio.subprocess
import builtins
import concurrent.futures
import functools
import getpass
import importlib
import io
import os
import signal
import subprocess
import sys
import webbrowser
from typing import Any, NoReturn

from gpumem_magic.isolation.arrivals import MULTIPROCESSING, Arrivals
from gpumem_magic.isolation.telling import Effects, described
from gpumem_magic.sources.stacks.frames import outwards

_EXECUTORS = (
    ("concurrent.futures", "process"),
    ("joblib.externals.loky", "process_executor"),
    ("loky", "process_executor"),
)
"""Packages that show their ProcessPoolExecutor, and which of their modules has it."""
_PIPES = slice(11, 17)
"""Where Popen._execute_child has the ends of its pipes: p2cread, p2cwrite, c2pread, c2pwrite,
errread, errwrite, after self and ten others."""

_OF_THE_PROCESS = (
    "setpriority startfile setuid setgid seteuid setegid setreuid setregid setresuid setresgid "
    "setgroups initgroups setsid setpgid"
).split()


def install_process_effects(effects: Effects, arrivals: Arrivals) -> None:
    """Replace what starts, signals or ends processes, shares memory with them, or asks the user.

    The timer of SIGALRM is the dry run's own: what starts it must not look up `signal.signal` and
    `signal.setitimer` after this.
    """
    _install_starting(effects)
    _install_pools(effects, arrivals)
    _install_signals(effects)
    for name in ("nice", *_OF_THE_PROCESS):
        effects.skip(os, name, f"os.{name}", 0 if name == "nice" else None)
    for name in ("_exit", "abort"):
        effects.skip(os, name, f"os.{name}", _exit)
    effects.skip(webbrowser, "open", "webbrowser.open", True)
    for owner, name in ((builtins, "input"), (getpass, "getpass")):
        effects.put(owner, name, functools.partial(_nobody, f"{name}()"))
    arrivals.expect(
        "ipykernel.kernelbase",
        lambda module: effects.put(
            module.Kernel, "_input_request", functools.partial(_nobody, "input()")
        ),
    )
    for name in ("stdin", "__stdin__"):
        setattr(sys, name, _Nobody())


def _install_starting(effects: Effects) -> None:
    effects.put(subprocess.Popen, "_execute_child", functools.partial(_not_started, effects))
    endings = ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")
    for name in ("system", "posix_spawn", "posix_spawnp", *(f"spawn{end}" for end in endings)):
        effects.skip(os, name, f"os.{name}", 0)
    effects.skip(
        os,
        "popen",
        "os.popen",
        lambda command, *options, **named: io.StringIO(effects.said(command)),
    )
    effects.programs["git"] = _git
    for name in ("fork", "forkpty", *(f"exec{end}" for end in endings)):
        effects.put(os, name, _refused(f"os.{name}"))
    other = _refused("starting another process")  # as joblib does
    effects.put(sys.modules.get("_posixsubprocess"), "fork_exec", other)
    for owner in (asyncio, asyncio.subprocess):
        for name in ("create_subprocess_exec", "create_subprocess_shell"):
            create = functools.partial(_not_started_by_asyncio, effects, f"asyncio.{name}")
            effects.put(owner, name, create)


def _install_pools(effects: Effects, arrivals: Arrivals) -> None:
    """What the processes of a pool would compute is computed here, one after the other."""
    for package in MULTIPROCESSING:
        refuse = _refused(f"{package}.Process.start")
        for module, install in (
            ("process", lambda m, refuse=refuse: effects.put(m.BaseProcess, "start", refuse)),
            ("pool", functools.partial(_make_thread_pool, effects)),
            ("managers", lambda m: effects.wrap(m.BaseManager, "start", _manage_here)),
            # a process that removes what others leave
            ("resource_tracker", lambda m: effects.put(m.ResourceTracker, "_send", _do_nothing)),
        ):
            arrivals.expect(f"{package}.{module}", install)
    for package, module in _EXECUTORS:
        compute = functools.partial(_compute_here, effects, f"{package}.ProcessPoolExecutor")
        arrivals.expect(f"{package}.{module}", compute)

    def begin(original: Any, /, parallel: Any) -> Any:
        if parallel.n_jobs not in (None, 1):
            effects.done_here("joblib.Parallel")
        parallel.n_jobs = 1
        return original(parallel)

    arrivals.expect(
        "joblib.parallel",
        lambda module: effects.wrap(module.Parallel, "_initialize_backend", begin),
    )


def _compute_here(effects: Effects, name: str, module: Any) -> None:
    submit = functools.partial(_submit, effects, name)
    effects.put(module.ProcessPoolExecutor, "submit", submit)


def _make_thread_pool(effects: Effects, module: Any) -> None:
    threads, package = module.ThreadPool, module.__package__
    # what a pool's threads are told apart by, as its processes would be
    importlib.import_module(f"{package}.dummy").DummyProcess.pid = os.getpid()

    def begin(
        original: Any, /, pool: Any, processes: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if not isinstance(pool, threads):
            effects.done_here(f"{package}.Pool")
            pool.__class__, processes = threads, 1
        original(pool, processes, *args[:2], **{**kwargs, "context": None})

    effects.wrap(module.Pool, "__init__", begin)


def _manage_here(original: Any, /, manager: Any, *initializer: Any, **named: Any) -> None:
    """The objects that a manager makes in its process are made in this one."""
    makers = {name: kind[0] for name, kind in manager._registry.items() if kind[0]}
    if not makers:
        original(manager, *initializer, **named)
        return
    vars(manager).update(makers, shutdown=lambda: None)
    manager._state.value = 1  # started


def _submit(
    effects: Effects, name: str, pool: Any, function: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """As a pool of processes does, but for when and where."""
    if vars(pool).get("_shutdown_thread"):
        raise RuntimeError("cannot schedule new futures after shutdown")
    effects.done_here(name)
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    try:
        if begin := vars(pool).pop("_initializer", None):
            begin(*pool._initargs)
        future.set_result(function(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)
    return future


def _do_nothing(*args: Any) -> None:
    """In place of what would tell another process."""


async def _not_started_by_asyncio(
    effects: Effects, name: str, *command: Any, **options: Any
) -> _Ended:
    effects.blocked(described(name, command))
    return _Ended()


class _Ended:
    """asyncio's process: it has ended successfully, without output."""

    pid, returncode, stdin = 0, 0, None

    def __init__(self) -> None:
        self.stdout = self.stderr = asyncio.StreamReader()
        self.stdout.feed_eof()

    async def wait(self) -> int:
        """Its exit status."""
        return 0

    async def communicate(self, data: Any = None) -> tuple[bytes, bytes]:
        """What it has written."""
        return b"", b""

    def send_signal(self, number: int = 0) -> None:
        """Nobody is there to get it."""

    kill = terminate = send_signal


def _install_signals(effects: Effects) -> None:
    """Those to this process call its handlers, or else nothing; it lives on."""

    def raise_signal(number: int) -> None:
        handler = signal.getsignal(number)
        if callable(handler):
            handler(number, sys._getframe(1))

    def kill(original: Any, pid: int, number: int) -> None:
        if number == 0:
            _ask_whether_there(pid, original)
        elif pid == os.getpid() and callable(signal.getsignal(number)):
            raise_signal(number)
        else:
            effects.blocked(described("os.kill", (pid, number)))

    ignored: dict[int, Any] = {}  # by the number of the signal that is the dry run's own

    def set_handler(original: Any, number: int, handler: Any, /) -> Any:
        if number != getattr(signal, "SIGALRM", None):
            return original(number, handler)
        before = ignored.get(number, signal.SIG_DFL)
        ignored[number] = handler
        return before

    effects.put(signal, "raise_signal", raise_signal)
    effects.wrap(os, "kill", kill)
    effects.skip(os, "killpg", "os.killpg")
    effects.skip(signal, "pthread_kill", "signal.pthread_kill")
    effects.wrap(signal, "signal", set_handler)
    effects.put(signal, "alarm", lambda seconds: 0)
    for name in ("setitimer", "getitimer"):
        effects.put(signal, name, lambda *timer: (0.0, 0.0))
    for name in ("pause", "sigwait", "sigwaitinfo"):
        effects.put(signal, name, _refused(f"signal.{name}"))


def _ask_whether_there(pid: int, kill: Any) -> None:
    """As signal 0 does, which the kernel refuses the dry run for processes of the same user."""
    try:
        kill(pid, 0)
    except PermissionError:
        try:
            owner = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
        except OSError:
            owner = None
        if owner is None or os.geteuid() not in (0, owner):
            raise


class _Nobody(io.TextIOBase):
    """Standard input: nobody is there to answer."""

    encoding, errors, name = "utf-8", "strict", "<stdin>"

    def readable(self) -> bool:
        return True

    def _ask(self, *size: Any) -> NoReturn:
        _nobody("reading from sys.stdin")

    read = readline = readlines = __next__ = _ask

    @property
    def buffer(self) -> io.TextIOBase:
        return self


def _nobody(what: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError(
        f"{what} waits for an answer, and nobody is asked in a dry run: put the value into the "
        "cell to predict it"
    )


def _not_started(effects: Effects, process: Any, args: Any, *others: Any) -> None:
    """A process that has ended at once, successfully."""
    if not isinstance(args, (str, bytes, os.PathLike)):
        args = list(args)
        os.fspath(args[0])
    effects.blocked(described(f"subprocess.{_called_by_name()}", (args,)))
    pipes = (process, args, *others)[_PIPES]
    if pipes[3] != -1:
        os.write(pipes[3], effects.said(args).encode())
    if os.name == "posix" and pipes[1] != -1:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, pipes[1])
        os.close(null)
    process._close_pipe_fds(*pipes)
    process.pid, process.returncode = os.getpid(), 0
    process._child_created = False


def _git(words: list[str]) -> str:
    """What GitPython cannot be imported without."""
    return "git version 2.40.0" if words == ["version"] else ""


def _called_by_name() -> str:
    """The function of subprocess that the user called: run, check_output, ..., Popen."""
    name = "Popen"
    for frame in outwards(sys._getframe(1)):
        if frame.f_globals.get("__name__") == "subprocess":
            function = frame.f_code.co_name
            name = "Popen" if function == "__init__" else function
        elif name != "Popen":
            break
    return name


def _exit(code: int = 1) -> NoReturn:
    raise SystemExit(code)


def _refused(name: str) -> Any:
    return functools.partial(_refuse, name)


def _refuse(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError(
        f"{name} is not supported in a dry run: it follows one process; call the work of the "
        "other processes directly to predict it"
    )
