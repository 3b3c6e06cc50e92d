"""What an out-of-memory text says, as frozen values. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpumem_magic.values.answer import Answer
from gpumem_magic.values.findings import PART_OF_HELD

SIZES = ("asked", "total", "free", "process", "allocated", "cached", "allowed", "pools", "other")
"""The fields of a Reading that are sizes."""


class Origin(Enum):
    """Who ran out of memory."""

    ALLOCATOR = "PyTorch's allocator"
    LIBRARY = "a CUDA library"
    HOST = "the host"  # memory of the computer, not of the GPU
    NONE = "nobody"  # not a text of an out-of-memory error


class Outlook(Enum):
    """What the numbers read as."""

    FULL = "truly full"
    OTHERS = "full of other processes' memory"
    FRAGMENTED = "fragmented"
    EITHER = "full or fragmented"
    LIMITED = "stopped by a limit"
    TOO_LARGE = "more than the card has"
    SPILLED = "more than the card has, in the host's memory"
    CONTRADICTORY = "enough was free"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Size:
    """`about` bytes, give or take `margin`: the texts print two decimals."""

    about: int
    margin: int = 0

    @property
    def low(self) -> int:
        """The least that the printed number can stand for."""
        return max(self.about - self.margin, 0)

    @property
    def high(self) -> int:
        """The most that the printed number can stand for."""
        return self.about + self.margin

    def __add__(self, other: Size) -> Size:
        return Size(self.about + other.about, self.margin + other.margin)

    def __sub__(self, other: Size) -> Size:
        return Size(self.about - other.about, self.margin + other.margin)


@dataclass(frozen=True, slots=True)
class Reading:
    """The numbers of one text; None where it does not say, and then `unknown[field]` says why.

    backend: "CUDA", "HIP", "MPS", ... asked: what the allocator asked the device for. total, free:
    the device's. process: this process's share of it, context included. allocated: by PyTorch.
    pools: what of it lies in private pools. cached: reserved by PyTorch beyond that. allowed: the
    limit on what PyTorch may reserve. other: on MPS, what others than PyTorch took. processes: pid
    and size of those that the text lists. written_by: which versions write so. certain: False for
    an error that may have other causes. library: the words it was known by. more: how many other
    out-of-memory texts stood around it. endless: more than 1 EB was asked for.
    """

    origin: Origin
    backend: str | None = None
    device: int | None = None
    asked: Size | None = None
    total: Size | None = None
    free: Size | None = None
    process: Size | None = None
    allocated: Size | None = None
    pools: Size | None = None
    cached: Size | None = None
    allowed: Size | None = None
    other: Size | None = None
    processes: tuple[tuple[int, Size], ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    written_by: str = ""
    certain: bool = True
    library: str = ""
    more: int = 0
    endless: bool = False

    @property
    def reserved(self) -> Size | None:
        """All that PyTorch's allocator holds."""
        if self.allocated is None or self.cached is None:
            return None
        return self.allocated + self.cached

    @property
    def held(self) -> Size | None:
        """What PyTorch has reserved, or of that what is known."""
        return self.reserved or self.allocated

    @property
    def has_large_gaps(self) -> bool:
        """Whether what lies free inside the allocator's memory is much of that, as far as known."""
        if self.held is None or self.cached is None:
            return True
        return self.cached.high >= PART_OF_HELD * self.held.low

    @property
    def outside(self) -> Size | None:
        """What is in use on the device and not PyTorch's: contexts, libraries, other processes."""
        if self.total is None or self.free is None or self.reserved is None:
            return None
        return self.total - self.free - self.reserved

    @property
    def others(self) -> Size | None:
        """What other processes hold, where the text tells this process's share."""
        if self.total is None or self.free is None or self.process is None:
            return None
        return self.total - self.free - self.process


@dataclass(frozen=True, slots=True)
class Fact:
    """One number: what it is called, its size, and what it means in plain words.

    derived: it follows from the text's numbers and is not printed there.
    """

    label: str
    size: Size | None
    meaning: str
    derived: bool = False


@dataclass(frozen=True, slots=True)
class Explanation(Answer):
    """An out-of-memory text, number by number; what it reads as; what it does not tell; what to do
    next, in order."""

    reading: Reading
    headline: str
    facts: tuple[Fact, ...]
    outlook: Outlook
    verdict: str
    untold: tuple[str, ...]
    steps: tuple[str, ...]
