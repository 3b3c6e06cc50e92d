"""Pieces of HTML that every view of reports is made of."""

from __future__ import annotations

from collections.abc import Mapping

from gpumem_magic.events import Category
from gpumem_magic.renderers import wording
from gpumem_magic.renderers.markup import Markup, element, join
from gpumem_magic.renderers.palette import COLOURS
from gpumem_magic.units import format_bytes

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
