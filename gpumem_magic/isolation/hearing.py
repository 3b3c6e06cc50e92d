"""Children that end, and the user's handler of SIGCHLD, which is not to hear of ours."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

_CHILD_ENDED = getattr(signal, "SIGCHLD", None)


class _Handler:
    """What the user's code has the system call, and how many children it must not hear of.

    Nothing is called meanwhile, not even a wake-up descriptor's byte is written: a handler in its
    place would do that.
    """

    def __init__(self) -> None:
        self._unheard = 0
        self._handler: Any = None
        self._had_ended = False

    def silence(self) -> bool:
        """Until `hear`, as often as this; False where there is no handler to keep it from."""
        if not self._unheard:
            handler = _CHILD_ENDED and signal.getsignal(_CHILD_ENDED)
            if not callable(handler) or threading.current_thread() is not threading.main_thread():
                return False
            self._handler, self._had_ended = handler, _has_ended()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._unheard += 1
        return True

    def hear(self) -> None:
        """Called once a child has been waited for; tells of others that have ended meanwhile."""
        self._unheard -= 1
        if not self._unheard:
            signal.signal(signal.SIGCHLD, self._handler)
            if _has_ended() and not self._had_ended:
                signal.raise_signal(signal.SIGCHLD)

    def return_to_child(self) -> None:
        """In the child it is as it was."""
        if self._unheard:
            self._unheard = 0
            signal.signal(signal.SIGCHLD, self._handler)


def _has_ended() -> bool:
    """Whether a child waits to be waited for."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


HANDLER = _Handler()
