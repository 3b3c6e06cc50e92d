"""A document as static HTML: for notebooks, trusted or not, and for pages of their own."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpumem_magic.renderers import terminal
from gpumem_magic.renderers.document import (
    Bar,
    Change,
    Code,
    Document,
    Fold,
    Folded,
    Legend,
    Line,
    Part,
    Picture,
    Piece,
    Row,
    Section,
    Span,
    Style,
    Table,
    Words,
    flat,
)
from gpumem_magic.renderers.figure.palette import ALARM
from gpumem_magic.renderers.wording import visible
from gpumem_magic.units import format_bytes

# JupyterLab lets these properties and values through in a notebook that is not trusted, but no
# var() and no <style>. So the text may have to keep the colour around it, and lines and fills are
# greys that show on light and dark.
ROOT = (
    "color:var(--jp-ui-font-color1, var(--vscode-editor-foreground, inherit));"
    "font-size:13px;line-height:1.5;max-width:920px;text-align:left;overflow-wrap:break-word"
)

_LONGEST = 120  # characters of code that are shown without pointing at it
_SHORTEST = 26  # that stay in one piece, such as "%gpucheck --free --outputs"
_LEAST = 150  # pixels of a name beside its numbers; with less room they go below it
_DIGIT, _WIDER, _BOLD = 8.3, 4, 1.1  # pixels in DejaVu Sans, among the widest; how much in bold
_CHANGED = 200  # lines of a change; more would weigh on the notebook's file

_GREY = "rgba(128,128,128,0.25)"
_MONO = "font-family:ui-monospace, Menlo, Consolas, monospace"
# A space that does not break: after a box of its own a line would, and leave it above a long name.
_PATCH = "padding:0 3px;border-radius:2px;margin-right:5px;font-size:0.7em"
_SPANS = {
    Style.STRONG: "font-weight:600",
    Style.FAINT: "opacity:0.75",
    Style.LARGE: "font-size:1.4em;font-weight:600",
    Style.HEADING: "font-weight:600",
}
_LINES = {
    Style.FAINT: "opacity:0.8;font-size:0.92em;",
    Style.LARGE: "font-size:1.3em;font-weight:600;",
    Style.HEADING: "font-weight:600;padding:2px 0;",
}
_CODE = (
    "padding:0;background:transparent;color:inherit;font-size:0.95em;white-space:pre-wrap;"
    f"overflow-wrap:anywhere;{_MONO}"
)
_FRAME = f"border-left:4px solid {ALARM};background:rgba(238,102,119,0.12);padding:2px 12px"
_CUT = "overflow:hidden;white-space:nowrap;text-overflow:ellipsis"
_BOXED = f"{_CUT};display:inline-block;vertical-align:bottom;max-width:100%"
_WRAPS = "display:flex;flex-wrap:wrap;justify-content:flex-end;padding:0;background:transparent"
_ROW = f"{_WRAPS};align-items:baseline;border-top:1px solid {_GREY}"
_SUMMARY = "cursor:pointer;padding:2px 0;display:list-item"  # Bootstrap takes its triangle
_FAINT = "opacity:0.7"
_PLAIN = "border:none;max-width:none;box-sizing:border-box"
_NAME = (
    f"{_PLAIN};padding:2px 8px 2px 0;text-align:left;font-weight:normal;overflow-wrap:anywhere;"
    "min-width:0;flex-grow:1;flex-shrink:1"
)
_CELL = f"{_PLAIN};padding:2px 0 2px 12px;text-align:right;white-space:nowrap;flex-shrink:0"
_BELOW = (
    f"{_PLAIN};padding:0 0 2px 0;text-align:left;overflow-wrap:anywhere;min-width:0;flex-basis:100%"
)
_CAPTION = "caption-side:top;text-align:left;font-weight:600;padding:2px 0;color:inherit;margin:0"
_TABLE = "border-collapse:collapse;margin:0;width:100%;font-size:1em;table-layout:fixed"
_TRACK = "background:rgba(128,128,128,0.18);border-radius:2px;overflow:hidden;display:flex"
_PRINTED = (
    "margin:4px 8px;padding:6px 10px;background:rgba(128,128,128,0.12);color:inherit;"
    f"max-height:300px;overflow:auto;font-size:0.95em;white-space:pre-wrap;{_MONO}"
)
_CHANGE = (
    f"padding:4px 0;margin:4px 0;overflow-x:auto;font-size:0.95em;line-height:1.45;{_MONO};"
    f"border:1px solid {_GREY};border-radius:3px;background:transparent;color:inherit"
)
_BACK = {"+": "rgba(46,158,68,0.18)", "-": "rgba(204,102,51,0.18)"}


# Where a page has a style sheet, the cells of tables say only what they are: they are many.
_LOOKS = {"row": _ROW, "name": _NAME, "cell": _CELL, "below": _BELOW}
CLASSES = "\n".join(
    f".gpumem-panel .gpumem-{name} {{ {style}; }}" for name, style in _LOOKS.items()
)
"""The style sheet for tables that are not printed plain."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


