"""Where on the disk a path of the cell lies: what it wrote is in the scratch folder, over the real
files, of which some are hidden because the cell removed them."""

# Of os, what was imported here before anything was replaced; of os.path, what only handles text.
# ruff: noqa: PTH100, PTH102, PTH103, PTH104, PTH115, PTH116, PTH118, PTH120, PTH211, UP020

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from functools import partial
from glob import has_magic
from io import open as open_file
from os import lstat, makedirs, mkdir, readlink, rename, scandir, symlink
from os import open as open_descriptor
from os import stat as status_of
from pathlib import Path
from threading import RLock
from typing import Any, BinaryIO

HEAD = 64
MARK = b"gpumem_magic keeps this in memory:"
"""A file of HEAD bytes that begins with MARK, and ends with a number of bytes, seems to have that
many: it stands for an object."""

_ROOM = 256 << 20
"""Bytes of real files that are copied in all."""

_START = 1 << 16
_OUTSIDE = ("/dev/", "/proc/", "/sys/")


class Overlay:
    """A path P lies at SCRATCH/files/P if there is something there; else it is the real P, unless
    that, or a folder above it, is hidden."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = os.path.join(os.path.realpath(scratch), "")
        self._root = f"{self._scratch}files"
        self._hidden: set[str] = set()
        self._without_links: dict[str, str] = {}
        self._room = _ROOM
        self._lock = RLock()  # threads of the cell come side by side
        self.temporary = f"{self._scratch}tmp"
        self.changed = False
        """Whether a path can lie elsewhere at all."""
        self.away = False
        """Whether the current folder is one that the cell has made: relative paths lead astray."""
        makedirs(self._root, exist_ok=True)
        makedirs(self.temporary, exist_ok=True)

    def virtual(self, file: Any, follow: bool = True) -> str | None:
        """The cell's absolute path of `file`, without links; None for what is left alone:
        descriptors, devices, and the scratch folder itself."""
        if not isinstance(file, (str, bytes, os.PathLike)) or not file:
            return None
        path = self.shown(os.path.abspath(os.fsdecode(file)))
        if self._is_outside(path):
            return None
        head, tail = os.path.split(path)
        with self._lock:
            path = os.path.join(self._resolved(head), tail)
            path = self._followed(path) if follow else path
        return None if self._is_outside(path) else path

    def named(self, file: Any) -> Any:
        """The path of a folder that is open as the descriptor `file`; all else as it is."""
        if isinstance(file, int):
            with suppress(OSError):
                place = readlink(f"/proc/self/fd/{file}")
                return self.shown(place) if _is_real_folder(place) else file
        return file

    def shown(self, path: str) -> str:
        """What the cell knows `path` as."""
        if not path.startswith(self._root):
            return path
        rest = path[len(self._root) :] or os.sep
        return f"{rest[1:2]}:{rest[2:]}" if os.name == "nt" else rest

    def at(self, path: str) -> str:
        """Where `path` is read."""
        place = self._place(path)
        return place if _exists(place) or self._hides(path) else path

    def read_at(self, file: Any, follow: bool = True) -> Any:
        """Where what the cell calls `file` is read: itself, unless another is in its place."""
        own = self.virtual(file, follow) if self.changed else None
        if own is None:
            return file
        place = self.at(own)
        if place == os.path.abspath(os.fsdecode(file)) and not self.away:
            return file
        return os.fsencode(place) if isinstance(file, bytes) else place

    def read_whole_at(self, file: Any) -> Any:
        """`read_at`, for code of another language that looks into folders itself: `file` may be
        one, or a pattern of names."""
        own = self.virtual(file) if self.changed else None
        if own is None:
            return file
        folder = own
        while has_magic(folder):
            folder = os.path.dirname(folder)
        if (folder == own and not self.is_folder(own)) or self.at(folder) == folder:
            return self.read_at(file)
        return self.brought_whole(folder) + own[len(folder) :]

    def exists(self, path: str) -> bool:
        """Whether the cell finds something at `path`."""
        return _exists(self.at(path))

    def is_folder(self, path: str) -> bool:
        """Whether it finds a folder there, and not a link to one."""
        place = self.at(path)
        return _exists(place) and stat.S_ISDIR(lstat(place).st_mode)

    def hide(self, path: str) -> None:
        """From here on there is only at `path` what the scratch folder holds."""
        self._hidden.add(path)
        self._without_links.clear()

    def take(self, path: str, inode: int, copy: Path) -> None:
        """Let `copy` lie at `path`, if that is the real file with the number `inode`."""
        if not self._is_outside(path) and lstat(path).st_ino == inode:
            self.brought(os.path.dirname(path))
            rename(copy, self._place(path))

    def brought(self, path: str, whole: bool = True) -> str:
        """Where `path` is written: at a copy of what is there, with the content if `whole`.

        Where there is no folder for it, there is none either.
        """
        self.changed = True
        place = self._place(path)
        with self._lock:
            if _exists(place):
                return place
            above = self.brought(os.path.dirname(path))
            self._without_links.clear()
            if _exists(above) and _exists(path) and not self._hides(path):
                self._copy_up(path, place, whole)
        return place

    def brought_whole(self, path: str) -> str:
        """`brought`, with all that is below."""
        place = self.brought(path)
        for entry in self.entries(path) if self.is_folder(path) else ():
            self.brought_whole(os.path.join(path, entry.name))
        return place

    def entries(self, path: str) -> list[os.DirEntry[str]]:
        """What is in the folder `path`; raises as os.scandir does."""
        here = self.at(path)
        found = {entry.name: entry for entry in scandir(here)}
        if here != path and not self._hides(path) and _is_real_folder(path):
            for entry in scandir(path):
                if entry.path not in self._hidden:
                    found.setdefault(entry.name, entry)
        return list(found.values())

    def fits(self, path: str) -> bool:
        """Whether it is not a real file, or one that can be copied whole."""
        return self.at(path) != path or not _exists(path) or lstat(path).st_size <= self._room

    def copy(self, source: str, target: BinaryIO) -> None:
        """The content of a file; of a real one that there is no room for, the start and a hole."""
        size = status_of(source).st_size
        real = not source.startswith(self._scratch)
        with _open_real(source) as file:
            if real and size > self._room:
                target.write(file.read(_START))
                with suppress(OSError):  # the process may have a limit
                    target.truncate(size)
            else:
                self._room -= size * real
                shutil.copyfileobj(file, target, 1 << 20)

    def _copy_up(self, path: str, place: str, whole: bool) -> None:
        status = lstat(path)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode):
            symlink(readlink(path), place)
        elif stat.S_ISDIR(status.st_mode):
            mkdir(place, mode | stat.S_IRWXU)
        else:
            # not by chmod afterwards, which a filter may ignore
            with open_file(place, "wb", opener=partial(open_descriptor, mode=mode)) as copy:
                if whole and stat.S_ISREG(status.st_mode):
                    self.copy(path, copy)

    def _place(self, path: str) -> str:
        return self._root + (f"{os.sep}{path.replace(':', '', 1)}" if os.name == "nt" else path)

    def _is_outside(self, path: str) -> bool:
        in_memory = path.startswith("/dev/shm/")
        return path.startswith(self._scratch) or (path.startswith(_OUTSIDE) and not in_memory)

    def _hides(self, path: str) -> bool:
        while self._hidden and path not in self._hidden:
            below, path = path, os.path.dirname(path)
            if path == below:
                return False
        return bool(self._hidden)

    def _followed(self, path: str) -> str:
        """Without links, if the folder of `path` has none."""
        try:
            target = readlink(self.at(path))
        except OSError:
            return path
        return self._resolved(os.path.normpath(os.path.join(os.path.dirname(path), target)))

    def _resolved(self, path: str) -> str:
        """`path` without links, remembered: it is asked for folders."""
        if path not in self._without_links:
            self._without_links[path] = path  # ends a circle of links
            head, tail = os.path.split(path)
            above = self._resolved(head) if tail else head
            self._without_links[path] = self._followed(os.path.join(above, tail))
        return self._without_links[path]


def _open_real(path: str) -> BinaryIO:
    """Not what is in its place."""
    return open_file(path, "rb", opener=open_descriptor)


def _exists(place: str) -> bool:
    try:
        lstat(place)
    except (OSError, ValueError):
        return False
    return True


def _is_real_folder(path: str) -> bool:
    return _exists(path) and stat.S_ISDIR(status_of(path).st_mode)


def seeming_size(place: Any) -> int | None:
    """Of a file that stands for an object."""
    with suppress(OSError, TypeError):
        with _open_real(os.fspath(place)) as file:
            head = file.read(HEAD)
        if head.startswith(MARK):
            return int(head.split()[-1])
    return None
