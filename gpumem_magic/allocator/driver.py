"""The device below the allocator: how much memory it has and who holds it. No policy."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass

from gpumem_magic.units import MIB

PAGE = 2 * MIB
"""The granularity of device memory: what cudaMalloc and cuMemCreate round up to."""

TOP = 0x7F00_0000_0000  # below it lie CUDA's addresses on Linux


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds device memory, in bytes; pid None is this process."""

    pid: int | None
    used: int


class SimulatedDriver:
    """A device of which a CUDA context and other processes hold some. Sizes are in bytes; `total`
    and `free` are what cudaMemGetInfo calls so.

    `others` may be changed at any time, as other processes come and go. Addresses are handed out
    downwards, as Linux places mappings: at the end of the highest gap that is large enough. In
    public traces of real GPUs 859 of 1,079 successive segments of one size lie below each other on
    four machines, 3 of 64 on two others; freed gaps are filled from the highest, at their ends.
    top: what all of them are to lie below.
    """

    def __init__(self, total: int, context: int = 0, others: int = 0, top: int = TOP) -> None:
        self.total = total
        self.context = context
        self.others = others
        self.used = 0
        self._gaps: list[tuple[int, int]] = [(0, top)]  # start and end, the lowest first

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return max(0, self.total - self.context - self.others - self.used)

    def processes(self) -> tuple[Process, ...]:
        """Who holds memory, as NVML lists it: this process; `others` stands for none with an id."""
        return (Process(None, self.context + self.used),)

    def malloc(self, size: int) -> int | None:
        """The address of `size` new bytes, in whole pages; None where they do not fit."""
        if not self._charge(size):
            return None
        return self.reserve(size)

    def release(self, address: int, size: int) -> None:
        """Take back what malloc handed out, memory and address."""
        self.used -= _pages(size)
        self.unreserve(address, size)

    def reserve(self, size: int) -> int:
        """The start of an address range with no memory behind it: the end of the highest gap that
        has room."""
        size = _pages(size)
        for i in range(len(self._gaps) - 1, -1, -1):
            start, end = self._gaps[i]
            if end - start >= size:
                self._gaps[i : i + 1] = [(start, end - size)] if end - start > size else []
                return end - size
        raise MemoryError(f"no address range of {size} bytes is left")

    def unreserve(self, address: int, size: int) -> None:
        """Take back an address range in which nothing is mapped: it joins the gaps beside it."""
        start, end = address, address + _pages(size)
        i = bisect(self._gaps, (start,))
        j = i
        if i and self._gaps[i - 1][1] == start:
            i -= 1
            start = self._gaps[i][0]
        if j < len(self._gaps) and self._gaps[j][0] == end:
            end = self._gaps[j][1]
            j += 1
        self._gaps[i:j] = [(start, end)]

    def map(self, address: int, size: int) -> bool:
        """Put pages behind part of a reserved range; False where there are not enough."""
        return self._charge(size)

    def unmap(self, address: int, size: int) -> None:
        """Take the pages behind part of a reserved range back."""
        self.used -= _pages(size)

    def _charge(self, size: int) -> bool:
        size = _pages(size)
        if size > self.free:
            return False
        self.used += size
        return True


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
