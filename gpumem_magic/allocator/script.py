"""What a cell asks of the allocator, written down in a dry run, so that it can be asked again with
other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.allocator.caching import AllocationFailed, CachingAllocator, clone


class Request(IntEnum):
    """What the allocator is asked for."""

    MALLOC = 0
    FREE = 1
    RECORD_STREAM = 2
    CALL = 3  # anything else, which names no block


_KINDS = {
    "malloc": Request.MALLOC,
    "free": Request.FREE,
    "record_stream": Request.RECORD_STREAM,
    **dict.fromkeys(
        ("empty_cache", "synchronize", "set_memory_fraction", "keep", "let_go"), Request.CALL
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """Requests in order, as columns of equal length.

    kind: int8, a Request. number: int64; bytes for MALLOC; for FREE and RECORD_STREAM which block,
    by its place among the MALLOCs, or minus the address of one that was there at the start; for
    CALL the place in `calls`. stream: int64. refused: the rows of MALLOCs that found no room.
    """

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
        """Whether these requests are the first ones of `other`, but for the bytes; both were made
        to allocators in the same state."""
        end = len(self)
        if end > len(other) or self.calls != other.calls[: len(self.calls)]:
            return False
        same = self.number == other.number[:end]
        same |= self.kind == Request.MALLOC
        return (
            bool(same.all())
            and np.array_equal(self.kind, other.kind[:end])
            and np.array_equal(self.stream, other.stream[:end])
        )

    def fits(self, start: CachingAllocator, sizes: NDArray[np.int64]) -> bool:
        """Whether all MALLOCs find room if they ask for `sizes` bytes of an allocator in the state
        of `start`, which stays as it is; retries are made."""
        number = self.number.copy()
        number[self.kind == Request.MALLOC] = sizes
        rows = zip(self.kind.tolist(), number.tolist(), self.stream.tolist(), strict=True)
        allocator = clone(start)
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
    """Writes down what an allocator is asked for from now on, in a process that ends with the dry
    run: the allocator's methods are not put back.

    start: a second one of the allocator, as it is at the beginning.
    """

    def __init__(self, allocator: CachingAllocator) -> None:
        self.start = clone(allocator)
        self._rows: list[tuple[int, int, int]] = []
        self._calls: list[tuple[str, tuple[Any, ...]]] = []
        self._refused: list[int] = []
        self._places: dict[int, int] = {}
        self._mallocs = 0
        self._busy = False  # with a request: what it calls in turn is its own business
        for name, kind in _KINDS.items():
            setattr(allocator, name, self._written(name, kind, getattr(allocator, name)))

    def script(self) -> Script:
        """What was written so far."""
        columns = np.array(self._rows, np.int64).reshape(-1, 3).T
        return Script(
            columns[0].astype(np.int8),
            columns[1].copy(),
            columns[2].copy(),
            tuple(self._calls),
            tuple(self._refused),
        )

    def _written(self, name: str, kind: Request, own: Callable[..., Any]) -> Callable[..., Any]:
        """`own`, which writes down what it is asked for."""

        def request(*arguments: Any) -> Any:
            # A tensor may die at any time: what is freed while another request is on counts.
            if self._busy and kind is Request.CALL:
                return own(*arguments)
            place, outer = len(self._rows), self._busy
            self._rows.append(self._row(name, kind, *arguments))
            self._busy = True
            try:
                result = own(*arguments)
            except AllocationFailed:
                self._refused.append(place)
                raise
            finally:
                self._busy = outer
                self._mallocs += kind is Request.MALLOC
            if kind is Request.MALLOC:
                self._places[result] = self._mallocs - 1
            return result

        return request

    def _row(self, name: str, kind: Request, *arguments: Any) -> tuple[int, int, int]:
        if kind is Request.CALL:
            self._calls.append((name, arguments))
            return kind, len(self._calls) - 1, 0
        number, stream = (*arguments, 0)[:2]
        if kind is not Request.MALLOC:
            number = self._places.get(number, -number)
        return kind, number, stream
