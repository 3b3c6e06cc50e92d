"""What a cell asks of the allocator, written down in a dry run, so that it can be asked again with
other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.allocator.caching import AllocationFailed, CachingAllocator
from gpumem_magic.allocator.cloning import clone
from gpumem_magic.virtual.patches import Patches


class Request(IntEnum):
    """What the allocator is asked for."""

    MALLOC = 0
    FREE = 1
    RECORD_STREAM = 2
    CALL = 3  # anything else, which names no block


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """Requests in order, as columns of equal length, and the allocator that they were made to.

    kind: int8, a Request. number: int64; bytes for MALLOC; for FREE and RECORD_STREAM which block,
    by its place among the MALLOCs, or minus the address of one that was there at the start; for
    CALL the place in `calls`. stream: int64. refused: the rows of MALLOCs that found no room.
    start is left out on the way between processes that both know it.
    """

    start: CachingAllocator
    kind: NDArray[np.int8]
    number: NDArray[np.int64]
    stream: NDArray[np.int64]
    calls: tuple[tuple[str, tuple[Any, ...]], ...]
    refused: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.kind)

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each MALLOC."""
        sizes: NDArray[np.int64] = self.number[self.kind == Request.MALLOC]
        return sizes

    def until_refused(self) -> Script:
        """The requests up to the first that found no room."""
        if not self.refused:
            return self
        end = self.refused[0] + 1
        return replace(
            self, kind=self.kind[:end], number=self.number[:end], stream=self.stream[:end]
        )

    def begins_as(self, other: Script) -> bool:
        """Whether these requests are the first ones of `other`, but for the bytes."""
        end = len(self)
        if end > len(other) or self.calls != other.calls[: len(self.calls)]:
            return False
        alike = self.start.allocated == other.start.allocated
        same = self.number == other.number[:end]
        same |= self.kind == Request.MALLOC
        return (
            alike
            and bool(same.all())
            and np.array_equal(self.kind, other.kind[:end])
            and np.array_equal(self.stream, other.stream[:end])
        )

    def fits(self, sizes: NDArray[np.int64]) -> bool:
        """Whether all MALLOCs find room if they ask for `sizes` bytes; retries are made."""
        number = self.number.copy()
        number[self.kind == Request.MALLOC] = sizes
        rows = zip(self.kind.tolist(), number.tolist(), self.stream.tolist(), strict=True)
        allocator = clone(self.start)
        try:
            _play(allocator, rows, self.calls)
        except AllocationFailed:
            return False
        return True


def _play(
    allocator: CachingAllocator,
    rows: Iterator[tuple[int, int, int]],
    calls: Sequence[tuple[str, tuple[Any, ...]]],
) -> None:
    malloc, free = allocator.malloc, allocator.free
    addresses: list[int] = []
    for kind, number, stream in rows:
        if kind == Request.MALLOC:
            addresses.append(malloc(number, stream))
        elif kind == Request.CALL:
            name, arguments = calls[number]
            getattr(allocator, name)(*arguments)
        else:
            address = addresses[number] if number >= 0 else -number
            if kind == Request.FREE:
                free(address)
            else:
                allocator.record_stream(address, stream)


class Scribe:
    """Writes down what an allocator is asked for."""

    def __init__(self) -> None:
        self._script: Script | None = None

    @property
    def script(self) -> Script:
        """What was last written. Raises ValueError before that."""
        if self._script is None:
            raise ValueError("no request was written down yet")
        return self._script

    @contextmanager
    def writing(self, allocator: CachingAllocator) -> Iterator[None]:
        """Within, every request from outside is written down; what it asks itself for is not."""
        written = _Written(allocator)
        patches = Patches()
        try:
            for name, method in written.methods().items():
                patches.set(allocator, name, method)
            yield
        finally:
            patches.restore()
            self._script = written.script()


class _Written:
    """The requests so far, and methods that add to them and then do what they stand for."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        self._start = clone(allocator)
        self._rows: list[tuple[int, int, int]] = []
        self._calls: list[tuple[str, tuple[Any, ...]]] = []
        self._refused: list[int] = []
        self._places: dict[int, int] = {}
        self._mallocs = 0
        self._busy = False  # with a request: what it calls in turn is its own business

    def methods(self) -> dict[str, Callable[..., Any]]:
        """What takes the place of the allocator's methods."""
        others = ("empty_cache", "synchronize", "set_memory_fraction")
        return {
            "malloc": self._malloc(),
            "free": self._free(),
            "record_stream": self._record_stream(),
            **{name: self._call(name) for name in others},
        }

    def script(self) -> Script:
        """What was written."""
        columns = np.array(self._rows, np.int64).reshape(-1, 3).T
        return Script(
            self._start,
            columns[0].astype(np.int8),
            columns[1].copy(),
            columns[2].copy(),
            tuple(self._calls),
            tuple(self._refused),
        )

    def _malloc(self) -> Callable[[int, int], int]:
        own = self._allocator.malloc

        def malloc(requested: int, stream: int = 0) -> int:
            self._rows.append((Request.MALLOC, requested, stream))
            self._mallocs += 1
            self._busy = True
            try:
                address = own(requested, stream)
            except AllocationFailed:
                self._refused.append(len(self._rows) - 1)
                raise
            finally:
                self._busy = False
            self._places[address] = self._mallocs - 1
            return address

        return malloc

    def _free(self) -> Callable[[int], None]:
        own = self._allocator.free

        def free(address: int) -> None:
            self._rows.append((Request.FREE, self._places.pop(address, -address), 0))
            own(address)

        return free

    def _record_stream(self) -> Callable[[int, int], None]:
        own = self._allocator.record_stream

        def record_stream(address: int, stream: int) -> None:
            place = self._places.get(address, -address)
            self._rows.append((Request.RECORD_STREAM, place, stream))
            own(address, stream)

        return record_stream

    def _call(self, name: str) -> Callable[..., None]:
        own = getattr(self._allocator, name)

        def call(*arguments: Any) -> None:
            if self._busy:
                own(*arguments)
                return
            self._rows.append((Request.CALL, len(self._calls), 0))
            self._calls.append((name, arguments))
            self._busy = True
            try:
                own(*arguments)
            finally:
                self._busy = False

        return call
