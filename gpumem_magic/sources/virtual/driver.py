"""The device below the allocator: how much memory it has and who holds it. No policy."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import Protocol

from gpumem_magic.units import MIB

PAGE = 2 * MIB
"""The granularity of device memory: what cudaMalloc and cuMemCreate round up to."""

_FIRST_ADDRESS = 0x7F00_0000_0000  # where CUDA's addresses lie on Linux


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds device memory, in bytes; pid None is this process."""

    pid: int | None
    used: int


class Driver(Protocol):
    """What the caching allocator asks of a device. Sizes in bytes."""

    @property
    def total(self) -> int:
        """What cudaMemGetInfo calls total."""

    @property
    def free(self) -> int:
        """What cudaMemGetInfo calls free."""

    def processes(self) -> tuple[Process, ...]:
        """Who holds memory, as NVML lists it."""

    def malloc(self, size: int) -> int | None:
        """The address of `size` new bytes; None where they do not fit."""

    def release(self, address: int, size: int) -> None:
        """Give back what malloc handed out."""

    def reserve(self, size: int) -> int:
        """The start of an address range of `size` bytes, with no memory behind it."""

    def unreserve(self, address: int, size: int) -> None:
        """Give back an address range in which nothing is mapped."""

    def map(self, address: int, size: int) -> bool:
        """Put memory behind part of a reserved range; False where it does not fit."""

    def unmap(self, address: int, size: int) -> None:
        """Take away the memory behind part of a reserved range."""


class SimulatedDriver:
    """A device of `total` bytes, of which a CUDA context and other processes hold some.

    `others` may be changed at any time, as other processes come and go. Freed addresses are handed
    out again, the lowest first, to requests of the same size. The methods are those of Driver.
    """

    def __init__(self, total: int, context: int = 0, others: int = 0) -> None:
        self.total = total
        self.context = context
        self.others = others
        self.used = 0
        self._next = _FIRST_ADDRESS
        self._released: defaultdict[int, list[int]] = defaultdict(list)

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return max(0, self.total - self.context - self.others - self.used)

    def processes(self) -> tuple[Process, ...]:
        """This process alone: what `others` stands for has no process id."""
        return (Process(None, self.context + self.used),)

    def malloc(self, size: int) -> int | None:
        """Hand out whole pages, if there are enough."""
        if not self._charge(size):
            return None
        return self.reserve(size)

    def release(self, address: int, size: int) -> None:
        """Take back memory and address."""
        self.used -= _pages(size)
        self.unreserve(address, size)

    def reserve(self, size: int) -> int:
        """Hand out an address range that was used before, or the next one."""
        if released := self._released[size]:
            return heapq.heappop(released)
        address = self._next
        self._next += _pages(size)
        return address

    def unreserve(self, address: int, size: int) -> None:
        """Keep the range for the next request of this size."""
        heapq.heappush(self._released[size], address)

    def map(self, address: int, size: int) -> bool:
        """Take pages for part of a range, if there are enough."""
        return self._charge(size)

    def unmap(self, address: int, size: int) -> None:
        """Take the pages back."""
        self.used -= _pages(size)

    def _charge(self, size: int) -> bool:
        size = _pages(size)
        if size > self.free:
            return False
        self.used += size
        return True


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
