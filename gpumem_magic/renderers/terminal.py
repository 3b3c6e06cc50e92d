"""A document as plain text for a terminal: 80 columns, no colour."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from gpumem_magic.renderers.document import (
    Bar,
    Change,
    Code,
    Document,
    Fold,
    Legend,
    Line,
    Picture,
    Piece,
    Section,
    Span,
    Style,
    Table,
    Words,
    flat,
    unfolded,
)
from gpumem_magic.renderers.wording import visible

WIDTH = 80
"""Columns of a terminal."""

_SECOND = "\ue000"  # the second column of a wide character, while lines are broken
_SIZE = re.compile(r"(\d) ([KMG]iB|bytes|%|m?s\b)")
_BAR = 20
_TEXTURES = "█▒░"
_LINES = 12  # of a change that is not shown as a whole
_GAP = 2
_NAME = 12  # columns that names keep to themselves, if their caption needs as many


def printed(document: Document) -> str:
    """The sections with an empty line between them, ending without a newline."""
    sections = [_section(section) for section in unfolded(document) if not section.brief]
    text = "\n\n".join("\n".join(rows) for rows in sections if rows)
    return "\n".join(row.rstrip() for row in text.split("\n"))


def _section(section: Section) -> list[str]:
    """What must not be overlooked is indented below its first line."""
    first = 1 if section.alarm else len(section.pieces)
    return _rows(section.pieces[:first], "") + _rows(section.pieces[first:], "  ")


def _rows(pieces: Iterable[Piece], margin: str) -> list[str]:
    return [row for piece in pieces for row in _piece(piece, margin)]


def _piece(piece: Piece, margin: str) -> Iterable[str]:
    match piece:
        case Line():
            return _line(piece, margin)
        case Legend():
            pairs = zip(_TEXTURES, piece.parts, strict=False)
            signs = [f"{sign} {part.label}" for sign, part in pairs]
            return [f"{margin}  {'  '.join([*signs, '· free'])}"]
        case Table():
            return _table(piece, margin)
        case Code(lines=lines) | Picture(text=lines):
            return [f"{margin}  {visible(text)}" for text in lines]
        case Change():
            return _change(piece, margin)
        case Fold():
            told = piece.told
            return wrap(told, f"{margin}  ", margin) if told else _rows(piece.pieces, margin)
    return []  # bars say nothing more than the words beside them


def plain(words: Words | Bar) -> str:
    """Words without their styles."""
    if isinstance(words, str):
        return visible(words)
    if isinstance(words, Span):
        return visible(words.text)
    if isinstance(words, Bar):
        return _bar(words)
    return "".join(plain(one) for one in words)


def _line(line: Line, margin: str) -> list[str]:
    start = f"{margin}{'  ' * line.indent}{line.mark}"
    excerpt = isinstance(line.words, Span) and line.words.style is Style.EXCERPT
    if excerpt or line.style is Style.CODE:
        return [fit(f"{start}{plain(line.words)}", WIDTH)]
    hanging = " " * width(start) if line.mark else f"{start}  " if start else ""
    return wrap(plain(line.words), hanging, start)


def _change(change: Change, margin: str) -> Iterator[str]:
    count = len(change.lines)
    most = count if change.whole or count == _LINES + 1 else _LINES
    for sign, text in change.lines[:most]:
        start = f"{margin}  {sign or ' '} "
        row = f"{start}{visible(text)}"
        if change.whole:
            yield row
        elif sign in ("+", "-"):  # in full: lines may differ at their ends alone
            yield from wrap(visible(text), " " * (len(start) + 4), start)
        else:
            yield fit(row, WIDTH)
    if count > most:
        yield f"{margin}  ... and {count - most} more lines"


def _bar(shown: Bar) -> str:
    """One part in eighths of a column, several in textures with the free part dotted."""
    whole = shown.whole or 1
    if len(shown.parts) <= 1:
        return left(bar(sum(part.size for part in shown.parts) / whole, _BAR), _BAR)
    text, end = "", 0
    for sign, part in zip(_TEXTURES, shown.parts, strict=False):
        end += part.size
        columns = min(round(_BAR * end / whole), _BAR)
        text += sign * max(columns - len(text), 1 if part.size and not text else 0)
    return text.ljust(_BAR, "·")


def _table(table: Table, margin: str) -> Iterator[str]:
    """Names at the left, numbers right of them; a column without room goes below the name."""
    rows = [*flat(table.rows, 1)]
    cells = [[plain(cell) for cell in row.cells] for row, _ in rows]
    widths = _widths(table.head, cells)
    columns, gap = _columns(widths, WIDTH - len(margin) - min(width(table.caption), _NAME))
    room = WIDTH - len(margin) - sum(widths[i] + gap for i in columns)
    names = [width(f"{'  ' * depth}{row[0]}") for (_, depth), row in zip(rows, cells, strict=True)]
    name = max([min(room, 8), *(wide for wide in (*names, width(table.caption)) if wide <= room)])

    def numbers(texts: Sequence[str]) -> str:
        return "".join(right(texts[i], widths[i] + gap) for i in columns)

    yield from _headed(table, margin, name, numbers(table.head))
    for (row, depth), texts in zip(rows, cells, strict=True):
        edge = margin + "  " * depth
        if not columns:
            yield from wrap(texts[0], f"{edge}   ", edge)
        elif width(edge + texts[0]) <= name + len(margin):
            yield left(edge + texts[0], name + len(margin)) + numbers(texts)
        else:
            yield edge + fit_middle(texts[0], WIDTH - len(edge))
            if numbers(texts).strip():
                yield margin + " " * name + numbers(texts)
        beside = [i for i in widths if i not in columns and texts[i]]
        rest = " · ".join(f"{table.head[i]} {texts[i]}".strip() for i in beside)
        yield from wrap(rest, f"{edge}      ", f"{edge}    ")
        yield from _rows(row.below, f"{edge}    ")


def _headed(table: Table, margin: str, name: int, head: str) -> Iterator[str]:
    if width(table.caption) > name and head.strip():
        yield f"{margin}{table.caption}"
        yield margin + " " * name + head
    else:
        yield f"{margin}{left(table.caption, max(name, width(table.caption)))}{head}"


def _widths(head: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[int, int]:
    """The width of every column of numbers that is not empty."""
    found = {i: max(width(row[i]) for row in rows) for i in range(1, len(head))} if rows else {}
    return {i: max(wide, width(head[i])) for i, wide in found.items() if wide}


def _columns(widths: dict[int, int], room: int) -> tuple[list[int], int]:
    """The columns for which there is room, from the left, and the gap before each."""
    for gap in (_GAP, 1):
        if sum(widths.values()) + gap * len(widths) <= room:
            return [*widths], gap
    kept: list[int] = []
    for i in widths:
        room -= widths[i] + _GAP
        if room < 0:
            break
        kept.append(i)
    return kept, _GAP


def width(text: str) -> int:
    """Columns that a terminal gives to `text`."""
    return len(text) if text.isascii() else sum(_wide(character) for character in text)


def _wide(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, columns: int) -> str:
    """`text`, cut with an ellipsis where it is wider than `columns`."""
    if width(text) <= columns:
        return text
    kept, room = [], columns - 1
    for character in text:
        room -= _wide(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + "…"


def fit_middle(text: str, columns: int) -> str:
    """`text`, cut in its middle: the ends of a variable's name say more."""
    if width(text) <= columns:
        return text
    head = fit(text, columns // 2 + 1)
    tail = fit(text[::-1], columns - width(head) + 1)
    return head + tail[-2::-1]


def left(text: str, columns: int) -> str:
    """`text` cut or filled to `columns`, at the left."""
    text = fit(text, columns)
    return text + " " * (columns - width(text))


def right(text: str, columns: int) -> str:
    """`text` filled to `columns`, at the right; a number is never cut."""
    return " " * (columns - width(text)) + text


def with_units(text: str) -> str:
    """`text` with no-break spaces between numbers and their units."""
    return _SIZE.sub("\\1\u00a0\\2", text)


def wrap(text: str, hanging: str = "", start: str = "") -> list[str]:
    """`text` in lines of at most WIDTH columns, sizes whole; all but the first stand `hanging`."""
    whole = with_units(text)  # textwrap does not break at a no-break space
    if not text.isascii():  # and takes every character for one column
        whole = "".join(c + _SECOND * (_wide(c) - 1) for c in whole)
    rows = textwrap.wrap(
        whole, WIDTH, initial_indent=start, subsequent_indent=hanging, break_on_hyphens=False
    )
    return [row.replace("\u00a0", " ").replace(_SECOND, "") for row in rows]


def bar(share: float, columns: int) -> str:
    """A bar of `share` (0 to 1) of `columns`, in eighths of a column."""
    eighths = round(min(max(share, 0.0), 1.0) * columns * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
