"""What a process may do to others and to files, taken away for good, in every language.

Landlock: https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import stat
import struct
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from gpumem_magic.isolation.walls import seccomp

if sys.platform != "win32":
    import resource

_LARGEST_FILE = 4 << 30
_LOOKED_AT = 10_000
"""Files of a folder among which pipes are looked for."""
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS
_CAPABILITIES = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_KEPT = 1 << 1 | 1 << 2 | 1 << 24  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_RESOURCE

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all machines
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH
_EXECUTE, _WRITE_FILE, _READ_FILE, _REFER, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 13, 1 << 14
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_CONTROL_DEVICE = 1 << 15
_TCP = 3  # LANDLOCK_ACCESS_NET_BIND_TCP | LANDLOCK_ACCESS_NET_CONNECT_TCP
_SCOPES = 3  # LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL
_WITHOUT_LOG = 1  # LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF
_WRITABLE = ("/dev/null", "/dev/zero", "/dev/full")
_READABLE = ("/dev/random", "/dev/urandom", "/dev/shm", "/dev/hugepages")


def find_named_pipes() -> set[str]:
    """Paths of pipes that this process has open, or that lie in its folder or in that of temporary
    files: what is read from them is gone for others, and who waits at them goes on."""
    found = set()
    for number in os.listdir("/proc/self/fd") if sys.platform == "linux" else ():  # noqa: PTH208
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(int(number)).st_mode):
                found.add(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
    for folder in (Path.cwd, tempfile.gettempdir):
        with contextlib.suppress(OSError), os.scandir(os.path.realpath(folder())) as entries:
            found |= {
                entry.path for entry in itertools.islice(entries, _LOOKED_AT) if _is_pipe(entry)
            }
    return {path for path in found if path.startswith("/")}


def _is_pipe(entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False):
        return False
    return stat.S_ISFIFO(entry.stat(follow_symlinks=False).st_mode)


def confine(folder: Path, hidden: Collection[str] = ()) -> tuple[str, ...]:
    """From now on this process, which has one thread, writes only below `folder`, reaches no other
    process and no network, and is the first to go when memory runs out. hidden: paths of what it
    does not read either.

    Returns what could not be put in place: "Landlock" (files), "seccomp" (the rest). It leads a
    session of its own: a terminal's keys do not reach it.
    """
    if sys.platform != "win32":
        _limit()
    if sys.platform != "linux":
        return ("Landlock", "seccomp")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), 0, 0, 0)
    _drop_privileges(libc)
    files = _write_only_below(folder, hidden, libc)
    calls = seccomp.refuse_calls(libc, truncate=files and read_landlock_version(libc) >= 3)
    return tuple(name for name, done in (("Landlock", files), ("seccomp", calls)) if not done)


def _limit() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    _lower(resource.RLIMIT_CORE, 1)  # unlike 0 it also holds where a program takes the dumps
    _lower(resource.RLIMIT_FSIZE, _LARGEST_FILE)


def _lower(kind: int, most: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(kind)
        if soft == resource.RLIM_INFINITY or soft > most:
            resource.setrlimit(kind, (most, hard))


def _drop_privileges(libc: ctypes.CDLL) -> None:
    """Root reads and writes files of others as before, and has limits of its own; it makes no
    devices, sets no network up, administers nothing."""
    head = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES, 0))
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then their upper halves
    if not libc.capget(head, sets):
        libc.capset(head, (ctypes.c_uint32 * 6)(*(each & _KEPT for each in sets[:3])))


def read_landlock_version(libc: ctypes.CDLL) -> int:
    """What the kernel can do, as Landlock's ABI version; 0 or less: nothing."""
    return int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))


def _write_only_below(folder: Path, hidden: Collection[str], libc: ctypes.CDLL) -> bool:
    """From now on this thread, and those it starts, write only below `folder` and in devices that
    keep nothing, read no other devices (what is typed into a terminal is gone once it was read),
    execute no file, and reach no other process; False if that could not be had.

    It takes PR_SET_NO_NEW_PRIVS. Metadata are not covered, and before version 3 truncate is not.
    """
    version = read_landlock_version(libc)
    if version < 1:
        return False
    written = _WRITE_FILE | (_TRUNCATE if version >= 3 else 0)
    everything = written | _REMOVE_AND_MAKE | (_REFER if version >= 2 else 0)
    handled = struct.pack(
        "=QQQ",
        everything | _EXECUTE | _READ_FILE | (_CONTROL_DEVICE if version >= 5 else 0),
        _TCP if version >= 4 else 0,
        _SCOPES if version >= 6 else 0,
    )
    rules = libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    if rules < 0:
        return False
    try:
        if not _allow(folder, everything | _READ_FILE, rules, libc):
            return False
        for device in _WRITABLE:
            _allow(Path(device), written | _READ_FILE, rules, libc)
        for place in (*_all_but({"/dev", *hidden}, "/"), *_READABLE):
            _allow(Path(place), _READ_FILE, rules, libc)
        return not libc.syscall(_RESTRICT_SELF, rules, _WITHOUT_LOG if version >= 7 else 0)
    finally:
        os.close(rules)


def _all_but(hidden: Collection[str], folder: str) -> Iterator[str]:
    """What lies below a folder but `hidden`: whole folders where none of that is in them. What
    cannot be listed is whole, too."""
    try:
        entries = [*os.scandir(folder)]
    except OSError:
        yield folder
        return
    for entry in entries:
        below = os.path.join(entry.path, "")  # noqa: PTH118
        if entry.path in hidden or entry.is_symlink():
            continue  # what a link leads to is allowed, or not, where it lies
        if any(path.startswith(below) for path in hidden):
            yield from _all_but(hidden, entry.path)
        else:
            yield entry.path


def _allow(path: Path, rights: int, rules: int, libc: ctypes.CDLL) -> bool:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        rule = struct.pack("=Qi", rights, place)
        return not libc.syscall(_ADD_RULE, rules, _BENEATH, rule, 0)
    finally:
        os.close(place)
