"""A forked child of the notebook's process: it does one piece of work, hands back what that came to
and is forgotten. Whatever it changes is its own copy."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import dataclasses
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, NoReturn

from gpumem_magic.isolation.answers import read_answer, write_answer
from gpumem_magic.isolation.forks import HeldBack, hold_back
from gpumem_magic.isolation.hearing import HANDLER
from gpumem_magic.isolation.progress import Progress
from gpumem_magic.sources.interrupts import Interrupts
from gpumem_magic.sources.stacks.frames import place_of

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_PIECE = 1 << 20
_LONGEST = 1 << 30
"""Bytes of an answer; what ten thousand blocks come to is a thousandth of it."""
_LAST = 1.0  # seconds in which a process ends that has closed its pipe

# Cells may replace any of these, in its process and before in ours.
_pipe, _read, _write, _close = os.pipe, os.read, os.write, os.close
_kill, _waitpid, _exit, _rmtree = os.kill, os.waitpid, os._exit, shutil.rmtree

Work = Callable[["Inside"], object]
"""What a child does. Its result, a dataclass, or the exception that it raises, is pickled."""


class DryRunError(RuntimeError):
    """A dry run did not come to an end; the text says why and what to do."""


class Inside:
    """What work in a child is given: a folder of its own, and the page on which it tells how far it
    is. answer: the descriptor of the pipe to the parent. held: what waits for the walls."""

    def __init__(
        self, scratch: Path, progress: Progress, answer: int, held: HeldBack | None = None
    ) -> None:
        self.scratch = scratch
        self.progress = progress
        self.answer = answer
        self.held = held or HeldBack()


class Child:
    """A process that does `work`, seen from its parent. `close` ends it, whatever it is doing."""

    def __init__(self, work: Work) -> None:
        self._parts: list[bytes] = []
        self._left = _LONGEST
        self._ended = self._closed = False
        self._unheard = HANDLER.silence()
        try:
            with contextlib.ExitStack() as undo:
                undo.callback(self._let_hear)
                self.scratch = Path(tempfile.mkdtemp(prefix="gpumem-"))
                undo.callback(_remove, self.scratch)
                self.progress = Progress(self.scratch / "progress")
                undo.callback(self.progress.close)
                self.pid, self.descriptor = self._begin(work)
                undo.pop_all()
        except OSError as error:
            raise DryRunError(f"the system gives the dry run no process: {error}") from None

    def _begin(self, work: Work) -> tuple[int, int]:
        """The process, and the descriptor on which it sends its answer and then closes."""
        receive, send = _pipe()
        try:
            with hold_back() as held:
                child = fork()
                if child == 0:
                    HANDLER.return_to_child()
                    _live(work, Inside(self.scratch, self.progress, send, held))
        except BaseException:
            _close(receive)
            raise
        finally:
            _close(send)
        os.set_blocking(receive, False)
        return child, receive

    def poll(self) -> bool:
        """Take in what the child has sent; whether that is all, because it has ended. Raises
        DryRunError where it is more than an answer can be: the cell writes there, too."""
        with contextlib.suppress(BlockingIOError):
            while part := _read(self.descriptor, _PIECE):
                self._parts.append(part)
                self._left -= len(part)
                if self._left < 0:
                    self._parts.clear()
                    raise DryRunError("the dry run sent no answer, but more than there is room for")
            return True
        return False

    def answer(self) -> Any:
        """What the work came to, once `poll` has said so. Raises what it raised, and DryRunError
        for a child that died."""
        try:
            succeeded, value = read_answer(b"".join(self._parts))
        except Exception:
            raise DryRunError(f"the dry run's process {_cause(self._status())}") from None
        if succeeded and dataclasses.is_dataclass(value):
            return value
        if not succeeded and isinstance(value, Exception):
            raise value
        raise DryRunError(value if isinstance(value, str) else "the dry run sent no answer")

    def close(self) -> None:
        """Kill the child if it is still there, and clear away what it leaves."""
        if self._closed:
            return
        self._closed = True
        self._end()
        self._let_hear()
        self.progress.close()
        _remove(self.scratch)

    def _let_hear(self) -> None:
        if self._unheard:
            HANDLER.hear()

    def _end(self) -> None:
        """Nobody waits while the system clears the process away, half of what a fork costs; but
        for a handler that would hear of it."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                _kill(self.pid, signal.SIGKILL)
            if self._unheard or not self._is_buried_beside():
                _bury(self.pid, self.scratch)
        _close(self.descriptor)

    def _is_buried_beside(self) -> bool:
        """False where no thread is left to do it: the child's have to end first."""
        try:
            _thread.start_new_thread(_bury, (self.pid, self.scratch))
        except RuntimeError:
            return False
        return True

    def _status(self) -> int | None:
        """How the process ended, as os.waitpid tells it; None where nobody knows."""
        until = monotonic() + _LAST
        with contextlib.suppress(ChildProcessError):
            while not self._ended and monotonic() < until:
                pid, status = _waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._ended = True
                    return status
                sleep(0.005)
        return None


