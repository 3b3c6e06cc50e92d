"""Values that a dry run does not know: what stands in for them, and which lines needed one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from gpumem_magic.sources.stacks.conditions import answer_that_goes_on, is_check
from gpumem_magic.sources.stacks.frames import outwards

_PATIENCE = 1000
"""Times that one place gets the same answer to a question of yes or no: loops that wait for a value
end then."""

_TORCH = str(Path(torch.__file__).parent)
"""Below it, numbers are compared to choose between values rather than between ways."""

_EQUALITY = ("__eq__", "__ne__")
_COMPARISONS = ("__lt__", "__le__", "__gt__", "__ge__", *_EQUALITY, "__bool__")
_ARITHMETIC = (
    *(
        f"__{side}{name}__"
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
        for side in ("", "r")
    ),
    *("__neg__", "__abs__"),
)


HOW_MANY = "how many elements"


class Guesses:
    """Keeps, for the note below the prediction, which lines needed unknown values.

    places: what lines are told after, by the user's files; a mapping that may grow. `flow_depends`
    tells whether a value that nobody knows has decided which way the cell went.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places
        self._needed: dict[str, dict[str, bool]] = {}
        self._asked: dict[tuple[CodeType, int], int] = {}
        self._numbers = {kind: self._numbers_like(kind) for kind in (float, int)}
        self._unmeasured: dict[str, set[str]] = {}
        self.flow_depends = False
        self._unasked = False

    @contextmanager
    def unasked(self) -> Iterator[None]:
        """Within, nobody has asked for the values that are looked at."""
        outer, self._unasked = self._unasked, True
        try:
            yield
        finally:
            self._unasked = outer

    def unmeasured(self, what: str) -> None:
        """The running line uses a library of NVIDIA's that takes memory by no known rule."""
        self._unmeasured.setdefault(self._line(), set()).add(what)

    def needed(self, what: str, decides: bool = False) -> None:
        """The running line has asked for `what`; decides: and goes one way or another by it."""
        if self._unasked:
            return
        line = self._line()
        asked = self._needed.setdefault(line, {})
        asked[what] = asked.get(what, False) or decides
        self.flow_depends = self.flow_depends or decides

    def decision(self, frame: FrameType, usual: bool, *, compares: bool = False) -> bool:
        """What to answer the code of `frame`: what lets a loop, or the program, go on, else
        `usual`, but at some time the opposite, unless the program fails by it. compares: see
        answer_that_goes_on; of these only loops and checks get others than usual."""
        if self._unasked:
            return usual
        goes_on = answer_that_goes_on(frame, compares=compares)
        if goes_on is not None and is_check(frame):
            return goes_on
        if compares and goes_on is None:
            return usual
        usual = usual if goes_on is None else goes_on
        place = frame.f_code, frame.f_lasti
        self._asked[place] = times = self._asked.get(place, 0) + 1
        return usual if times % (_PATIENCE + 1) else not usual

    def number(self, value: Any) -> Any:
        """`value`, which tells when code compares it, or what is computed from it."""
        return self._numbers[type(value)](value) if type(value) in self._numbers else value

    def notes(self) -> tuple[str, ...]:
        """One sentence for each line that needed values; where they decide, it says so."""
        needed = tuple(
            _sentence(line, sorted(what for what, d in asked.items() if d == decides), decides)
            for line, asked in sorted(self._needed.items(), key=_in_order)
            for decides in (True, False)
            if decides in asked.values()
        )
        libraries = (
            f"{line} uses {', '.join(sorted(names))}, whose workspace on a GPU is not "
            "known: the real peak may be higher."
            for line, names in sorted(self._unmeasured.items(), key=_in_order)
        )
        return (*needed, *libraries)

    def _numbers_like(self, kind: type) -> type:
        """A float or an int which knows that nobody knows it."""

        def comparing(name: str) -> Any:
            def compare(number: Any, *other: Any) -> Any:
                frame = sys._getframe(1)
                in_torch = frame.f_code.co_filename.startswith(_TORCH)
                self.needed("a number that came from a tensor", decides=not in_torch)
                found = getattr(kind, name)(number, *other)
                if found is not NotImplemented and is_check(frame):
                    return self.decision(frame, found, compares=name != "__bool__")
                is_size = kind is int and name not in _EQUALITY  # an index within its bounds
                if is_size or name == "__bool__" or found is NotImplemented:
                    return found
                return self.decision(frame, found, compares=True)

            return compare

        def computing(name: str) -> Any:
            return lambda number, *other: self.number(getattr(kind, name)(number, *other))

        plus = getattr(kind, "__add__")  # noqa: B009 - a float's or an int's
        members: dict[str, Any] = {name: comparing(name) for name in _COMPARISONS}
        members |= {name: computing(name) for name in _ARITHMETIC}
        members["__hash__"] = kind.__hash__
        members["__reduce__"] = lambda number: (kind, (plus(number, 0),))
        return type(kind.__name__, (kind,), members)

    def _line(self) -> str:
        for frame in outwards(sys._getframe(2)):
            if place := self._places.get(frame.f_code.co_filename):
                return f"{place}{frame.f_lineno}".replace("line ", "Line ")
        return "Code outside the cell"


def _in_order(item: tuple[str, object]) -> tuple[int, str]:
    return len(item[0]), item[0]


def _sentence(where: str, needed: list[str], decides: bool) -> str:
    what = ", ".join(needed)
    if decides:
        return f"{where} goes by values that a dry run does not know ({what}): one way was taken."
    most = ", of elements as many as there can be" if HOW_MANY in what else ""
    return f"{where} needs values that a dry run does not know ({what}): stand-ins were used{most}."


def stand_in(dtype: torch.dtype) -> Any:
    """A plausible number of this type: between 0 and 1, a valid index, or no."""
    if dtype is torch.bool:
        return False
    if dtype.is_floating_point:
        return 0.5
    return complex(0.5) if dtype.is_complex else 1
