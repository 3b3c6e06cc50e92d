"""How far a dry run is: a page of memory that the child writes and its parent reads."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from gpumem_magic.sources.stacks.frames import outwards

_LAYOUT = struct.Struct("qqq")
_PULSE = 0.25  # seconds between two looks


class Progress:
    """Numbers that both processes see. news: grows with everything new that the cell does; line:
    where in the cell it is, 0 where that is not known; beats: how often the child has told."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("a+b") as file:
                file.truncate(mmap.PAGESIZE)
                self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._path = path
        self.news: Callable[[], int] = int
        """What is told as such; in the child."""

    @property
    def address(self) -> int:
        """Of the page, which stays shared when all other memory of the child becomes its own."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._page))

    def read(self) -> tuple[int, int, int]:
        """news, line, beats."""
        news, line, beats = _LAYOUT.unpack_from(self._page)
        return news, line, beats

    def tell(self, news: int, line: int) -> None:
        """Called in the child."""
        _LAYOUT.pack_into(self._page, 0, news, line, self.read()[2] + 1)

    def hide(self) -> None:
        """Called in the child, before the cell runs: whoever reads a page of a file that was cut
        short dies, and without a name it cannot be."""
        with contextlib.suppress(OSError):  # Windows removes no open file
            self._path.unlink()

    def close(self) -> None:
        """Let go of the page."""
        self._page.close()

    def follow(self, filename: str) -> None:
        """From here on, four times a second, tell `news()` and the line of the cell that runs.

        By a signal, which needs no thread that the cell could see and stops where C code does not
        end: then nothing new is told either.
        """

        def tell(number: int, frame: FrameType | None) -> None:
            self.tell(self.news(), _line(frame, filename))

        if sys.platform != "win32":
            signal.signal(signal.SIGALRM, tell)
            signal.siginterrupt(signal.SIGALRM, False)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
            signal.setitimer(signal.ITIMER_REAL, 0.01, _PULSE)


def _line(frame: FrameType | None, filename: str) -> int:
    inside = (each for each in outwards(frame) if each.f_code.co_filename == filename)
    return next((each.f_lineno or 0 for each in inside), 0)
