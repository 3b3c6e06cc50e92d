"""A forked child of the notebook's process: it does one piece of work, hands back what that came to
and is forgotten. Whatever it changes is its own copy."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from gpumem_magic.isolation.progress import Progress

_PACKAGE = Path(__file__).parents[1]
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_PIECE = 1 << 20

# The cell may replace any of these in its process.
_write, _close, _exit, _dumps = os.write, os.close, os._exit, pickle.dumps

Work = Callable[["Inside"], object]
"""What a child does. Its result, or the exception that it raises, is pickled."""


class DryRunError(RuntimeError):
    """A dry run did not come to an end; the text says why and what to do."""


class Inside:
    """What work in a child is given: a folder of its own, and the page on which it tells how far it
    is. answer: the descriptor of the pipe to the parent."""

    def __init__(self, scratch: Path, progress: Progress, answer: int) -> None:
        self.scratch = scratch
        self.progress = progress
        self.answer = answer


class Child:
    """A process that does `work`, seen from its parent. `close` ends it, whatever it is doing."""

    def __init__(self, work: Work) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="gpumem-"))
        self.progress = Progress(self.scratch / "progress")
        self._parts: list[bytes] = []
        self._status: int | None = None
        self._ended = self._closed = False
        try:
            self.pid, self.descriptor = self._begin(work)
        except BaseException:
            self.progress.close()
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise

    def _begin(self, work: Work) -> tuple[int, int]:
        """The process, and the descriptor on which it sends its answer and then closes."""
        receive, send = os.pipe()
        child = fork()
        if child == 0:
            _live(work, Inside(self.scratch, self.progress, send))
        os.close(send)
        os.set_blocking(receive, False)
        return child, receive

    def poll(self) -> bool:
        """Take in what the child has sent; whether that is all, because it has ended."""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.descriptor, _PIECE):
                self._parts.append(part)
            self._ended = True
        return self._ended

    def answer(self) -> Any:
        """What the work came to, once `poll` has said so. Raises what it raised, and DryRunError
        for a child that died."""
        data = b"".join(self._parts)
        try:
            succeeded, value = pickle.loads(data)
        except Exception:
            self.close()
            raise DryRunError(f"the dry run's process {_cause(self._status)}") from None
        if not succeeded:
            raise value
        return value

    def close(self) -> None:
        """Kill the child if it is still there, and clear away what it leaves."""
        if self._closed:
            return
        self._closed = True
        self._status = self._reap()
        self.progress.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _reap(self) -> int | None:
        """How the process ended, as os.waitpid tells it; None where nobody knows."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        os.close(self.descriptor)
        with contextlib.suppress(ChildProcessError):  # where the user's code ignores SIGCHLD
            return os.waitpid(self.pid, 0)[1]
        return None


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
    time.sleep(0.02)
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
        return _dumps((True, work()), 5)
    except BaseException as error:
        return _failure(error)


def _detach() -> None:
    """Signals to the notebook's group are not for the child, and it does not outlive its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        os.setsid()
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


def _failure(error: BaseException) -> bytes:
    """The error for the parent, with the place in our code that a report of it needs."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    place = f"{Path(ours[-1].filename).relative_to(_PACKAGE)}:{ours[-1].lineno}" if ours else ""
    try:
        error.__dict__["place"] = place
        data = _dumps((False, error), 5)
        pickle.loads(data)
    except Exception:
        text = f"{type(error).__name__}: {error}"
        data = _dumps((False, DryRunError(f"the dry run failed: {text} ({place})")), 5)
    return data


_SIGNALS: Final = {
    signal.SIGABRT: "aborted",
    signal.SIGKILL: "was killed, most likely because the host's memory ran out",
}


def _cause(status: int | None) -> str:
    if status is None:
        return "ended without an answer"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        how = _SIGNALS.get(signal.Signals(number), f"died of {signal.Signals(number).name}")
        return f"{how}, as the notebook would have: something in the cell crashes without a GPU"
    return f"was ended by the cell, with exit status {os.WEXITSTATUS(status)}"
