"""What the cell does to files through Python is done to copies in the scratch folder."""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import io
import operator
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpumem_magic.isolation.effects.overlay import Overlay
from gpumem_magic.isolation.effects.path_functions import PathFunctions, Run, error_of, naming
from gpumem_magic.isolation.telling import Effects, described
from gpumem_magic.isolation.walls.descriptors import CopiedFile

_NEW = os.O_CREAT
_FLAGS = {"w": _NEW | os.O_TRUNC, "x": _NEW | os.O_EXCL, "a": _NEW | os.O_APPEND, "+": os.O_RDWR}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_AS_ONE = (
    *((os, name) for name in "makedirs removedirs renames".split()),
    *((shutil, name) for name in "copy copy2 copyfile copytree move rmtree chown".split()),
    *((shutil, name) for name in "copymode copystat make_archive unpack_archive".split()),
)


class ScratchFiles:
    """The cell finds again what it wrote, and the real files where it wrote nothing.

    scratch: a folder of this process alone. Descriptors are left alone, and so are devices.
    """

    def __init__(self, effects: Effects, scratch: Path) -> None:
        self._effects = effects
        self._overlay = Overlay(scratch)
        self._writes = 0
        self._call = threading.local()  # text: the call of `open` under way, as users write it

    def take_over(self, copied: Iterable[CopiedFile]) -> None:
        """Files that were open for writing: their paths lead where their descriptors do."""
        for each in copied:
            with contextlib.suppress(OSError):
                self._overlay.take(each.name, each.inode, each.copy)

    def path(self, file: Any) -> Any:
        """Where `file` is read: itself, unless there is something else in its place."""
        return self._overlay.read_at(file)

    def path_of_whole(self, file: Any) -> Any:
        """`path`, for code of another language: `file` may be a folder, a pattern, or a list."""
        if isinstance(file, list):
            return [*map(self._overlay.read_whole_at, file)]
        return self._overlay.read_whole_at(file)

    def written(self, file: Any, whole: bool) -> Any:
        """Where `file` is written; with what it holds, if `whole`."""
        own = self._overlay.virtual(file)
        if own is None:
            return file
        return self._overlay.brought_whole(own) if whole else self._overlay.brought(own, whole)

    def fits(self, file: Any) -> bool:
        """Whether there is room for a copy of `file`."""
        own = self._overlay.virtual(file)
        return own is None or self._overlay.fits(own)

    def tell(self, text: str) -> None:
        """Name something that was written."""
        self._writes += 1
        self._effects.redirected(text)

    def tell_if(self, text: str, happened: Callable[[], bool]) -> None:
        """Name something, should `happened` say at the end that it was written."""
        self._effects.redirected(text, happened)

    def as_one(self, known_as: str, original: Any) -> Any:
        """`original`, told as a whole if it writes anything."""

        @functools.wraps(original)
        def done(*args: Any, **kwargs: Any) -> Any:
            before = self._writes
            try:
                with self._effects.silence():
                    return original(*args, **kwargs)
            finally:
                if self._writes != before:
                    self._effects.redirected(described(known_as, args, kwargs))

        return done

    def install(self) -> None:
        """Replace what Python knows of files, at its lowest level."""
        opening: tuple[tuple[Any, str, Run], ...] = (
            (builtins, "open", self._opening),
            (os, "open", self._opening_descriptor),
        )
        self._effects.wrap(io.FileIO, "__init__", self._making)
        paths = PathFunctions(self._overlay, self.tell)
        for owner, names, run in (*opening, *paths.table()):
            for name in names.split():
                self._effects.wrap(owner, name, functools.partial(paths.in_folders, run, name))
        for owner, name in _AS_ONE:
            known_as = f"{owner.__name__}.{name}"
            self._effects.replace(owner, name, functools.partial(self.as_one, known_as))
        for group in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            functions = [*group]  # under what they are looked up by has changed with them
            group.clear()
            group.update(functions)
        tempfile.tempdir = self._overlay.temporary

    def _prepared(self, file: Any, flags: int) -> Any:
        """Where `file` is opened."""
        if not flags & _WRITING:
            return self.path(file)
        own = self._overlay.virtual(file)
        if own is None:
            return file
        if flags & os.O_EXCL and self._overlay.exists(own) and not self._overlay.is_folder(own):
            raise error_of(errno.EEXIST)
        return self._overlay.brought(own, whole=not flags & os.O_TRUNC)

    def _opening(
        self, _: str, original: Any, /, file: Any, mode: Any = "r", *args: Any, **kwargs: Any
    ) -> Any:
        """It makes an `io.FileIO`, where the file is found: here is only known what was called."""
        before = getattr(self._call, "text", "")
        self._call.text = described("open", (file, mode))
        try:
            return original(file, mode, *args, **kwargs)
        finally:
            self._call.text = before

    def _making(
        self,
        original: Any,
        /,
        raw: Any,
        file: Any,
        mode: str = "r",
        closefd: bool = True,
        opener: Any = None,
    ) -> None:
        """Of `io.FileIO`, by itself or by `open`."""
        flags = _flags_of(mode)
        if isinstance(file, int) or not (flags or opener or self._overlay.changed):
            original(raw, file, mode, closefd)
            return
        if opener is not None:  # called here: it is `os.open` that knows where
            alone = os.O_WRONLY if flags and "+" not in mode else 0
            original(raw, opener(os.fspath(file), flags | alone), mode)
            raw.name = os.fspath(file)
            return
        with naming(file):
            place = self._prepared(file, flags)
            original(raw, place, mode, closefd)
        if place != os.fsdecode(file):
            raw.name = os.fspath(file)
            if flags:
                call = getattr(self._call, "text", "")
                self.tell(call or described("io.FileIO", (file, mode)))

    def _opening_descriptor(
        self, _: str, original: Any, /, path: Any, flags: Any, *args: Any, **kwargs: Any
    ) -> Any:
        flags = operator.index(flags)
        with naming(path):
            place = self._prepared(path, flags)
            descriptor = original(place, flags, *args, **kwargs)
        if place is not path and flags & _WRITING:
            self.tell(described("os.open", (path, flags)))
        return descriptor


def _flags_of(mode: Any) -> int:
    return sum(flag for letter, flag in _FLAGS.items() if letter in str(mode))
