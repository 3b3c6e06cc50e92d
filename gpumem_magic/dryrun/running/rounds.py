"""Whether the rounds of a loop do the same to the allocator again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gpumem_magic.values.recording import Action

_LONGEST_PERIOD = 8
"""Rounds after which addresses repeat, at most: what a variable keeps of the last round makes the
next one's block another, so that two addresses take turns."""

SETTLED = 8
"""Rounds by which nearly every loop repeats. Two runs that are to do alike go so far at least."""

_STEADY = 6
"""Rounds with the same requests, and no segment taken or given back, after which a loop is taken
for settled: blocks that serve alike may change places for ever."""

_SEGMENTS = frozenset(
    {Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP}
)


class Rounds:
    """The last rounds of one loop, as ranges of the allocator's events.

    events: a sequence that only grows; a row begins with action, address, size, requested. least:
    rounds before which nothing is said.
    """

    def __init__(self, events: Callable[[], Sequence[Any]], least: int = 0) -> None:
        self._events = events
        self._least = least
        self._begin = 0
        self._count = 0
        self._rounds: deque[tuple[int, int]] = deque(maxlen=2 * _LONGEST_PERIOD)

    def begin(self) -> None:
        """The first round begins here."""
        self._begin = len(self._events())

    def close(self) -> None:
        """A round ends here, and the next one begins."""
        now = len(self._events())
        self._rounds.append((self._begin, now))
        self._count += 1
        self._begin = now

    def repetition(self) -> str:
        """How the rounds to come repeat the last ones; empty where they may not."""
        if self._count < self._least:
            return ""
        period = self._period()
        if period is not None:
            last = "the last one" if period == 1 else f"the last {period}"
            return f"repeat {last} event for event"
        if self._is_steady():
            return "ask for the same sizes in the same order, without new segments"
        return ""

    def _period(self) -> int | None:
        """How many of the last rounds did what as many before them had done, addresses included:
        it leaves the allocator as it was, so the next ones will do it once more."""
        rounds = list(self._rounds)
        for period in range(1, len(rounds) // 2 + 1):
            pairs = zip(rounds[-period:], rounds[-2 * period : -period], strict=True)
            if all(self._same(one, other, slice(3)) for one, other in pairs):
                return period
        return None

    def _is_steady(self) -> bool:
        rounds = list(self._rounds)[-_STEADY:]
        if len(rounds) < _STEADY:
            return False
        events = self._events()
        if any(events[i][0] in _SEGMENTS for i in range(rounds[0][0], rounds[-1][1])):
            return False
        if self._grows(*rounds[-1]):
            return False
        request = slice(0, 4, 3)  # sizes of blocks have slack, which depends on the place
        return all(self._same(rounds[-1], other, request) for other in rounds[:-1])

    def _grows(self, begin: int, end: int) -> bool:
        """Whether a round keeps more, or less, than it was given: sooner or later that tells."""
        requested = {Action.ALLOC: 0, Action.FREE: 0}
        rows = [row for row in self._events()[begin:end] if row[0] in requested]
        for row in rows:
            requested[row[0]] += row[3]
        return requested[Action.ALLOC] != requested[Action.FREE]

    def _same(self, one: tuple[int, int], other: tuple[int, int], columns: slice) -> bool:
        if one[1] - one[0] != other[1] - other[0]:
            return False
        events = self._events()
        pairs = zip(range(*one), range(*other), strict=True)
        return all(events[i][columns] == events[j][columns] for i, j in pairs)
