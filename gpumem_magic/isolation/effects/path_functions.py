"""os' and shutil's functions that take paths, for a cell whose files lie in part elsewhere."""

# The paths are the cell's, as text; what is called is what the cell would call.
# ruff: noqa: PTH100, PTH110, PTH113, PTH116, PTH118, PTH121, PTH123

from __future__ import annotations

import _io
import contextlib
import errno
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from os import lstat
from typing import Any

from gpumem_magic.isolation.effects.overlay import HEAD, Overlay, seeming_size
from gpumem_magic.isolation.telling import described

_FOLDERS = {"dir_fd": 0, "src_dir_fd": 0, "dst_dir_fd": 1}
"""Keywords that take the descriptor of a folder, and which path is below it."""
_ON_LINKS = "lstat readlink lchmod lchown lchflags mkdir mkfifo mknod remove unlink rmdir".split()
_OF_TWO = ("symlink", "link", "rename", "replace")

Run = Callable[..., Any]
"""Does what a function is to do: gets its name, the function, and what that was called with."""


class PathFunctions:
    """Their replacements. tell: called with what was written. Descriptors of files stay."""

    def __init__(self, overlay: Overlay, tell: Callable[[str], None]) -> None:
        self._overlay = overlay
        self._tell = tell
        self._attributes = _Attributes()

    def table(self) -> tuple[tuple[Any, str, Run], ...]:
        """Modules, names in them, and the replacements."""
        changing = "chown lchown truncate setxattr removexattr chflags lchflags"
        return (
            (_io, "open_code", self._reading),
            (os, "stat lstat access readlink getxattr listxattr statvfs", self._reading),
            (os, changing, partial(self._acting, self._change)),
            (os, "chmod lchmod", partial(self._setting, self._attributes.set_mode)),
            (os, "utime", partial(self._setting, self._attributes.set_times)),
            (os, "mkdir mkfifo mknod", partial(self._acting, self._create)),
            (os, "remove unlink", partial(self._acting, self._unlink)),
            (os, "rmdir", partial(self._acting, self._remove)),
            (os, " ".join(_OF_TWO), self._joining),
            (os, "listdir scandir", self._listing),
            (os, "chdir", self._entering),
            (os, "getcwd getcwdb", self._showing),
            (shutil, "copyfile", self._copying),
            (shutil, "rmtree", self._removing_tree),
        )

    def in_folders(self, run: Run, name: str, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`run`, for paths below folders that are open: by the names of these."""
        if not kwargs.keys() & _FOLDERS:
            return run(name, original, *args, **kwargs)
        if "path" in kwargs:
            args = (kwargs.pop("path"), *args)
        paths = list(args)
        for key in kwargs.keys() & _FOLDERS:
            place = 1 if name == "symlink" else _FOLDERS[key]
            folder = self._overlay.named(kwargs[key])
            if len(paths) <= place:
                raise TypeError("by name")
            if isinstance(folder, str):
                del kwargs[key]
                paths[place] = _joined(folder, paths[place])
        if paths == [*args]:
            return run(name, original, *args, **kwargs)
        with naming(*args[: 2 if name in _OF_TWO else 1]):
            return run(name, original, *paths, **kwargs)

    def _reading(self, name: str, original: Any, /, path: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._overlay.changed:
            return original(path, *args, **kwargs)
        with naming(path):
            place = self._overlay.read_at(path, name not in _ON_LINKS and _follows(kwargs))
            found = original(place, *args, **kwargs)
        return self._attributes.seen(found, place) if name in ("stat", "lstat") else found

    def _acting(
        self,
        act: Callable[[str, Callable[[str], Any]], Any],
        name: str,
        original: Any,
        /,
        path: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Functions that change one path; act: gets it, and what does it to a copy."""

        def run(place: Any) -> Any:
            return original(place, *args, **kwargs)

        own = self._overlay.virtual(path, name not in _ON_LINKS and _follows(kwargs))
        if own is None:
            return run(path)
        with naming(path):
            result = act(own, run)
        self._tell(described(f"os.{name}", (path,)))
        return result

    def _change(self, own: str, run: Callable[[str], Any]) -> Any:
        if not self._overlay.exists(own):  # where a filter ignores the call, it would seem to do it
            raise error_of(errno.ENOENT)
        return run(self._overlay.brought(own))

    def _setting(
        self, note: Run, name: str, original: Any, /, path: Any, *args: Any, **to: Any
    ) -> Any:
        """Functions that set what a copy is seen to have: a filter ignores the call."""

        def change(own: str, run: Callable[[str], Any]) -> Any:
            result = self._change(own, run)
            note(self._overlay.brought(own), *args, **to)
            return result

        return self._acting(change, name, original, path, *args, **to)

    def _create(self, own: str, run: Callable[[str], Any]) -> Any:
        if self._overlay.exists(own):
            raise error_of(errno.EEXIST)
        return run(self._overlay.brought(own))

    def _unlink(self, own: str, run: Callable[[str], Any]) -> None:
        self._expect_no_folder(own)
        self._remove(own, run)

    def _remove(self, own: str, run: Callable[[str], Any]) -> None:
        self._expect_empty(own)
        place = self._overlay.brought(own, whole=False)
        self._attributes.forget(place)
        run(place)
        self._overlay.hide(own)

    def _expect_no_folder(self, own: str) -> None:
        if self._overlay.is_folder(own):
            raise error_of(errno.EISDIR if sys.platform == "linux" else errno.EPERM)

    def _expect_empty(self, own: str) -> None:
        if self._overlay.is_folder(own) and self._overlay.entries(own):
            raise error_of(errno.ENOTEMPTY)

    def _joining(
        self, name: str, original: Any, /, src: Any, dst: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Functions of two paths."""
        here = None if name == "symlink" else self._overlay.virtual(src, follow=False)
        there = self._overlay.virtual(dst, follow=False)
        moves = name in ("rename", "replace")
        with naming(src, dst):
            source = src if here is None else self._overlay.brought_whole(here)
            target = dst if there is None else self._target(here, there, moves)
            if moves:
                self._attributes.forget(target)
            original(source, target, *args, **kwargs)
        for own in filter(None, (here, there)):
            self._tell(described(f"os.{name}", (src, dst)))
            if moves:
                self._overlay.hide(own)

    def _target(self, here: str | None, there: str, moves: bool) -> str:
        if here is not None and not self._overlay.exists(here):
            raise error_of(errno.ENOENT)
        if not moves:
            return str(self._create(there, str))
        is_folder = here is not None and self._overlay.is_folder(here)
        if here != there:
            (self._expect_empty if is_folder else self._expect_no_folder)(there)
        return self._overlay.brought(there, whole=is_folder)

    def _listing(self, name: str, original: Any, /, path: Any = None) -> Any:
        path = self._overlay.named(path) if self._overlay.changed else path
        own = self._overlay.virtual(path or ".") if self._overlay.changed else None
        if own is None:
            return original(path)
        with naming(path):
            if self._overlay.at(own) == own:
                return original(self._overlay.read_at(path or "."))
            entries = [_Entry(e, os.fspath(path or ".")) for e in self._overlay.entries(own)]
        return _Scan(entries) if name == "scandir" else [entry.name for entry in entries]

    def _entering(self, _: str, original: Any, /, path: Any) -> None:
        path = self._overlay.named(path)
        place = self._overlay.read_at(path)
        with naming(path):
            original(place)
        self._overlay.away = place is not path

    def _showing(self, _: str, original: Any, /) -> Any:
        path = original()
        shown = self._overlay.shown(os.fsdecode(path))
        return os.fsencode(shown) if isinstance(path, bytes) else shown

    def _copying(
        self, _: str, original: Any, /, src: Any, dst: Any, *, follow_symlinks: bool = True
    ) -> Any:
        same = isinstance(src, int) or (
            os.path.exists(dst) and os.path.exists(src) and os.path.samefile(src, dst)
        )
        if same or not follow_symlinks or not os.path.isfile(src):
            return original(src, dst, follow_symlinks=follow_symlinks)
        with open(dst, "wb") as copy:
            self._overlay.copy(os.path.abspath(os.fsdecode(self._overlay.read_at(src))), copy)
        return dst

    def _removing_tree(
        self, _: str, original: Any, /, path: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Once the real tree is hidden, what is left to remove is in the scratch folder."""
        own = self._overlay.virtual(path, follow=False)
        if own is not None and self._overlay.is_folder(own):
            self._overlay.brought(own)
            self._overlay.hide(own)
        original(path, *args, **kwargs)


class _Attributes:
    """Modes and times that the cell has given to its files, by the numbers of these."""

    def __init__(self) -> None:
        self._modes: dict[tuple[int, int], int] = {}
        self._times: dict[tuple[int, int], tuple[int, int, int]] = {}

    def set_mode(self, place: str, mode: int, **_: Any) -> None:
        """As os.chmod."""
        self._modes[_number(lstat(place))] = stat.S_IMODE(mode)

    def set_times(self, place: str, times: Any = None, ns: Any = None, **_: Any) -> None:
        """As os.utime. They hold until something is written."""
        if ns is None:
            ns = [time.time_ns()] * 2 if times is None else [int(each * 1e9) for each in times]
        status = lstat(place)
        self._times[_number(status)] = status.st_mtime_ns, *ns

    def forget(self, place: Any) -> None:
        """What is at `place` goes: another file may get its number."""
        with contextlib.suppress(OSError):
            number = _number(lstat(place))
            self._modes.pop(number, None)
            self._times.pop(number, None)

    def seen(self, status: os.stat_result, place: Any) -> os.stat_result:
        """`status` with what the cell has set, and the size that `place` seems to have."""
        new: dict[str, Any] = {}
        if (mode := self._modes.get(_number(status))) is not None:
            new["st_mode"] = stat.S_IFMT(status.st_mode) | mode
        then, *set_to = self._times.get(_number(status), (None,))
        if then == status.st_mtime_ns:
            for name, value in zip(("st_atime", "st_mtime"), set_to, strict=True):
                new |= {name: value / 1e9, f"{name}_ns": value}
        if status.st_size == HEAD and (size := seeming_size(place)) is not None:
            new["st_size"] = size
        return _status_with(status, new) if new else status


def _number(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _status_with(status: os.stat_result, new: dict[str, Any]) -> os.stat_result:
    names = [name for name in dir(status) if name.startswith("st_")]
    values = {name: getattr(status, name) for name in names} | new
    first = "st_mode st_ino st_dev st_nlink st_uid st_gid st_size st_atime st_mtime st_ctime"
    return os.stat_result([int(values[name]) for name in first.split()], values)


class _Entry(os.PathLike[Any]):
    """An entry of a folder, under the name that the cell has for the folder."""

    def __init__(self, entry: os.DirEntry[str], folder: Any) -> None:
        self._entry = entry
        self.name: Any = os.fsencode(entry.name) if isinstance(folder, bytes) else entry.name
        self.path = os.path.join(folder, self.name)

    def __fspath__(self) -> Any:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """As the cell sees it."""
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)


class _Scan(contextlib.ExitStack):
    """What os.scandir returns."""

    def __init__(self, entries: list[_Entry]) -> None:
        super().__init__()
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)


def _joined(folder: str, path: Any) -> Any:
    name = os.fspath(path)
    return os.path.join(os.fsencode(folder) if isinstance(name, bytes) else folder, name)


def _follows(kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("follow_symlinks", True))


def error_of(number: int) -> OSError:
    """As the system raises it."""
    return OSError(number, os.strerror(number))


@contextlib.contextmanager
def naming(*given: Any) -> Iterator[None]:
    """Errors name the paths as the cell does."""
    try:
        yield
    except OSError as error:
        error.filename, *second = map(os.fspath, given)
        if second:
            error.filename2 = second[0]
        raise
