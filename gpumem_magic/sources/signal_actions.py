"""What the system does about a signal. Python's `signal` forgets flags (`signal.siginterrupt`), and
knows nothing of handlers that C code has set. It stands apart because interrupts and the end of
children both need it."""

from __future__ import annotations

import ctypes
import sys

_SIZE = 256
"""More bytes than a struct sigaction has anywhere; it begins with the handler."""

DEFAULT = bytes(_SIZE)
_IGNORED = 1  # SIG_IGN


def read_action(number: int) -> bytes:
    """That of a signal, as the C library keeps it; empty on Windows, which knows of none."""
    return _exchange(number, None)


def set_action(number: int, action: bytes) -> bytes:
    """Put another in its place; that of before."""
    return _exchange(number, action)


def calls(action: bytes) -> bool:
    """Whether a function is called."""
    handler = action[: ctypes.sizeof(ctypes.c_void_p)]
    return int.from_bytes(handler, sys.byteorder) > _IGNORED


def _exchange(number: int, action: bytes | None) -> bytes:
    if sys.platform == "win32":
        return b""
    before = ctypes.create_string_buffer(_SIZE)
    ctypes.CDLL(None).sigaction(number, action, before)
    return before.raw
