"""What a piece of advice is, and what a rule that gives it has to have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rewrite import UnsafeError, applied
from gpumem_magic.values.advice import Advice, Edit, Example, Kind
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names


@dataclass(frozen=True, slots=True)
class Case:
    """What a rule is asked about, where several of its functions look at it."""

    trace: Trace
    cell: Code
    names: Names

    @property
    def lives(self) -> Lifetimes:
        """Every storage."""
        return self.trace.lives


class Rule(ABC):
    """One problem, how to find it, and examples that prove it. The docstring of a rule is its
    documentation: `%gpucheck --explain NAME` prints it."""

    name: ClassVar[str]
    problem: ClassVar[str]
    kind: ClassVar[Kind] = Kind.MISTAKE
    examples: ClassVar[tuple[Example, ...]]
    joins: ClassVar[bool] = False
    """Whether it is asked about the cell and the earlier ones whose functions ran as one text,
    where it has nothing to say of the cell alone."""

    def propose(self, cell: Code, advice: Advice, edits: Callable[[], Iterable[Edit]]) -> Advice:
        """The advice with the changed cell, or, where that cannot be written safely, with why."""
        try:
            made = tuple(edits())
            source = applied(cell.source, made)
            if not cell.stays_python(source):
                raise UnsafeError("the lines around it leave no room for it")
        except UnsafeError as reason:
            return replace(advice, change=f"{advice.change} (Not written out: {reason}.)")
        return replace(advice, edits=made, source=source)

    @abstractmethod
    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        """Advice for this cell, in the order of its lines; nothing where there is no evidence."""


def mended(*changes: tuple[str, str], before: str, **more: Any) -> Example:
    """An example whose `after` is `before` with the first text of each pair, which stands there
    once, replaced by the second."""
    after = before
    for old, new in changes:
        assert after.count(old) == 1, old
        after = after.replace(old, new)
    return Example(before=before, after=after, **more)
