"""What waits for files and sockets, and with it event loops."""

from __future__ import annotations

import errno
import os
import select
import socket
from typing import Any, NoReturn

from gpumem_magic.isolation.telling import Effects
from gpumem_magic.isolation.waits.clock import Clock, really_sleep, threads

_RECEIVING = {
    **dict.fromkeys(("recv", "recvfrom"), 1),
    **dict.fromkeys(("recv_into", "recvfrom_into", "recvmsg", "recvmsg_into"), 2),
}
"""Methods of sockets, and which argument has the flags."""

_AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0)  # Windows has none

_select = select.select


def install_files(effects: Effects, clock: Clock) -> None:
    """What waits for files and sockets, and with it event loops."""

    def make_select(original: Any) -> Any:
        def wait(read: Any, write: Any, other: Any, timeout: Any = None, /) -> Any:
            found: list[Any] = [*original(read, write, other, 0)]
            if timeout is not None and not (isinstance(timeout, (int, float)) and timeout >= 0):
                return original(read, write, other, timeout)

            def attempt(seconds: float) -> bool:
                found[:] = original(read, write, other, seconds)
                return any(found)

            clock.wait(attempt, timeout)
            return tuple(found)

        return wait

    def make_poll(unit: int) -> Any:
        """unit: how many of what it takes are a second."""

        def make(original: Any) -> Any:
            def poll(selector: Any, timeout: float | None = None, *most: int) -> Any:
                limit = None if timeout is None or timeout < 0 else timeout / unit
                return clock.wait(lambda part: original(selector, part * unit, *most), limit)

            return poll

        return make

    def make_control(original: Any) -> Any:
        def control(selector: Any, changes: Any, most: int, timeout: float | None = None) -> Any:
            if changes or not most:
                original(selector, changes, 0, 0)
            if not most:
                return []
            return clock.wait(lambda part: original(selector, None, most, part), timeout)

        return control

    def make_read(original: Any) -> Any:
        def read(descriptor: int, length: int, /) -> Any:
            if len(threads()) > 1:
                clock.wait(lambda part: _is_readable(descriptor, part), None)
            return original(descriptor, length)

        return read

    effects.replace(select, "select", make_select)
    if hasattr(select, "poll"):
        effects.replace(type(select.poll()), "poll", make_poll(1000))
    effects.replace(getattr(select, "epoll", None), "poll", make_poll(1))
    effects.replace(getattr(select, "kqueue", None), "control", make_control)
    effects.replace(os, "read", make_read)


def install_sockets(effects: Effects, clock: Clock) -> None:
    """Nobody connects."""

    def make_receive(flags: int) -> Any:
        """flags: which argument."""

        def make(original: Any) -> Any:
            def receive(own: socket.socket, *args: Any, **kwargs: Any) -> Any:
                given = args[flags] if len(args) > flags else kwargs.get("flags", 0)
                limit = 0 if given & _AT_ONCE else own.gettimeout()
                ready = clock.wait(lambda part: _is_readable(own, part), limit)
                if not ready and limit:
                    raise TimeoutError("timed out")
                return original(own, *args, **kwargs)

            return receive

        return make

    def accept(own: socket.socket) -> NoReturn:
        limit = own.gettimeout()
        clock.wait(really_sleep, limit)
        if limit:
            raise TimeoutError("timed out")
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    for name, flags in _RECEIVING.items():
        effects.replace(socket.socket, name, make_receive(flags))
    effects.put(socket.socket, "_accept", accept)


def _is_readable(file: Any, seconds: float) -> bool:
    try:
        return bool(_select([file], [], [], seconds)[0])
    except (OSError, ValueError):  # the reading tells
        return True
