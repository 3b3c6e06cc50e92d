"""Open descriptors of a forked child: private ones at the same numbers.

After a fork, offsets, pipes, connections and event queues are still the parent's.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
import stat
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

_LINUX = sys.platform == "linux"
_FOLDER = "/proc/self/fd" if _LINUX else "/dev/fd"
_COPIED = 64 << 20
"""Bytes of files open for writing that are copied, all together."""
_SPARSE = 2 << 30
"""The largest file that is stood in for by one of its size: above, writing would pass the limit."""
_HARMLESS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_O_PATH = getattr(os, "O_PATH", 0)
_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK
_WITHOUT_WAITING = 2  # SPLICE_F_NONBLOCK


@dataclass(frozen=True, slots=True)
class _Open:
    """A descriptor as it was found."""

    number: int
    flags: int
    status: os.stat_result

    @property
    def mode(self) -> int:
        return self.flags & os.O_ACCMODE

    @property
    def is_pipe(self) -> bool:
        return stat.S_ISFIFO(self.status.st_mode)

    @property
    def inode(self) -> tuple[int, int]:
        return self.status.st_dev, self.status.st_ino


@dataclass(frozen=True, slots=True)
class CopiedFile:
    """A file that was open for writing. name: what the system calls it, a path unless it was
    deleted; copy: where its descriptors lead now."""

    name: str
    inode: int
    copy: Path


def unshare_descriptors(
    keep: Collection[int], scratch: Path, output: int
) -> tuple[CopiedFile, ...]:
    """Replaces each open descriptor but `keep` and `output`; 1 and 2 become `output`.

    scratch: an empty folder, for what is written through descriptors of files; returns the copies.
    """
    null = _open_null()
    found = _find_open({*keep, output, null}, null)
    for number, private in ((1, output), (2, output), (0, null)):
        if number not in keep:
            os.dup2(private, number)
    others = [one for one in found if one.number > 2]
    replace = _Replacements(scratch, null)
    for one in sorted(others, key=lambda one: (-one.mode, one.status.st_size)):
        if not one.is_pipe:
            replace(one)
    _replace_pipes([one for one in others if one.is_pipe], null)
    os.close(null)
    return tuple(replace.copies.values())


def _open_null() -> int:
    """A descriptor above those of the standard streams, one of which may have been closed."""
    lowest = os.open(os.devnull, os.O_RDWR)
    try:
        return fcntl.fcntl(lowest, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(lowest)


def _find_open(without: Collection[int], null: int) -> list[_Open]:
    numbers = {int(entry.name) for entry in os.scandir(_FOLDER)}.difference(without)
    return [one for number in numbers if (one := _look_at(number, null))]


def _look_at(number: int, null: int) -> _Open | None:
    """None for what shares nothing, or cannot be looked at and is therefore put away."""
    try:
        flags, status = fcntl.fcntl(number, fcntl.F_GETFL), os.fstat(number)
    except OSError as error:
        if error.errno != errno.EBADF:  # the one that listed the folder is closed by now
            os.dup2(null, number)
        return None
    if not flags & _O_PATH:
        return _Open(number, flags, status)
    # it only names a place, but a pipe or memory, to which no path leads, can be opened by it
    if not stat.S_ISDIR(status.st_mode):
        os.dup2(null, number)
    return None


class _Replacements:
    """Puts something private of the same kind in a descriptor's place, or else the null device."""

    def __init__(self, scratch: Path, null: int) -> None:
        self._scratch = scratch
        self._null = null
        self._left = _COPIED
        self.copies: dict[tuple[int, int], CopiedFile] = {}
        self._harmless = {path.stat().st_rdev for path in map(Path, _HARMLESS) if path.exists()}

    def __call__(self, one: _Open) -> None:
        is_device = stat.S_ISCHR(one.status.st_mode)
        if is_device and one.status.st_rdev in self._harmless:
            return
        try:
            private = self._open_private(one)
        except (OSError, ValueError):
            private = os.dup(self._null)
        _put(private, one.number)

    def _open_private(self, one: _Open) -> int:
        kind = stat.S_IFMT(one.status.st_mode)
        if kind == stat.S_IFSOCK:
            return _open_dead_socket(one)
        if kind == stat.S_IFDIR:
            return _seek(os.open(_path_of(one), os.O_RDONLY), one)
        if kind == stat.S_IFREG:
            return self._open_file(one)
        return _open_queue(one) if kind == 0 else os.dup(self._null)

    def _open_file(self, one: _Open) -> int:
        """The file itself for reading; for writing a file in the scratch folder."""
        flags = one.flags & _FLAGS
        if known := self.copies.get(one.inode):
            return _seek(os.open(known.copy, flags), one)
        fits = one.status.st_size <= self._left
        if one.mode == os.O_RDONLY or (one.mode == os.O_RDWR and not fits):
            return _seek(os.open(_path_of(one), flags & ~os.O_ACCMODE), one)
        path = self._scratch / f"descriptor-{one.number}"
        mode = stat.S_IMODE(one.status.st_mode) | stat.S_IRUSR | stat.S_IWUSR
        private = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
        if fits and self._copy(one, private):
            self.copies[one.inode] = CopiedFile(_name_of(one), one.status.st_ino, path)
        else:
            os.truncate(private, one.status.st_size if one.status.st_size <= _SPARSE else 0)
        return _seek(private, one)

    def _copy(self, one: _Open, private: int) -> bool:
        """Whether the content could be read: a file that is only written may not be."""
        source = one.number
        try:
            if one.mode == os.O_WRONLY:
                source = os.open(_path_of(one), os.O_RDONLY | os.O_NONBLOCK)
            self._left -= _copy_content(source, one.status.st_size, private)
        except OSError:
            if one.mode == os.O_RDWR:
                raise
            return False
        finally:
            if source != one.number:
                os.close(source)
        return True