def _bury(pid: int, scratch: Path) -> None:
    """Wait for the end of a process that was killed, and remove what it wrote until then."""
    with contextlib.suppress(ChildProcessError):  # where the user's code ignores SIGCHLD
        _waitpid(pid, 0)
    _remove(scratch)


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()  # needs no descriptor
    try:
        _rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", folder], check=False)


def read_file(path: Path) -> list[bytes]:
    """What a process left there, in parts: none for what is no file of its own, or too large."""
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | flags)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_size <= _LONGEST:
                return [file.read()]
    return []


def can_fork() -> bool:
    """Whether this process can be forked as it is; where not, a fresh one is needed.

    GPUMEM_MAGIC_PROCESS=fresh in the environment says that it cannot, to try the other way.
    """
    if not hasattr(os, "fork") or os.environ.get("GPUMEM_MAGIC_PROCESS") == "fresh":
        return False
    return not _device_threads() or _raw_fork() is not None


def fork() -> int:
    """As os.fork, with nothing said of it, and random numbers go on in the child as they were.

    Once autograd's device threads run, torch's own handler (torch/csrc/autograd/engine.cpp) would
    forbid backward() in the child: glibc's _Fork runs no handlers.
    """
    state = random.getstate()  # `random` seeds itself anew in a child
    with _no_warnings():
        child = _fork_without_handlers() if _device_threads() else os.fork()
    if child == 0:
        random.setstate(state)
    return child


def _device_threads() -> bool:
    """Whether autograd may have started threads for a device: once one is in use."""
    if "torch" not in sys.modules:
        return False
    import torch

    from gpumem_magic.sources.cuda.device import XPU, is_in_use, is_initialized

    return is_in_use() or is_initialized(XPU) or bool(torch.backends.mps.is_available())


def _raw_fork() -> Any:
    return getattr(ctypes.PyDLL(None), "_Fork", None)


def _fork_without_handlers() -> int:
    """CPython's own steps around glibc's _Fork.

    Between _Fork and PyOS_AfterFork_Child no other thread is left to take the interpreter's lock,
    so it must not be asked for in between: hence the long interval, and a moment for it to hold.
    """
    python, raw = ctypes.pythonapi, _raw_fork()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.2)
    sleep(0.02)
    try:
        python.PyOS_BeforeFork()
        child = int(raw())
        (python.PyOS_AfterFork_Parent if child else python.PyOS_AfterFork_Child)()
    finally:
        sys.setswitchinterval(interval)
    return child


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    """Python 3.12 and JAX warn of forks beside threads. Filters set in this way leave no trace in
    what was warned of already."""
    owner: Any = warnings
    filters = owner.filters
    owner.filters = [("ignore", None, Warning, None, 0)]
    try:
        yield
    finally:
        owner.filters = filters


def _live(work: Work, inside: Inside) -> NoReturn:
    """All that the child does."""
    try:
        view = memoryview(answer_of(lambda: work(inside)))
        while view:
            view = view[_write(inside.answer, view) :]
        _close(inside.answer)  # the parent goes on while the system clears this process away
    finally:
        _exit(0)


def answer_of(work: Callable[[], object]) -> bytes:
    """What the work comes to, or what it raises, for `Child.answer`."""
    try:
        _detach()
        return write_answer(True, work())
    except BaseException as error:
        return _failure(error)


@contextlib.contextmanager
def explaining(what: str) -> Iterator[None]:
    """Whatever is raised within becomes a DryRunError that says so after `what`."""
    try:
        yield
    except BaseException as error:
        raise DryRunError(f"{what}: {type(error).__name__}: {error}") from None


def _detach() -> None:
    """Signals to the notebook's group are not for the child, and it does not outlive its parent."""
    Interrupts.stand_aside()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        os.setsid()
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


def _failure(error: BaseException) -> bytes:
    """The error for the parent, with the place in our code that a report of it needs."""
    place = place_of(error)
    try:
        error.__dict__["place"] = place
        data = write_answer(False, error)
        read_answer(data)
    except Exception:
        text = f"{type(error).__name__}: {error}"
        # a text, as the cell may have taken our classes away
        data = write_answer(False, f"the dry run failed: {text} ({place})")
    return data


_CRASHES: Final = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")


def _cause(status: int | None) -> str:
    if status is None:
        return "ended without an answer"
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        if name in _CRASHES:
            return (
                f"died of {name}: something in the cell crashes, perhaps only without a GPU or "
                "outside the notebook's process"
            )
        if name == "SIGKILL":
            return (
                "was killed: the host's memory or a limit that the cell has set ran out, or "
                "somebody ended it"
            )
        return f"was ended by {name}, from the cell, a limit that it has set, or somebody else"
    return f"was ended by the cell, with exit status {os.WEXITSTATUS(status)}"
