"""Building HTML out of elements, so that no text can get into a page without being escaped."""

from __future__ import annotations

import html
from collections.abc import Mapping

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.figure.palette import COLOURS
from gpumem_magic.renderers.wording import visible
from gpumem_magic.units import format_bytes
from gpumem_magic.values.recording import Category


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


def table(caption: str, head: tuple[str, ...], rows: list[Markup]) -> Markup:
    """A table that scrolls by itself where it is too narrow; the first column of `head` is text."""
    cells = [element("th", text, scope="col", style=HEAD + _side(i)) for i, text in enumerate(head)]
    inner = element(
        "table",
        element("caption", caption, style=CAPTION),
        element("thead", element("tr", *cells, style=PLAIN)),
        element("tbody", *rows),
        style="border-collapse:collapse;margin:0;width:100%;font-size:1em;table-layout:auto",
    )
    return element("div", inner, style="overflow-x:auto;margin:14px 0 0 0")


def row(name: str, *cells: str, indent: int = 0, faint: bool = False) -> Markup:
    """A table row under the heading `name`; cells that are Markup are taken as they are."""
    style = PLAIN + (";opacity:0.8" if faint else "")
    edge = f"{NAME};padding-left:{8 + 24 * indent}px"
    head = element("th", name, scope="row", style=edge)
    return element("tr", head, *(_cell(cell) for cell in cells), style=style)


def _cell(content: str) -> Markup:
    return element("td", content, style=CELL)


def _side(column: int) -> str:
    return ";text-align:right" if column else ";text-align:left"


# JupyterLab lets these properties and values through in a notebook that is not trusted, but no
# var() and no <style>. So the text may have to keep the colour around it, and lines and fills are
# greys that show on light and dark.
ROOT = (
    "color:var(--jp-ui-font-color1, var(--vscode-editor-foreground, inherit));"
    "font-size:13px;line-height:1.5;max-width:920px;text-align:left;overflow-wrap:break-word"
)

PLAIN = "background:transparent"

_EDGE = "padding:3px 8px;border:none;border-top:1px solid rgba(128,128,128,0.25);max-width:none"

CELL = f"{_EDGE};white-space:nowrap;vertical-align:baseline;text-align:right"

NAME = f"{_EDGE};min-width:90px;vertical-align:baseline;text-align:left;font-weight:normal"

HEAD = "padding:3px 8px;border:none;font-weight:normal;opacity:0.7;white-space:nowrap"

CAPTION = "caption-side:top;text-align:left;font-weight:600;padding:2px 8px;color:inherit;margin:0"

_CODE = (
    "padding:0;background:transparent;font-size:0.95em;"
    "font-family:ui-monospace, Menlo, Consolas, monospace"
)

_TRACK = "background:rgba(128,128,128,0.18);border-radius:2px;overflow:hidden;display:flex"


def number(size: str, what: str) -> Markup:
    """A size in large print, and what it is."""
    big = element("strong", size, style="font-size:1.6em;font-weight:600")
    return element("div", big, " ", element("span", what, style="opacity:0.75"))


def small(text: str) -> Markup:
    """A remark below the numbers."""
    return element("div", text, style="opacity:0.75;font-size:0.92em;margin:6px 8px 0 8px")


def code(source: str) -> Markup:
    """A piece of source."""
    return element("code", source, dir="ltr", style=_CODE)


def source(text: str) -> Markup:
    """A line of source, cut where it is long; all of it when pointed at."""
    if len(text) <= 90:
        return code(text)
    return element("span", code(text[:89] + "…"), title=text[:1000])


def bar(parts: list[tuple[str, int, str]], whole: int, width: int, height: int = 10) -> Markup:
    """Parts (label, bytes, colour) side by side at the scale of `whole`, in at least `width` px."""
    pieces = [
        element(
            "div",
            title=f"{label} {format_bytes(size)}",
            style=f"width:{min(100 * size / whole, 100):.2f}%;height:{height}px;"
            f"background:{colour}",
        )
        for label, size, colour in parts
        if size > 0
    ]
    return element("div", *pieces, style=f"{_TRACK};height:{height}px;min-width:{width}px")


def stack(sizes: Mapping[Category, int]) -> Markup:
    """The kinds of memory side by side."""
    parts = [(kind.value, size, COLOURS[kind]) for kind, size in wording.shown(sizes)]
    return bar(parts, sum(sizes.values()) or 1, 120)


def swatch(colour: str) -> Markup:
    """A patch of a colour, for a legend."""
    style = f"display:inline-block;width:10px;height:10px;border-radius:2px;background:{colour}"
    return join(element("span", style=style), " ")