def _put(private: int, number: int) -> None:
    """Moves a descriptor to a number, which stays inheritable or not; a number above the limit of
    descriptors, which was higher once, is closed."""
    try:
        os.dup2(private, number, os.get_inheritable(number))
    except OSError:
        os.close(number)
    os.close(private)


def _path_of(one: _Open) -> str:
    """A path that opens the same file, on Linux also where it was deleted."""
    if _LINUX:
        return f"{_FOLDER}/{one.number}"
    name = _name_of(one)
    if not os.path.samestat(Path(name).stat(), one.status):
        raise FileNotFoundError(name)
    return name


def _name_of(one: _Open) -> str:
    if _LINUX:
        return os.readlink(f"{_FOLDER}/{one.number}")  # noqa: PTH115
    path = fcntl.fcntl(one.number, fcntl.F_GETPATH, bytes(1024))  # type: ignore[attr-defined,unused-ignore]
    return os.fsdecode(path.rstrip(b"\0"))


def _seek(private: int, one: _Open) -> int:
    """The same descriptor, at the place where the parent's is."""
    try:
        os.lseek(private, os.lseek(one.number, 0, os.SEEK_CUR), os.SEEK_SET)
    except OSError:
        os.close(private)
        raise
    return private


def _copy_content(source: int, size: int, private: int) -> int:
    """Bytes copied; the parent's offset does not move, as all is read at places that are given."""
    at = 0
    while at < size and (read := os.pread(source, min(size - at, 1 << 20), at)):
        at += os.write(private, read)
    return at


def _open_dead_socket(one: _Open) -> int:
    """A socket whose other side has gone: reading ends, writing fails."""
    here, there = socket.socketpair()
    there.close()
    here.setblocking(os.get_blocking(one.number))
    return here.detach()


def _open_queue(one: _Open) -> int:
    """An event queue of the kernel, fresh, as some libraries end the process without theirs."""
    kind = os.readlink(_path_of(one))  # noqa: PTH115
    if kind == "anon_inode:[eventpoll]":
        with select.epoll() as fresh:
            return os.dup(fresh.fileno())
    if kind == "anon_inode:[eventfd]":
        return _open_event(one)
    raise OSError(kind)


def _open_event(one: _Open) -> int:
    lines = Path(f"/proc/self/fdinfo/{one.number}").read_text().splitlines()
    told = dict(line.split(":", 1) for line in lines)
    semaphore = os.EFD_SEMAPHORE if told.get("eventfd-semaphore", "").strip() == "1" else 0
    count = int(told.get("eventfd-count", "0"), 16)
    # the kernel takes no more than 32 bits at the start
    return os.eventfd(min(count, 2**32 - 1), one.flags & os.O_NONBLOCK | semaphore)


def _replace_pipes(pipes: list[_Open], null: int) -> None:
    """Pipes of which this process has both ends go on among them; others lead nowhere."""
    by_pipe = defaultdict(list)
    for one in pipes:
        by_pipe[one.inode].append(one)
    for ends in by_pipe.values():
        with _open_pipe(ends, null) as (read, write):
            for end in ends:
                try:
                    path = f"{_FOLDER}/{write if end.mode == os.O_WRONLY else read}"
                    private = os.open(path, end.flags & _FLAGS)
                except OSError:
                    private = os.dup(null)
                _put(private, end.number)


@contextlib.contextmanager
def _open_pipe(ends: list[_Open], null: int) -> Iterator[tuple[int, int]]:
    """A pipe with what waits to be read in the one that `ends` belong to; the null device twice."""
    readers = [end.number for end in ends if end.mode != os.O_WRONLY]
    if not _LINUX or not readers or all(end.mode == os.O_RDONLY for end in ends):
        yield null, null
        return
    read, write = os.pipe()
    try:
        _copy_waiting(readers[0], write)
        yield read, write
    finally:
        os.close(read)
        os.close(write)


def _copy_waiting(source: int, target: int) -> None:
    """What can be read from a pipe, into another one; it stays where it is."""
    with contextlib.suppress(OSError):  # more than a user may have; what fits is copied
        size = fcntl.fcntl(source, fcntl.F_GETPIPE_SZ)
        fcntl.fcntl(target, fcntl.F_SETPIPE_SZ, size)
    # CDLL(None) finds it too, but makes a class first
    ctypes.pythonapi.tee(source, target, ctypes.c_size_t(1 << 30), _WITHOUT_WAITING)
