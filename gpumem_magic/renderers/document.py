"""What an answer says, piece by piece, before it is known where it will be read: `terminal.py` and
`html.py` print it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias


class Style(Enum):
    """How words look, where there is more than one way to look. EXCERPT: code in one line, as much
    of it as there is room for."""

    PLAIN = auto()
    STRONG = auto()
    FAINT = auto()
    CODE = auto()
    EXCERPT = auto()
    LARGE = auto()
    HEADING = auto()


@dataclass(frozen=True, slots=True)
class Span:
    """Words in one style. colour: of a patch before them, for those who see colours."""

    text: str
    style: Style = Style.PLAIN
    colour: str = ""


Words: TypeAlias = str | Span | Sequence[str | Span]


@dataclass(frozen=True, slots=True)
class Line:
    """A paragraph. indent: steps to the right. mark: what stands before it, as in a list. low: of
    it a page shows what fits into one line, as all of it stands in what can be opened."""

    words: Words
    style: Style = Style.PLAIN
    indent: int = 0
    mark: str = ""
    low: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar, or of its legend. size: bytes."""

    label: str
    size: int
    colour: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Parts side by side at the scale of `whole` bytes. thin: a line below other words."""

    parts: tuple[Part, ...]
    whole: int
    thin: bool = False


@dataclass(frozen=True, slots=True)
class Legend:
    """What the parts of the bars above are."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table. cells: its name and its numbers. below: what else is said of it, under
    both. inner: the rows that it is the sum of, or that belong to it."""

    cells: tuple[Words | Bar, ...]
    below: tuple[Piece, ...] = ()
    inner: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a caption. head: the heading of every column, of the names first."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of text, each shown as it is."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Lines of a change, each with its sign: "-", "+", " ", or "" where some are left out.

    whole: all of it is shown everywhere; otherwise a terminal shows its beginning.
    """

    lines: tuple[tuple[str, str], ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Fold:
    """Pieces that are shown on demand. told: what a terminal says in place of them; where it is
    empty, the terminal shows them."""

    summary: str
    pieces: tuple[Piece, ...]
    told: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as PNG, made where it is shown, and the words for those who do not see it.

    width: pixels at which its own text is as large as that around it.
    text: what a terminal shows in its place, line by line. chart: the same as markup, small enough
    for the messages of a panel. key: by which a page finds it.
    """

    png: Callable[[], bytes]
    words: str
    width: int = 920
    text: tuple[str, ...] = ()
    chart: Callable[[], str] | None = None
    key: str = ""


Piece: TypeAlias = Line | Bar | Legend | Table | Code | Change | Fold | Picture


@dataclass(frozen=True, slots=True)
class Section:
    """Pieces that belong together. alarm: they must not be overlooked. brief: they say in short
    what is folded below them; a terminal, which cannot fold, leaves them out."""

    pieces: tuple[Piece, ...]
    alarm: bool = False
    brief: bool = False


@dataclass(frozen=True, slots=True)
class Folded:
    """Sections that are shown on demand, and in full in a terminal."""

    summary: str
    sections: tuple[Section, ...]


Document: TypeAlias = tuple[Section | Folded, ...]


def unfolded(document: Document) -> Iterator[Section]:
    """The sections, those among them that are shown on demand."""
    for one in document:
        yield from one.sections if isinstance(one, Folded) else (one,)


def flat(rows: Iterable[Row], depth: int = 0) -> Iterator[tuple[Row, int]]:
    """The rows and those inside them, as they stand below each other, each with its depth."""
    for row in rows:
        yield row, depth
        yield from flat(row.inner, depth + 1)


FOLDED = 100
"""Rows that can be opened; more would weigh on the notebook's file."""


def listed(
    table: Table, hidden: Sequence[Row], what: str, see: str, many: int | None = None
) -> tuple[Piece, ...]:
    """The table, and the rows for which it has no room as "12 `what`"; `see` has all of them.

    many: how many these are, where `hidden` has only the first `FOLDED`.
    """
    if not hidden:
        return (table,)
    many = many or len(hidden)
    told = f"{many} {what}"
    cut = f"; the first {FOLDED} here, all in {see}" if many > FOLDED else ""
    others = Table("Others", table.head, tuple(hidden[:FOLDED]))
    return table, Fold(f"{told}{cut}", (others,), f"  ... and {told}")


def notes(texts: Sequence[str], low: bool = False) -> tuple[Line, ...]:
    """Remarks below the numbers."""
    return tuple(Line(text, Style.FAINT, mark="note: ", low=low) for text in texts)
