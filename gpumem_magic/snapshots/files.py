"""Reads a snapshot's file as plain values, whoever wrote it."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import secrets
from pathlib import Path
from typing import IO, Any, NoReturn

from gpumem_magic.snapshots.checking import Trace

SNAPSHOTS = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")

_RATIO = 40
"""How many times longer than its .gz a snapshot is at most; 15 times is usual."""

_MOST_DEVICES = 128  # C10_COMPILE_TIME_MAX_GPUS of c10/cuda/CUDAMacros.h

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

    def __init__(self, stream: IO[bytes], token: int) -> None:
        super().__init__(stream)
        self._token = token
        self._traces = 0

    def persistent_load(self, pid: object) -> Trace:
        """Give a device's trace where `_Marked` has asked for one; refuse all else."""
        if pid == self._token:
            self._traces += 1
            if self._traces > _MOST_DEVICES:
                raise ValueError("it has more device_traces than PyTorch knows devices")
            return Trace(f"device_traces[{self._traces - 1}]")
        raise ValueError("it points outside of itself, which no memory snapshot does: not loaded")


class _Bounded(io.RawIOBase):
    """A stream that ends with an error after so many bytes."""

    def __init__(self, stream: gzip.GzipFile, most: int) -> None:
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


class _Marked(io.RawIOBase):
    """A pickle's bytes in which the first lists of `device_traces` are asked for by a token, so
    that what is added to them goes into a Trace.

    Knows the frames of protocols 4 and 5, as torch writes them; anything else passes as it is.
    """

    _LISTS = re.compile(rb"device_traces\x94\]\x94\(?((?:\]\x94)+)")
    _FRAME = b"\x95"
    _LONGEST = 1 << 24  # picklers end a frame after 64 KiB

    def __init__(self, stream: IO[bytes], token: int) -> None:
        self._stream = stream
        self._mark = b"J" + token.to_bytes(4, "little") + b"Q\x94"  # BININT, BINPERSID, MEMOIZE
        self._ready = memoryview(stream.read(2))
        self._searching = bytes(self._ready) in (b"\x80\x04", b"\x80\x05")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._ready:
            data = self._next_frame() if self._searching else self._stream.read(1 << 20)
            self._ready = memoryview(data)
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _next_frame(self) -> bytes:
        """The next frame, with its marks and its new length if the lists begin in it."""
        head = self._stream.read(9)
        length = int.from_bytes(head[1:], "little")
        if head[:1] != self._FRAME or length > self._LONGEST:
            self._searching = False
            return head
        body = self._stream.read(length)
        if found := self._LISTS.search(body):
            self._searching = False
            lists = self._mark * (len(found[1]) // 2)
            body = body[: found.start(1)] + lists + body[found.end(1) :]
        return self._FRAME + len(body).to_bytes(8, "little") + body


def unpacked_size(path: Path) -> int:
    """The bytes of a pickle; for a .gz those that it says to unpack to, as far as that is likely.

    The last four bytes of a .gz tell them (RFC 1952, ISIZE), and anybody can write those.
    """
    packed = path.stat().st_size
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return packed
        file.seek(-min(4, packed), io.SEEK_END)
        told = int.from_bytes(file.read(4), "little")
    return min(told, _RATIO * packed)


def read_plain_values(path: Path) -> Any:
    """What the pickle holds. Raises ValueError that says what is wrong, or OSError."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            token = secrets.randbelow(1 << 31)  # nobody who wrote the file can know it
            stream = io.BufferedReader(_Marked(_unpacked(file) if packed else file, token))
            return _PlainValues(stream, token).load()
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
    return io.BufferedReader(_Bounded(gzip.GzipFile(fileobj=file), MOST_UNPACKED))
