"""Advice as it is given: what to change, what it saves, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from gpumem_magic.values.recording import Machine


@dataclass(frozen=True, slots=True)
class Edit:
    """Characters start to end of a cell's text are replaced; an insertion has start == end."""

    start: int
    end: int
    text: str


class Known(Enum):
    """How a saving is known."""

    MEASURED = "measured"  # both cells were run on the virtual GPU
    EXACT = "exact"  # it follows from the recorded events
    ESTIMATED = "estimated"  # too roughly to be shown; it serves to rank what was not run


class Saves(Enum):
    """Of what a saving is."""

    PEAK = "at the peak"  # of allocated memory
    AFTER = "after the cell"  # of what stays allocated
    RESERVED = "reserved"  # at the peak of reserved memory


class Kind(Enum):
    """When a rule speaks."""

    MISTAKE = "always"  # what it finds is not wanted by anyone
    TRADE = "when memory is short"  # the change has its price; also on request
    FACT = "always, without a change"  # what does not help, or is not the notebook's to change


class Cost(Enum):
    """What a change costs beside memory, the least first."""

    NOTHING = "nothing"  # or what its price says, and neither of the others
    TIME = "time"
    SLOW = "much time"
    ACCURACY = "accuracy"  # results differ by more than rounding


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that a framework's object is to be made with, wherever that is done.

    owner: the class, dotted. was: the value that it takes the place of; None: of any.
    """

    owner: str
    name: str
    value: bool | int | str
    was: int | None = None

    def takes(self, value: object) -> bool:
        """Whether it takes the place of this value."""
        return self.was is None or value == self.was


@dataclass(frozen=True, slots=True)
class Advice:
    """One change to a cell, its evidence and what it saves, in bytes.

    rule: the name of the rule. problem: what is wrong, with the numbers of this cell. change: what
    to do. line, name, size: the evidence: a line of the cell, a variable, bytes; None where there
    is none. edits: the change; none where only a person can decide how. source: the changed cell.
    arguments: the change, where it is to be made outside of the cell.
    saving: None where it is not known, negative for what would cost memory. price: what it costs
    otherwise; cost: the class of that. before, after: the size that `saves` names with the cell as
    it is and as changed, where both were measured. fits: whether the changed cell fits the card,
    where that was tried.
    estimate: the saving that was told when the cell ran, where dry runs could not begin as it did.
    """

    rule: str
    problem: str
    change: str
    line: int | None = None
    name: str | None = None
    size: int | None = None
    edits: tuple[Edit, ...] = ()
    source: str | None = None
    arguments: tuple[Argument, ...] = ()
    saving: int | None = None
    known: Known | None = None
    saves: Saves = Saves.PEAK
    price: str = ""
    cost: Cost = Cost.NOTHING
    before: int | None = None
    after: int | None = None
    fits: bool | None = None
    estimate: int | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """A cell that a rule fires on, and the same cell without the problem.

    before, after: cells. setup: a cell that ran before, in the same notebook. card: of the virtual
    GPU. earlier: more cells that ran before, which may have failed. first: a cell to run before
    `after`, where that is the change. machine: what else the machine of `before` has, and that
    of `after` has not. results: variables that are the same after both cells. within: how far they
    may differ, relatively. rewritten: the rule itself makes `after` of `before`. needs: a package.
    """

    before: str
    after: str
    setup: str = ""
    card: str = "T4"
    earlier: tuple[str, ...] = ()
    first: str = ""
    machine: Machine = field(default_factory=Machine)
    results: tuple[str, ...] = ()
    within: float = 1e-5
    rewritten: bool = True
    needs: str = ""
