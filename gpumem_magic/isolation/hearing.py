"""Children that end, and the user's handler of SIGCHLD, which is not to hear of ours."""

from __future__ import annotations

import os
import signal

from gpumem_magic.sources.signal_actions import DEFAULT, calls, read_action, set_action

_CHILD_ENDED = getattr(signal, "SIGCHLD", None)


class _Handler:
    """What the user's code has the system call, and how many children it must not hear of.

    Nothing is called meanwhile, not even a wake-up descriptor's byte is written: a handler in its
    place would do that.
    """

    def __init__(self) -> None:
        self._unheard = 0
        self._action = DEFAULT
        self._had_ended = False

    def silence(self) -> bool:
        """Until `hear`, as often as this; False where there is no handler to keep it from."""
        if not self._unheard:
            if _CHILD_ENDED is None or not calls(read_action(_CHILD_ENDED)):
                return False
            self._had_ended = _has_ended()
            self._action = set_action(_CHILD_ENDED, DEFAULT)
        self._unheard += 1
        return True

    def hear(self) -> None:
        """Called once a child has been waited for; tells of others that have ended meanwhile."""
        self._unheard -= 1
        if not self._unheard:
            set_action(signal.SIGCHLD, self._action)
            if _has_ended() and not self._had_ended:
                signal.raise_signal(signal.SIGCHLD)

    def return_to_child(self) -> None:
        """In the child it is as it was."""
        if self._unheard:
            self._unheard = 0
            set_action(signal.SIGCHLD, self._action)


def _has_ended() -> bool:
    """Whether a child waits to be waited for."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


HANDLER = _Handler()
