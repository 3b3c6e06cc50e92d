"""What code does to files and folders, done to WrittenFiles instead."""

from __future__ import annotations

import builtins
import functools
import io
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import time
from typing import Any

from gpumem_magic.sources.virtual.dryrun.effects import Effects, described
from gpumem_magic.sources.virtual.dryrun.written_files import WrittenFiles

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TEMPORARY = getattr(os, "O_TMPFILE", 0) & ~getattr(os, "O_DIRECTORY", 0)
_DEVICES = ("/dev/", "/proc/self/fd/")
_NOT_DONE = (
    "chmod lchmod chown lchown chflags lchflags link symlink truncate utime setxattr removexattr "
    "mkfifo mknod chroot"
).split()


def path_of(file: Any) -> str | None:
    """Absolute path of what users name a file by; None for a descriptor, or a device."""
    if not isinstance(file, (str, bytes, os.PathLike)):
        return None
    path = os.path.abspath(os.fsdecode(file))  # noqa: PTH100 - links are not followed
    return None if path.startswith(_DEVICES) or path == os.devnull else path


class FileEffects:
    """Replaces `open` and its kin, os' and shutil's functions that change files."""

    def __init__(self, effects: Effects, files: WrittenFiles) -> None:
        self._effects = effects
        self._files = files
        self._descriptors: dict[int, str] = {}

    def install(self) -> None:
        """Replace them all."""
        effects = self._effects
        effects.replace(builtins, "open", self._opening)
        effects.patches.set(io, "open", builtins.open)
        self._install_keepers()
        effects.replace(os, "open", self._opening_descriptor)
        for name, make in (
            *(("remove", self._removing), ("unlink", self._removing), ("rmdir", self._removing)),
            *(("removedirs", self._removing), ("mkdir", self._making), ("stat", self._stating)),
            *(("makedirs", self._making), ("lstat", self._stating), ("listdir", self._listing)),
            *(("rename", self._moving), ("replace", self._moving), ("renames", self._moving)),
            ("access", self._accessing),
        ):
            effects.replace(os, name, functools.partial(make, name))
        for name in ("fsync", "fdatasync"):
            effects.replace(os, name, self._writing_out)
        for name in _NOT_DONE:
            effects.skip(os, name, f"os.{name}")
        self._install_shutil()
        self._install_temporary_files()
        self._install_accessor()

    def _install_keepers(self) -> None:
        """Modules that have kept `open` from the time of their import."""
        patches = self._effects.patches
        for module, name in (
            *(("bz2", "_builtin_open"), ("tarfile", "bltn_open")),
            ("IPython.core.interactiveshell", "io_open"),  # what `open` is in a notebook calls it
        ):
            if module in sys.modules:
                patches.set(sys.modules[module], name, builtins.open)
        source: Any = sys.modules.get("numpy.lib._datasource")
        if source is not None:
            openers = source._file_openers
            openers._load()
            kept = {**openers._file_openers, None: builtins.open}
            patches.set(openers, "_file_openers", kept)

    def _install_shutil(self) -> None:
        for name in ("copy", "copy2", "copyfile", "copytree", "move"):
            self._effects.put(shutil, name, self._copying(name))
        self._effects.put(shutil, "rmtree", self._removing_tree)
        for name in ("copymode", "copystat", "chown", "unpack_archive"):
            self._effects.skip(shutil, name, f"shutil.{name}")
        archive = shutil.make_archive

        def made(base_name: Any, format: str, *args: Any, **kwargs: Any) -> str:
            endings = {"gztar": "tar.gz", "bztar": "tar.bz2", "xztar": "tar.xz"}
            return f"{os.fspath(base_name)}.{endings.get(format, format)}"

        self._effects.skip(shutil, archive.__name__, "shutil.make_archive", made)

    def _install_temporary_files(self) -> None:
        """They are deleted by the function that os had when tempfile was imported."""
        closer = getattr(tempfile, "_TemporaryFileCloser", None)
        for name in ("close", "cleanup"):
            parameters = getattr(getattr(closer, name, None), "__code__", None)
            if parameters is not None and "unlink" in parameters.co_varnames:
                self._effects.replace(closer, name, _unlinking)

    def _install_accessor(self) -> None:
        """Before Python 3.11 pathlib held on to os' functions."""
        accessor = getattr(pathlib, "_NormalAccessor", None)
        for name in [n for n in vars(accessor) if hasattr(os, n)] if accessor else []:
            self._effects.patches.set(accessor, name, staticmethod(getattr(os, name)))
        if accessor is not None:
            self._effects.patches.set(accessor, "open", staticmethod(io.open))

    def _opening(self, original: Any) -> Any:
        def open(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            path = path_of(file)
            if isinstance(file, int) and file in self._descriptors:
                path = self._descriptors.pop(file)
                os.close(file)
            writes = any(letter in mode for letter in "wax+")
            if path is None or not (writes or path in self._files or path in self._files.removed):
                return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
            if not writes and path in self._files.removed:
                raise FileNotFoundError(2, "No such file or directory", file)
            if opener is not None and not isinstance(file, int):
                descriptor = opener(file, os.O_RDWR | os.O_CREAT)
                path = self._descriptors.pop(descriptor, path)
                os.close(descriptor)
            if writes and not isinstance(file, int):
                self._effects.tell(described("open", (file, mode)))
            return self._files.open(path, mode, encoding, errors, newline)

        return open

    def _opening_descriptor(self, original: Any) -> Any:
        def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            place = path_of(path)
            if place is None or not flags & _WRITING:
                return int(original(path, flags, mode, dir_fd=dir_fd))
            if flags & os.O_EXCL and not flags & _TEMPORARY and self._files.exists(place):
                raise FileExistsError(17, "File exists", path)
            self._effects.tell(described("os.open", (path, flags)))
            descriptor = self._files.null.new()
            if flags & _TEMPORARY:
                place = f"{place}/{descriptor}"
            if not self._files.exists(place) or flags & os.O_TRUNC:
                self._files.touch(place)
            self._descriptors[descriptor] = place
            return descriptor

        return open

    def _writing_out(self, original: Any) -> Any:
        def fsync(file: Any) -> None:
            descriptor = file if isinstance(file, int) else file.fileno()
            if descriptor not in (self._files.null.descriptor, *self._descriptors):
                original(descriptor)

        return fsync

    def _removing(self, name: str, original: Any) -> Any:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            place = path_of(path)
            if place is not None and not self._files.exists(place):
                raise FileNotFoundError(2, "No such file or directory", path)
            self._effects.tell(described(f"os.{name}", (path,)))
            if place is not None:
                self._files.remove(place)

        return remove

    def _removing_tree(self, path: Any, *args: Any, **kwargs: Any) -> None:
        self._effects.tell(described("shutil.rmtree", (path,)))
        place = path_of(path)
        if place is not None:
            self._files.remove(place)

    def _making(self, name: str, original: Any) -> Any:
        def make(path: Any, mode: int = 0o777, exist_ok: bool = False, **kwargs: Any) -> None:
            place = path_of(path)
            if place is not None and self._files.exists(place):
                if not exist_ok or place in self._files:
                    raise FileExistsError(17, "File exists", path)
                return
            self._effects.tell(described(f"os.{name}", (path,)))
            while place is not None and not self._files.exists(place):
                self._files.folders.add(place)
                self._files.removed.discard(place)
                place = os.path.dirname(place) or None  # noqa: PTH120

        return make

    def _moving(self, name: str, original: Any) -> Any:
        def move(source: Any, target: Any, **kwargs: Any) -> None:
            self._effects.tell(described(f"os.{name}", (source, target)))
            self._move(path_of(source), path_of(target), source)

        return move

    def _move(self, here: str | None, there: str | None, named: Any) -> None:
        if here is None or there is None:
            return
        self._copy(here, there, named)
        self._files.remove(here)

    def _copy(self, here: str, there: str, named: Any) -> None:
        if not self._files.exists(here):
            raise FileNotFoundError(2, "No such file or directory", named)
        if here in self._files.folders or os.path.isdir(here):  # noqa: PTH112
            self._files.folders.add(there)
            for path in [p for p in self._files.contents if p.startswith(here + os.sep)]:
                self._files.copy(path, there + path[len(here) :])
        else:
            self._files.copy(here, there)

    def _copying(self, name: str) -> Any:
        def copy(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            self._effects.tell(described(f"shutil.{name}", (src, dst)))
            here, there = path_of(src), path_of(dst)
            if here is None or there is None:
                return dst
            if name not in ("copyfile", "copytree") and self._is_folder(there):
                dst = os.path.join(os.fspath(dst), os.path.basename(here))  # noqa: PTH118, PTH119
                there = path_of(dst) or there
            self._copy(here, there, src)
            if name == "move":
                self._files.remove(here)
            return dst

        return copy

    def _is_folder(self, path: str) -> bool:
        return path in self._files.folders or os.path.isdir(path)  # noqa: PTH112

    def _stating(self, name: str, original: Any) -> Any:
        def find(path: Any, *args: Any, **kwargs: Any) -> Any:
            place = path_of(path)
            if place is not None and place in self._files:
                return _status(stat.S_IFREG | 0o644, self._files.contents[place].size)
            if place is not None and place in self._files.folders:
                return _status(stat.S_IFDIR | 0o755, 4096)
            if place is not None and place in self._files.removed:
                raise FileNotFoundError(2, "No such file or directory", path)
            return original(path, *args, **kwargs)

        return find

    def _accessing(self, name: str, original: Any) -> Any:
        def access(path: Any, *args: Any, **kwargs: Any) -> bool:
            place = path_of(path)
            if place is not None and (place in self._files or place in self._files.folders):
                return True
            return place not in self._files.removed and bool(original(path, *args, **kwargs))

        return access

    def _listing(self, name: str, original: Any) -> Any:
        def listdir(path: Any = ".") -> list[Any]:
            place = path_of(path)
            if place is None or isinstance(path, bytes):
                return list(original(path))
            new = place in self._files.folders
            names = {} if new else dict.fromkeys(original(path))
            for known in (*self._files.contents, *self._files.folders):
                folder, name = os.path.split(known)
                if folder == place:
                    names[name] = None
            gone = {os.path.basename(p) for p in self._files.removed}  # noqa: PTH119
            here = {os.path.join(place, name) for name in gone} & self._files.removed  # noqa: PTH118
            return [n for n in names if os.path.join(place, n) not in here]  # noqa: PTH118

        return listdir


def _unlinking(original: Any) -> Any:
    return lambda closer, *args: original(closer, *args, unlink=os.unlink)


def _status(mode: int, size: int) -> os.stat_result:
    now = int(time.time())
    return os.stat_result((mode, 0, 0, 1, os.getuid(), os.getgid(), size, now, now, now))
