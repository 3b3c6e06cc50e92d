"""Errors of ours and interrupts while our code runs, kept away from the user's cells."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.error import UsageError
from traitlets import TraitError

from gpumem_magic.magics.display import warn
from gpumem_magic.sources.failures import defect, one_line
from gpumem_magic.sources.interrupts import Interrupts

MOST = 3
"""Cells in a row in which something of ours failed, after which nothing is measured any more."""

OFF = "nothing is measured any more; %reload_ext gpumem_magic starts afresh"

_NO_DEFECTS = (UsageError, TraitError, OSError, ImportError)


class Faults:
    """Says the first error of each cell in one line, and counts the cells that had one."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self._told = False

    @property
    def too_many(self) -> bool:
        """Whether measuring is off because of them."""
        return self.in_a_row >= MOST

    def cell_begins(self) -> None:
        """The next error is another cell's."""
        self._told = False

    def cell_was_measured(self) -> None:
        """A cell ended that was to be measured: without error the count starts anew."""
        if not self._told:
            self.in_a_row = 0

    @contextmanager
    def kept_away(
        self, what: str, interrupted: Callable[[], object] | None = None
    ) -> Iterator[None]:
        """Turn an error into one line, also one by which code of the user's that ours calls would
        end the process. An interrupt ends `what` too: `interrupted` is called, or without it the
        line says so."""
        handled = Interrupts.handled
        try:
            yield
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            # C code, such as matplotlib's, makes another error of an interrupt.
            if not isinstance(error, KeyboardInterrupt) and Interrupts.handled == handled:
                self.tell(what, error)
            elif interrupted is not None:
                interrupted()
            else:
                warn(f"{what} was interrupted, your code is not affected")

    def tell(self, what: str, error: BaseException) -> None:
        """Say that `what` failed, unless something of the same cell did before."""
        if self._told:
            return
        self._told = True
        failed = f"{what} failed, your code is not affected"
        if isinstance(error, _NO_DEFECTS) or getattr(sys.stdout, "closed", False):
            warn(f"{failed}: {one_line(error)}")
            return
        self.in_a_row += 1
        warn(defect(failed, error))
        if self.too_many:
            warn(f"{MOST} cells in a row had such an error: {OFF}")


def shown_in_one_line(interrupt: KeyboardInterrupt, said: str) -> KeyboardInterrupt:
    """IPython's own traceback would show our lines, and take half a second for the first."""
    shown: Any = interrupt
    shown._render_traceback_ = lambda: [f"KeyboardInterrupt: {said}"]
    return interrupt


@contextmanager
def harmless(what: str) -> Iterator[None]:
    """Turn an error, such as that of a full disk, into one line of warning. An interrupt goes on,
    and is shown in one line."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise shown_in_one_line(
            error, f"{what} was interrupted, your code is not affected"
        ) from None
    except Exception as error:
        warn(f"{what} failed, your code is not affected: {one_line(error)}")
