"""The net below what is replaced: Python's own events, for who has kept a reference to a function
(`[os.remove]`, functools.partial) or calls it from C."""

from __future__ import annotations

import errno
import os
import stat
import sys
from os import getcwd, readlink
from os import stat as _status_of
from pathlib import Path
from typing import Any

from gpumem_magic.isolation.effects.network import is_here, no_connection
from gpumem_magic.isolation.telling import Effects, described

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_DEVICES = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/")
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
_READING = ("mode=ro", "mode=memory", "immutable=1")

_CHANGING = {
    **dict.fromkeys(
        "os.remove os.rmdir os.mkdir os.chmod os.chown os.utime".split(), ((0,), (-1,))
    ),
    **dict.fromkeys(
        "os.truncate os.chflags os.lchflags os.setxattr os.removexattr".split(), ((0,), ())
    ),
    "os.symlink": ((1,), (2,)),
    **dict.fromkeys(("os.rename", "os.link"), ((0, 1), (2, 3))),
}
"""Where an event's arguments have the paths that are changed, or could be through a link; and the
descriptors of the folders that they are in."""

_NEVER = (
    "subprocess.Popen os.system os.exec os.fork os.forkpty os.spawn os.posix_spawn os.startfile "
    "pty.spawn os.killpg signal.pthread_kill webbrowser.open syslog.syslog"
).split()
_CONNECTING = (
    "socket.connect socket.bind socket.sendto ftplib.connect smtplib.connect imaplib.open "
    "poplib.connect nntplib.connect telnetlib.Telnet.open http.client.connect socket.sendmsg"
).split()
_LOOKING_UP = "socket.getaddrinfo socket.gethostbyname socket.gethostbyaddr".split()


def watch(effects: Effects, scratch: Path) -> None:
    """From here on refuse, and tell, what reaches outside the process, but for files in `scratch`.

    It cannot be taken back. shutil's events are not looked at: they name files before it is known
    where these are kept, and what is done to them has events of its own.
    """
    # a look-up for each event and no more: there are many, even `id` is one
    judge = _Net(effects, scratch).judges().get

    def hook(event: str, args: tuple[Any, ...]) -> None:
        found = judge(event)
        if found is not None:
            found(event, args)

    sys.addaudithook(hook)


def _is_used_up(path: Any) -> bool:
    """Whether what is read there is gone for others: a pipe or terminal, by its name."""
    try:
        mode = 0 if isinstance(path, int) else _status_of(path).st_mode  # noqa: PTH116
    except (OSError, ValueError):
        return False
    if stat.S_ISCHR(mode):
        return os.fsdecode(path).startswith(_TERMINALS)
    return stat.S_ISFIFO(mode)


class _Net:
    """What is done about each event: nothing, or it is told, and an error is raised."""

    def __init__(self, effects: Effects, scratch: Path) -> None:
        self._effects = effects
        folders = {os.path.join(place, "") for place in (str(scratch), os.path.realpath(scratch))}  # noqa: PTH118
        self._free = (*folders, *_DEVICES)

    def judges(self) -> dict[str, Any]:
        """Those of all events that are looked at."""
        return {
            "open": self._open,
            "os.kill": self._kill,
            "sqlite3.connect": self._database,
            "resource.prlimit": self._limit,
            **dict.fromkeys(_CHANGING, self._change),
            **dict.fromkeys(_NEVER, lambda event, args: self._refuse(event, *args[:2])),
            **dict.fromkeys(_CONNECTING, self._connect),
            **dict.fromkeys(_LOOKING_UP, self._look_up),
        }

    def _refuse(self, name: str, *args: Any) -> None:
        text = described(name, args)
        self._effects.blocked(text)
        raise PermissionError(errno.EPERM, f"{text} is not done in a dry run")

    def _is_free(self, path: Any, folder: int = -1) -> bool:
        """Whether it may be written. Descriptors may: they are this process' own; and there is no
        file without a name."""
        if isinstance(path, int) or not path:
            return True
        name = os.fsdecode(path)
        if not name.startswith("/"):
            link = f"/proc/self/fd/{folder}"
            base = readlink(link) if folder >= 0 else getcwd()  # noqa: PTH109, PTH115
            name = os.path.join(base, name)  # noqa: PTH118
        return f"{os.path.normpath(name)}/".startswith(self._free)

    def _open(self, event: str, args: tuple[Any, ...]) -> None:
        path, mode, flags = args
        if (flags & _WRITING or _is_used_up(path)) and not self._is_free(path):
            self._refuse(event, path, mode or flags)

    def _change(self, event: str, args: tuple[Any, ...]) -> None:
        paths, folders = _CHANGING[event]
        within = [args[place] for place in folders] or [-1]
        changed = [args[place] for place in paths]
        if not all(map(self._is_free, changed, within)):
            self._refuse(event, *changed)

    def _kill(self, event: str, args: tuple[Any, ...]) -> None:
        if args[1]:  # 0 asks whether it is there
            self._refuse(event, *args)

    def _database(self, event: str, args: tuple[Any, ...]) -> None:
        name = os.fsdecode(args[0])
        path, _, options = name.removeprefix("file:").partition("?")
        reads = name != path and any(option in options for option in _READING)
        if not (path in (":memory:", "") or reads or self._is_free(path)):
            self._refuse(event, name)

    def _limit(self, event: str, args: tuple[Any, ...]) -> None:
        if args[0] not in (0, os.getpid()) and args[2] is not None:
            self._refuse(event, *args)

    def _connect(self, event: str, args: tuple[Any, ...]) -> None:
        if args[1]:  # a connected pair has no address
            self._refuse_connection(args[1])

    def _look_up(self, event: str, args: tuple[Any, ...]) -> None:
        if not is_here(args[0]):
            self._refuse_connection(args[0])

    def _refuse_connection(self, address: Any) -> None:
        self._effects.blocked(f"connection to {address}")
        raise no_connection(address)
