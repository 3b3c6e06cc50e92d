"""What variables hold, by part and kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpumem_magic.renderers.document import (
    Bar,
    Document,
    Line,
    Part,
    Piece,
    Row,
    Section,
    Span,
    Style,
    Table,
    listed,
)
from gpumem_magic.renderers.figure.palette import COLOURS
from gpumem_magic.renderers.wording import shown
from gpumem_magic.units import format_bytes, format_size
from gpumem_magic.values.inventory import Breakdown, Holding
from gpumem_magic.values.recording import Category

_PARTS = 25  # a screenful; the others are folded


def breakdowns_document(breakdowns: Sequence[Breakdown]) -> Document:
    """What variables hold, one below the other: like a model's summary, with live bytes."""
    return tuple(Section(_breakdown(breakdown)) for breakdown in breakdowns)


def _breakdown(breakdown: Breakdown) -> tuple[Piece, ...]:
    name = Span(breakdown.name, Style.CODE)
    if not breakdown.parts:
        return (Line((name, " holds no memory of this device")),)
    count = sum(part.count for part in breakdown.parts)
    many = "1 tensor" if count == 1 else f"{count} tensors"
    size = Span(format_bytes(breakdown.size), Style.STRONG)
    kinds = sorted({part.category for part in breakdown.parts}, key=_bytes_of(breakdown))
    rows = _part_rows(breakdown, kinds)
    hidden = sum(size for _, size in rows[_PARTS:])
    shown_ = tuple(row for row, _ in rows[:_PARTS])
    table = Table("By part and kind", ("part", "size", *(kind.value for kind in kinds)), shown_)
    what = f"smaller, together {format_bytes(hidden)}"
    others = [row for row, _ in rows[_PARTS:]]
    return (Line((name, " holds ", size, f" in {many}")), *listed(table, others, what, ".parts"))


def _bytes_of(breakdown: Breakdown) -> Callable[[Category], int]:
    """The order of kinds: the one with the most bytes first."""
    parts = breakdown.parts
    return lambda kind: -sum(part.size for part in parts if part.category is kind)


def _part_rows(breakdown: Breakdown, kinds: Sequence[Category]) -> list[tuple[Row, int]]:
    """A row for each name and its bytes, the most bytes first."""
    named: dict[str, list[Holding]] = {}
    for part in breakdown.parts:
        named.setdefault(part.name, []).append(part)
    rows = [_part(name, parts, kinds, breakdown.size) for name, parts in named.items()]
    return sorted(rows, key=lambda row: -row[1])


def _part(
    name: str, parts: Sequence[Holding], kinds: Sequence[Category], whole: int
) -> tuple[Row, int]:
    sizes = {kind: sum(p.size for p in parts if p.category is kind) for kind in kinds}
    total = sum(sizes.values())
    cells = (format_size(size) if size else "-" for size in sizes.values())
    bar = Bar(tuple(Part(k.value, s, COLOURS[k]) for k, s in shown(sizes)), whole, thin=True)
    ways = ", ".join(dict.fromkeys(way for part in parts for way in part.also))
    also = (Line(f"also held by {ways}"[:300], Style.FAINT),) if ways else ()
    return Row((Span(name, Style.CODE), format_size(total), *cells), (*also, bar)), total