EMPTY = Markup("")

_VOID = ("img", "meta", "br")


def element(name: str, *children: str, **attributes: str) -> Markup:
    """An HTML element; children that are no Markup, and all attributes, are escaped."""
    pairs = "".join(f' {key}="{html.escape(visible(value))}"' for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{pairs}>")
    return Markup(f"<{name}{pairs}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Children one after the other; those that are no Markup are escaped."""
    return Markup(
        "".join(c if isinstance(c, Markup) else html.escape(visible(c)) for c in children)
    )


def printed(document: Document, plain: bool = True) -> Markup:
    """The document as one <div>. plain: as a sanitizer leaves it; otherwise tables can be reached
    by keyboard, the page has `CLASSES`, and pictures that have a chart are that chart, as a panel's
    messages are small."""
    printer = Printer(plain)
    shown = [one for one in document if isinstance(one, Folded) or one.pieces]
    return element("div", *(printer.part(one, not i) for i, one in enumerate(shown)), style=ROOT)


@dataclass(frozen=True, slots=True)
class Printer:
    """Prints pieces; see `printed`."""

    plain: bool = True

    def part(self, part: Section | Folded, first: bool = True) -> Markup:
        """A section, with room above it unless it is the first; or sections that open."""
        room = "" if first else "margin:4px 0 0 0"
        if isinstance(part, Folded):
            inner = (self.part(one) for one in part.sections if one.pieces)
            summary = element("summary", part.summary, style=_SUMMARY)
            return element("details", summary, *inner, style=room)
        style = ";".join(filter(None, (_FRAME if part.alarm else "", room)))
        return element("div", self.pieces(part.pieces), **({"style": style} if style else {}))

    def pieces(self, pieces: Iterable[Piece]) -> Markup:
        """Pieces one below the other."""
        return join(*map(self._piece, pieces))

    def _piece(self, piece: Piece) -> Markup:
        match piece:
            case Line():
                return _line(piece)
            case Bar():
                return bar(piece)
            case Legend():
                return legend(piece.parts)
            case Table():
                return self._table(piece)
            case Code():
                return element("pre", _rows(piece.lines), dir="ltr", style=_PRINTED)
            case Change():
                return _change(piece)
            case Fold():
                summary = element("summary", piece.summary, style=_SUMMARY)
                return element("details", summary, self.pieces(piece.pieces))
            case Picture(chart=chart) if chart is not None and not self.plain:
                return join(chart())
            case Picture():
                return picture(piece.png(), piece.words, piece.width, piece.key)

    def _table(self, table: Table) -> Markup:
        columns = widths(table.head, table.rows)
        rows = [printed for row in table.rows for printed in self.rows(row, columns)]
        return self.tabulated(table.caption, table.head, columns, rows)

    def tabulated(
        self, caption: str, head: Sequence[str], columns: Sequence[int], rows: Iterable[Markup]
    ) -> Markup:
        """A table of rows that are printed. Where it is too narrow for its `columns`, the numbers
        of a row go below its name: a row is a flex box that wraps, which needs no style sheet."""
        cells = [
            element(
                "th",
                text,
                scope="col",
                style=f"{_CELL};{_FAINT};font-weight:normal;flex-basis:{column}px",
            )
            for text, column in zip(head[1:], columns[1:], strict=True)
            if column
        ]
        name = element(
            "th", head[0], scope="col", style=f"{_NAME};{_FAINT};flex-basis:{columns[0]}px"
        )
        inner = element(
            "table",
            element("caption", caption, style=_CAPTION),
            element("thead", element("tr", name, *cells, style=_WRAPS)) if any(head) else EMPTY,
            element("tbody", *rows),
            style=_TABLE,
        )
        reached = {"tabindex": "0", "role": "region", "aria-label": caption}
        return element("div", inner, **({} if self.plain else reached))

    def rows(self, row: Row, columns: Sequence[int], depth: int = 0) -> list[Markup]:
        """A row of a table of such `columns`, and those inside it."""
        cells = [
            element("td", _words(cell), **self._look("cell", f"flex-basis:{column}px"))
            for cell, column in zip(row.cells[1:], columns[1:], strict=False)
            if column
        ]
        if row.below:
            inset = f"padding-left:{24 * depth}px" if depth else ""
            look, whole = self._look("below", inset), str(len(cells) + 1)
            cells.append(element("td", self.pieces(row.below), colspan=whole, **look))
        edge = f"flex-basis:{columns[0]}px;padding-left:{24 * depth}px"
        edge += f";{_CUT}" if _is_excerpt(row.cells[0]) else ""
        head = element("th", _words(row.cells[0]), scope="row", **self._look("name", edge))
        look = self._look("row", "opacity:0.8" if depth else "")
        inner = [printed for one in row.inner for printed in self.rows(one, columns, depth + 1)]
        return [element("tr", head, *cells, **look), *inner]

    def _look(self, name: str, style: str) -> dict[str, str]:
        """The attributes of a part of a table; style: what only this one has."""
        if self.plain:
            return {"style": f"{_LOOKS[name]};{style}" if style else _LOOKS[name]}
        return {"class": f"gpumem-{name}"} | ({"style": style} if style else {})


def widths(head: Sequence[str], rows: Sequence[Row]) -> tuple[int, ...]:
    """Pixels for each column, for that of the names the least; 0 for a column of numbers in which
    no row says anything."""
    every = [row for row, _ in flat(rows)]
    found = [
        max((_wide(row.cells[i]) for row in every if i < len(row.cells)), default=0)
        for i in range(len(head))
    ]
    name = _LEAST if any(row.below for row in every) else min(found[0], _LEAST)
    pairs = zip(found[1:], head[1:], strict=True)
    return (name, *(wide and max(wide, _wide(text)) for wide, text in pairs))


def _is_excerpt(words: Words | Bar) -> bool:
    spans = words if isinstance(words, Sequence) else ()
    return any(isinstance(one, Span) and one.style is Style.EXCERPT for one in spans)


def _wide(cell: Words | Bar) -> int:
    """Pixels that a cell needs at 13 px a line: what is wider than its column is out of line."""
    if isinstance(cell, Bar):
        return 160
    text = terminal.plain(cell)
    pixels = _DIGIT * len(text) + _WIDER * sum(text.count(sign) for sign in "%<")
    if isinstance(cell, Span):
        pixels *= _BOLD if cell.style is Style.STRONG else 1
        pixels += 15 if cell.colour else 0
    return round(pixels) + 12 if text else 0


def _words(words: Words | Bar) -> Markup:
    if isinstance(words, Bar):
        return bar(words)
    if isinstance(words, str):
        return join(words)
    if isinstance(words, Span):
        return _span(words)
    return join(*map(_words, words))


def _span(span: Span) -> Markup:
    if span.style is Style.CODE:
        said = code(span.text)
    elif span.style is Style.EXCERPT:
        said = element("span", span.text, dir="ltr", title=span.text[:1000], style=_MONO)
    elif span.style in _SPANS:
        said = element("span", span.text, style=_SPANS[span.style])
    elif span.colour:
        return element("span", swatch(span.colour), span.text, style="white-space:nowrap")
    else:
        said = join(span.text)
    return join(swatch(span.colour), said) if span.colour else said


def code(source: str) -> Markup:
    """A piece of source, cut where it is long; all of it when pointed at."""
    if len(source) <= _LONGEST:
        return element("code", source, dir="ltr", style=_CODE)
    short = element("code", f"{source[: _LONGEST - 1]}…", dir="ltr", style=_CODE)
    return element("span", short, title=source[:1000])


def swatch(colour: str) -> Markup:
    """A patch of a colour."""
    return element("span", "\u00a0", style=f"{_PATCH};background:{colour}")


def _line(line: Line) -> Markup:
    whole = line.style is Style.CODE and isinstance(line.words, str)
    words = [line.words] if isinstance(line.words, str | Span) else line.words
    said = code(str(line.words)) if whole else join(*map(_unbroken, words))
    style = _LINES.get(line.style, "") + (f"padding-left:{16 * line.indent}px" * bool(line.indent))
    look = {"style": f"{style}{_CUT if line.low else ''}"} if style or line.low else {}
    whole_of_it = {"title": terminal.plain(line.words)[:1000]} if line.low else {}
    return element("div", line.mark, said, **look, **whole_of_it)


def _unbroken(words: str | Span) -> Markup:
    """Words whose sizes stay in one line with their units, as those of tables do."""
    if isinstance(words, Span) and words.style is Style.EXCERPT:
        return element("span", _span(words), style=_BOXED)
    if isinstance(words, Span) and words.style is Style.CODE:
        short = len(words.text) <= _SHORTEST
        return (
            element("span", _span(words), style="display:inline-block") if short else _span(words)
        )
    return Markup(terminal.with_units(_words(words)))


def bar(shown: Bar) -> Markup:
    """Parts side by side, each with its words when pointed at."""
    height, least = (4, 60) if shown.thin else (10, 120)
    pieces = [
        element(
            "div",
            title=f"{part.label} {format_bytes(part.size)}",
            style=f"width:{min(100 * part.size / (shown.whole or 1), 100):.2f}%;"
            f"height:{height}px;background:{part.colour}",
        )
        for part in shown.parts
        if part.size > 0
    ]
    return element("div", *pieces, style=f"{_TRACK};height:{height}px;min-width:{least}px")


def legend(parts: Sequence[Part]) -> Markup:
    """The colours of bars, each with what it stands for."""
    names = [element("span", swatch(part.colour), part.label) for part in parts]
    style = "display:flex;flex-wrap:wrap;gap:0 14px;opacity:0.85;font-size:0.92em;padding:2px 0"
    return element("div", *names, style=style)


def picture(png: bytes, words: str, width: int = 920, key: str = "") -> Markup:
    """An image that the page holds itself; of at most `width` pixels. key: by which it is found."""
    data = base64.b64encode(png).decode("ascii")
    style = f"display:block;width:100%;max-width:{width}px;height:auto"
    found = {"data-gpumem": key} if key else {}
    return element("img", src=f"data:image/png;base64,{data}", alt=words, style=style, **found)


def _rows(lines: Sequence[str]) -> Markup:
    return Markup("\n".join(join(line) for line in lines))


def _change(change: Change) -> Markup:
    """Removed lines reddish, added ones greenish, each with its sign."""
    rows = []
    for sign, text in change.lines[:_CHANGED]:
        back = f";background:{_BACK[sign]}" if sign in _BACK else ""
        style = f"white-space:pre;padding:0 8px;min-width:max-content{back}"
        rows.append(element("div", f"{sign or ' '} {text}", style=style))
    cut = len(change.lines) - _CHANGED
    more = _line(Line(f"... and {cut} more lines", Style.FAINT)) if cut > 0 else EMPTY
    return join(element("div", *rows, dir="ltr", style=_CHANGE), more)
