"""Several changes to one cell made at once: what one indents, the others' lines follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from gpumem_magic.advice.rewrite import UnsafeError, indent_of
from gpumem_magic.values.advice import Edit


@dataclass(frozen=True, slots=True)
class _Change:
    """The edits of one change. indents: where it indents a line; headers: where it puts lines on
    top of one that it indents, so that it begins there."""

    edits: tuple[Edit, ...]
    indents: frozenset[int]
    headers: frozenset[int]

    def blocks(self) -> Iterator[tuple[int, frozenset[int]]]:
        """Where each block begins that it indents, and the lines in it."""
        for start in self.headers:
            end = min((later for later in self.headers if later > start), default=None)
            yield (
                start,
                frozenset(at for at in self.indents if start <= at and (end is None or at < end)),
            )


def combined(source: str, changes: Sequence[Sequence[Edit]]) -> tuple[Edit, ...]:
    """The edits of all changes, in the order in which they are to be applied.

    Of two changes that wrap the same statement, the one that wraps more is the outer; if both wrap
    as much, the earlier. Lines above a statement stay above what wraps it. The changes have to
    agree (see `agree`). Raises UnsafeError for blocks that overlap without one inside the other.
    """
    known = sorted(map(_read, changes), key=_outermost_first)
    for one, other in combinations(known, 2):
        _require_nesting(one, other)
    edits = [
        _moved(source, edit, number, known)
        for number, change in enumerate(known)
        for edit in change.edits
    ]
    return tuple(sorted(edits, key=lambda edit: (edit.start, edit.end, edit.text.isspace())))


def _read(edits: Sequence[Edit]) -> _Change:
    inserted = [edit for edit in edits if edit.start == edit.end]
    indents = frozenset(edit.start for edit in inserted if edit.text.isspace())
    headers = frozenset(edit.start for edit in inserted if edit.text.endswith("\n"))
    return _Change(tuple(edits), indents, headers & indents)


def _outermost_first(change: _Change) -> tuple[bool, int]:
    return bool(change.indents), -len(change.indents)


def _require_nesting(outer: _Change, inner: _Change) -> None:
    for start, lines in outer.blocks():
        for other_start, others in inner.blocks():
            if not lines & others or others <= lines:
                continue
            if not lines <= others or start == other_start:
                raise UnsafeError("two changes put overlapping blocks under headers of their own")


def _moved(source: str, edit: Edit, number: int, changes: Sequence[_Change]) -> Edit:
    """An edit with its whole lines indented as the other changes indent their place."""
    if "\n" not in edit.text:
        return edit
    line = source.rfind("\n", 0, edit.start) + 1
    above = edit.start == edit.end == line and edit.text.endswith("\n")
    depth = sum(
        line in other.indents and not (above and place > number and line in other.headers)
        for place, other in enumerate(changes)
        if place != number
    )
    deeper = indent_of(source) * depth
    first, *rest = edit.text.split("\n")
    if above:
        first = f"{deeper}{first}"
    text = "\n".join([first, *(f"{deeper}{row}" if row.strip() else row for row in rest)])
    return replace(edit, text=text)
