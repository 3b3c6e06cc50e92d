"""What is put in the place of the user's objects for a while, and the way back."""

from __future__ import annotations

import contextlib
import signal
import threading
import types
from collections.abc import Iterator
from typing import Any, Protocol

_EMPTY: Any = object()


class Exchange(Protocol):
    """One place that holds something else during a dry run."""

    def put(self) -> None:
        """Put the copies there, and let go of them."""

    def restore(self) -> None:
        """Put back what was there. May be called again, also after an interrupted `put`."""


class Entries:
    """The contents of a dict: the notebook's namespace, a module's globals, a function's dict."""

    def __init__(self, held: dict[Any, Any], copies: dict[Any, Any]) -> None:
        self._held = held
        self._before = dict(held)
        self._copies = copies

    def put(self) -> None:
        """Exchange what has a copy; everything else stays."""
        copies, self._copies = self._copies, {}
        self._held.update(copies)

    def restore(self) -> None:
        """What was there first, so that nothing is missing at any moment; then its order."""
        held, before = self._held, self._before
        held.update(before)
        for key in [key for key in held if key not in before]:
            del held[key]
        if list(held) != list(before):
            for key, value in before.items():
                del held[key]
                held[key] = value


class Cell:
    """A variable that functions share with the function around them."""

    def __init__(self, cell: types.CellType, contents: Any) -> None:
        self._cell = cell
        self._before = _contents(cell)
        self._copy = contents

    def put(self) -> None:
        """Exchange the contents."""
        contents, self._copy = self._copy, _EMPTY
        if contents is not _EMPTY:
            self._cell.cell_contents = contents

    def restore(self) -> None:
        """Also empties a cell that was empty."""
        if self._before is not _EMPTY:
            self._cell.cell_contents = self._before
        elif _contents(self._cell) is not _EMPTY:
            del self._cell.cell_contents


class Attributes:
    """Attributes of a function (its defaults), or of a class with all that stands in it."""

    def __init__(self, owner: Any, names: tuple[str, ...], copies: dict[str, Any]) -> None:
        self._owner = owner
        self._before = {name: getattr(owner, name) for name in names}
        self._copies = copies

    def put(self) -> None:
        """Exchange what has a copy."""
        copies, self._copies = self._copies, {}
        for name, value in copies.items():
            setattr(self._owner, name, value)

    def restore(self) -> None:
        """Set what is another by now."""
        for name, value in self._before.items():
            if getattr(self._owner, name) is not value:
                setattr(self._owner, name, value)


class ClassAttributes:
    """What stands in the body of a class; attributes that a cell adds are taken away again."""

    def __init__(self, kind: type, copies: dict[str, Any]) -> None:
        self._kind = kind
        self._before = dict(vars(kind))
        self._copies = copies

    def put(self) -> None:
        """Exchange what has a copy."""
        copies, self._copies = self._copies, {}
        for name, value in copies.items():
            type.__setattr__(self._kind, name, value)

    def restore(self) -> None:
        """Set what is another by now, remove what is new."""
        now = dict(vars(self._kind))
        for name, value in self._before.items():
            if now.get(name, _EMPTY) is not value:
                type.__setattr__(self._kind, name, value)
        for name in now.keys() - self._before.keys():
            type.__delattr__(self._kind, name)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return _EMPTY


@contextlib.contextmanager
def exchanged(exchanges: list[Exchange]) -> Iterator[None]:
    """Within, the copies are in their places. What was there comes back whatever happens."""
    try:
        try:
            with uninterrupted():
                for exchange in exchanges:
                    exchange.put()
            yield
        finally:
            _restore(exchanges)
    finally:
        _restore(exchanges)  # an interrupt may have come before the first one was safe from it


def _restore(exchanges: list[Exchange]) -> None:
    with uninterrupted():
        while exchanges:
            exchanges[-1].restore()
            exchanges.pop()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C (or the kernel's interrupt button) waits until the end of the block."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is None:
        yield
        return
    pressed: list[tuple[int, types.FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pressed and callable(handler):
            handler(*pressed[0])
