"""How many lines of Python run: a measure of work that no machine changes."""

from __future__ import annotations

import sys


def lines_run(act):
    """That number while `act()` runs, and what it returns."""
    counted = [0]

    def count(frame, event, arg):
        counted[0] += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        result = act()
    finally:
        sys.settrace(before)
    return counted[0], result
