"""The files that a dry run wrote: only in memory, where the running code finds them again."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

_ROOM = 64 << 20
"""Bytes that all files together may take of the host; of what is longer only the length is kept."""


class Content:
    """One file's bytes, or only how many they are."""

    def __init__(self, data: bytes | None = b"", size: int = 0) -> None:
        self.data = None if data is None else bytearray(data)
        self.size = size if data is None else len(data)


class WrittenFiles:
    """Files and folders by absolute path, as they would be after the code so far."""

    def __init__(self, really_open: Callable[..., Any]) -> None:
        self.contents: dict[str, Content] = {}
        self.folders: set[str] = set()
        self.removed: set[str] = set()
        self.objects: dict[str, Any] = {}
        """What was saved whole, by torch.save."""
        self.really_open = really_open
        self.null = _Null()

    def __contains__(self, path: str) -> bool:
        return path in self.contents

    def exists(self, path: str) -> bool:
        """Whether the code finds something at `path`, written by it or real."""
        if path in self.contents or path in self.folders:
            return True
        return path not in self.removed and os.path.lexists(path)

    def touch(self, path: str, content: Content | None = None) -> Content:
        """A new file at `path`, in place of any that is there."""
        self.removed.discard(path)
        self.objects.pop(path, None)
        self.contents[path] = content or Content()
        return self.contents[path]

    def remove(self, path: str) -> None:
        """The code does not find `path` any more, nor what is in it."""
        inside = os.path.join(path, "")  # noqa: PTH118 - as text: nothing is looked up
        for known in (self.contents, self.folders, self.objects):
            for other in [p for p in known if p == path or p.startswith(inside)]:
                known.pop(other) if isinstance(known, dict) else known.discard(other)
        self.removed.add(path)

    def copy(self, source: str, target: str) -> None:
        """`target` holds what `source` does, as far as there is room for it."""
        content = self.contents.get(source)
        if content is None:
            content = self.real(source)
        data = None if content.data is None else bytes(content.data)
        saved = self.objects.get(source)
        self.touch(target, Content(data, content.size))
        if saved is not None:
            self.objects[target] = saved

    def real(self, path: str) -> Content:
        """What a real file holds; empty where there is none."""
        if path in self.removed or not os.path.isfile(path):  # noqa: PTH113 - a path as text
            return Content()
        size = os.path.getsize(path)  # noqa: PTH202
        if size > self.room:
            return Content(None, size)
        with self.really_open(path, "rb") as file:
            return Content(file.read())

    @property
    def room(self) -> int:
        """Bytes that may still be kept."""
        return _ROOM - sum(len(c.data) for c in self.contents.values() if c.data is not None)

    def open(
        self, path: str, mode: str, encoding: Any = None, errors: Any = None, newline: Any = None
    ) -> Any:
        """A file object as `open` makes them; raises FileExistsError as that does for "x"."""
        if "x" in mode and self.exists(path):
            raise FileExistsError(17, "File exists", path)
        content = self.contents.get(path)
        if "w" in mode or "x" in mode:
            content = self.touch(path)
        elif content is None:
            if "+" in mode and "r" in mode and not self.exists(path):
                raise FileNotFoundError(2, "No such file or directory", path)
            content = self.touch(path, self.real(path))
        raw = _Memory(self, content, path, mode)
        if "a" in mode:
            raw.seek(0, io.SEEK_END)
        buffered: Any = io.BufferedRandom(raw)  # not a BufferedWriter: numpy would use its fileno
        if "b" in mode:
            return buffered
        text: Any = io.TextIOWrapper(buffered, encoding, errors, newline)
        text.mode = mode
        return text


class _Null:
    """A descriptor for code that asks a file for one: what goes there is gone."""

    def __init__(self) -> None:
        self._open, self._close = os.open, os.close
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """One that stays open until `close`."""
        if self._descriptor is None:
            self._descriptor = self.new()
        return self._descriptor

    def new(self) -> int:
        """One that the caller closes."""
        return self._open(os.devnull, os.O_RDWR)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            self._close(self._descriptor)
            self._descriptor = None


class _Memory(io.RawIOBase):
    """The raw file below what `WrittenFiles.open` returns."""

    def __init__(self, files: WrittenFiles, content: Content, name: str, mode: str) -> None:
        self._files = files
        self._content = content
        self._position = 0
        self.name = name
        self.mode = mode

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._files.null.descriptor

    def readinto(self, buffer: Any) -> int:
        if self._content.data is None:
            if self._position >= self._content.size:
                return 0
            raise NotImplementedError(
                f"{self.name!r} cannot be read back: a dry run does not keep what it writes to "
                f"files beyond {_ROOM >> 20} MiB"
            )
        chunk = self._content.data[self._position : self._position + len(buffer)]
        buffer[: len(chunk)] = chunk
        self._position += len(chunk)
        return len(chunk)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        end = self._position + len(view)
        content = self._content
        if content.data is not None and end - content.size > self._files.room:
            content.data = None
        if content.data is not None:
            if self._position > content.size:
                content.data.extend(bytes(self._position - content.size))
            content.data[self._position : end] = view
        content.size = max(content.size, end)
        self._position = end
        return len(view)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = (0, self._position, self._content.size)[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def truncate(self, size: int | None = None) -> int:
        size = self._position if size is None else size
        content = self._content
        if content.data is not None:
            del content.data[size:]
            content.data.extend(bytes(max(0, size - len(content.data))))
        content.size = size
        return size
