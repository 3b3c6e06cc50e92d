"""Reads a snapshot's file as plain values, whoever wrote it."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path
from typing import IO, Any, NoReturn

SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")

MOST_UNPACKED = 8 << 30
"""Bytes of a .gz once unpacked: more would be no snapshot but a bomb."""


class _PlainValues(pickle.Unpickler):
    """An unpickler that makes containers, numbers and strings, and can call nothing."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse: a snapshot names no class and no function."""
        raise ValueError(
            f"it names {module}.{name}, which no memory snapshot does: not loaded, because pickles "
            "can run code"
        )

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse, as `find_class`."""
        raise ValueError("it points outside of itself, which no memory snapshot does: not loaded")


class _Bounded(io.RawIOBase):
    """A stream that ends with an error after so many bytes."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self._stream = stream
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(min(len(buffer), 1 << 20))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("it unpacks to more than 8 GiB: not loaded")
        buffer[: len(data)] = data
        return len(data)


def read_plain_values(path: Path) -> Any:
    """What the pickle holds. Raises ValueError that says what is wrong, or OSError."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            return _PlainValues(_unpacked(file) if packed else file).load()
        except gzip.BadGzipFile as error:
            raise ValueError(f"not a whole .gz file: {error}") from None
        except EOFError:
            raise ValueError("it ends too soon: it was not written, or not copied, whole") from None
        except MemoryError:
            raise ValueError("it needs more memory than a snapshot of its size can") from None
        except (ValueError, OSError):
            raise
        except Exception as error:  # damaged pickles raise anything: KeyError, IndexError, ...
            raise ValueError(f"not a pickle, or a damaged one ({error})") from None


def _unpacked(file: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(_Bounded(gzip.GzipFile(fileobj=file), MOST_UNPACKED))  # type: ignore
