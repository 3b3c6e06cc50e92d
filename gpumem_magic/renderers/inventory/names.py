"""What one variable holds, as text and HTML: like a model's summary, with live bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpumem_magic.renderers import markup
from gpumem_magic.renderers.columns import WIDTH, fit, fit_middle, left, right, wrap
from gpumem_magic.renderers.figure.palette import COLOURS
from gpumem_magic.renderers.markup import EMPTY, ROOT, Markup, element, join, row, table
from gpumem_magic.renderers.wording import shown, visible
from gpumem_magic.units import format_bytes
from gpumem_magic.values.inventory import Breakdown
from gpumem_magic.values.recording import Category

_PARTS = 25  # a screenful; HTML has more
_MOST = 200
_COLUMNS = 3  # kinds that have a column of their own in 80 columns
_FAINT = "opacity:0.75;font-size:0.92em"


@dataclass(frozen=True, slots=True)
class _Row:
    """One part of the variable: bytes by category."""

    name: str
    count: int
    sizes: Mapping[Category, int]
    also: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


def breakdowns_text(breakdowns: Sequence[Breakdown]) -> str:
    """The variables one below the other, for a terminal of 80 columns."""
    rows = "\n\n".join("\n".join(_text(breakdown)) for breakdown in breakdowns)
    return "\n".join(row.rstrip() for row in rows.split("\n"))


def breakdowns_html(breakdowns: Sequence[Breakdown]) -> str:
    """The variables one below the other, as one <div> with inline styles."""
    return element("div", *map(_html, breakdowns), style=ROOT)


def headline(breakdown: Breakdown) -> str:
    """What the variable holds, in one sentence."""
    name = visible(breakdown.name)
    if not breakdown.parts:
        return f"{name} holds no memory of this device"
    count = sum(part.count for part in breakdown.parts)
    many = "1 tensor" if count == 1 else f"{count} tensors"
    return f"{name} holds {format_bytes(breakdown.size)} in {many}"


def _text(breakdown: Breakdown) -> list[str]:
    rows = [fit(headline(breakdown), WIDTH)]
    if not breakdown.parts:
        return rows
    kinds = _kinds(breakdown)[:_COLUMNS]
    more = len(_kinds(breakdown)) > _COLUMNS
    head = [right(kind.value, 16) for kind in kinds]
    rows.append(f"{'':20}{'size':>12}{''.join(head[: 2 if more else 3])}{_others(more)}")
    parts = _rows(breakdown)
    for part in parts[:_PARTS]:
        rows += _part(part, kinds[: 2 if more else 3], more)
    if len(parts) > _PARTS:
        size = format_bytes(sum(part.size for part in parts[_PARTS:]))
        rows.append(f"  ... and {len(parts) - _PARTS} smaller, together {size}")
    return [*rows, *_shared_rows(parts)]


def _others(more: bool) -> str:
    return right("other kinds", 16) if more else ""


def _part(part: _Row, kinds: Sequence[Category], more: bool) -> list[str]:
    """A part in one row; its name has a row of its own where it is long."""
    sizes = [part.sizes.get(kind) for kind in kinds]
    if more:
        sizes.append(part.size - sum(size or 0 for size in sizes))
    cells = "".join(right(format_bytes(size) if size else "-", 16) for size in sizes)
    numbers = f"{format_bytes(part.size):>12}{cells}"
    if len(part.name) <= 17:
        return [f"  {left(part.name, 18)}{numbers}"]
    return [f"  {fit_middle(part.name, WIDTH - 2)}", f"{'':20}{numbers}"]


def _shared_rows(parts: Sequence[_Row]) -> list[str]:
    shared = [part for part in parts if part.also]
    rows = []
    for part in shared[:_PARTS]:
        text = f"  {part.name} is also held by {', '.join(part.also)}"
        rows += wrap(fit(text, 300), "    ")
    return rows


def _rows(breakdown: Breakdown) -> list[_Row]:
    """The parts by name, in the order of their bytes."""
    sizes: dict[str, dict[Category, int]] = {}
    counts: dict[str, int] = {}
    also: dict[str, tuple[str, ...]] = {}
    for part in breakdown.parts:
        name = visible(part.name)
        kinds = sizes.setdefault(name, {})
        kinds[part.category] = kinds.get(part.category, 0) + part.size
        counts[name] = counts.get(name, 0) + part.count
        ways = (*also.get(name, ()), *map(visible, part.also))
        also[name] = tuple(dict.fromkeys(ways))
    rows = [_Row(name, counts[name], sizes[name], also[name]) for name in sizes]
    return sorted(rows, key=lambda row: -row.size)


def _kinds(breakdown: Breakdown) -> list[Category]:
    """The categories of the parts, the one with the most bytes first."""
    sizes: dict[Category, int] = {}
    for part in breakdown.parts:
        sizes[part.category] = sizes.get(part.category, 0) + part.size
    return sorted(sizes, key=lambda kind: -sizes[kind])


def _html(breakdown: Breakdown) -> Markup:
    name, _, rest = headline(breakdown).partition(" holds ")
    if not breakdown.parts:
        return element("div", markup.code(name), f" holds {rest}")
    kinds, parts = _kinds(breakdown), _rows(breakdown)
    rows = [_html_row(part, kinds, breakdown.size) for part in parts[:_MOST]]
    cut = len(parts) - _MOST
    last = markup.small(f"... and {cut} smaller: see .parts") if cut > 0 else EMPTY
    total = join(element("strong", format_bytes(breakdown.size)), " in ", rest.partition(" in ")[2])
    return join(
        element("div", markup.code(name), " holds ", total, style="font-size:1.1em"),
        table("By part and kind", ("part", "size", *(kind.value for kind in kinds), ""), rows),
        last,
    )


def _html_row(part: _Row, kinds: Sequence[Category], whole: int) -> Markup:
    shared = f"also held by {', '.join(part.also)}" if part.also else ""
    below = element("div", shared, style=_FAINT) if shared else EMPTY
    sizes = (format_bytes(part.sizes[kind]) if kind in part.sizes else "-" for kind in kinds)
    stack = [(kind.value, size, COLOURS[kind]) for kind, size in shown(part.sizes)]
    bar = markup.bar(stack, whole or 1, 120)
    return row(join(markup.source(part.name), below), format_bytes(part.size), *sizes, bar)
