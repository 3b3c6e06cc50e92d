"""Small charts as hand-written SVG without text, which stands around them: so they can be stretched
to any width, and take a fraction of a millisecond."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpumem_magic.renderers.figure import scale
from gpumem_magic.renderers.figure.palette import ALARM
from gpumem_magic.renderers.html import EMPTY, Markup, element, join

AXIS = 80
"""Pixels left of the picture, for its sizes."""

_FULL = 1000  # the picture's own coordinates, in both directions
_GRID = "rgba(128,128,128,0.35)"
_LABEL = "position:absolute;right:6px;transform:translateY(-50%);white-space:nowrap"
_THIN = {"vector-effect": "non-scaling-stroke"}


def chart(what: str, top: int, layers: Iterable[Markup], height: int, below: Markup) -> Markup:
    """Layers above an axis of sizes from 0 to `top` bytes; `what` is said to who does not see it.

    below: what stands under the picture.
    """
    marks = scale.steps(top)
    labels = [
        element("span", scale.tick(size), style=f"{_LABEL};top:{_y(size, top) / 10:.1f}%")
        for size in marks
    ]
    grid = [_level(size, top, _GRID) for size in marks]
    picture = element(
        "svg",
        *grid,
        *layers,
        viewBox=f"0 0 {_FULL} {_FULL}",
        preserveAspectRatio="none",
        role="img",
        style=f"display:block;width:100%;height:{height}px;overflow:visible",
        **{"aria-label": what},
    )
    beside = f"position:relative;flex:0 0 {AXIS}px;font-size:11px;font-variant-numeric:tabular-nums"
    axis = element("div", *labels, style=beside)
    plot = element("div", picture, style="flex:1 1 auto;min-width:0")
    row = element("div", axis, plot, style="display:flex;margin:12px 0 6px 0")
    beneath = f"margin-left:{AXIS}px;font-size:11px"
    under = element("div", below, style=beneath) if below else EMPTY
    return join(row, under)


def ends(first: str, last: str) -> Markup:
    """What stands under the left and the right end of a picture."""
    style = "display:flex;justify-content:space-between;flex-wrap:wrap;gap:0 8px"
    return element("div", element("span", first), element("span", last), style=style)


def area(values: Sequence[int], top: int, colour: str) -> Markup:
    """What lies below a level that holds until the next value."""
    path = f"M0,{_FULL}{_steps(values, top)}V{_FULL}Z"
    return element("path", d=path, fill=colour)


def line(values: Sequence[int], top: int, colour: str) -> Markup:
    """A level that holds until the next value."""
    path = f"M0,{_y(values[0], top)}{_steps(values, top)}" if values else ""
    return element("path", d=path, fill="none", stroke=colour, **{"stroke-width": "1.5"}, **_THIN)


def limit(size: int, top: int) -> Markup:
    """The limit of the card, dashed."""
    return _level(size, top, ALARM, dashed=True)


def upright(share: float) -> Markup:
    """A line from bottom to top at a share of the width."""
    x = f"{share * _FULL:.0f}"
    ends_ = {"x1": x, "x2": x, "y1": "0", "y2": f"{_FULL}", "stroke-width": "2"}
    return element("line", stroke="currentColor", **ends_, **_THIN)


def box(left: float, right: float, low: int, high: int, top: int, colour: str) -> Markup:
    """A bar between two shares of the width and two sizes."""
    return element(
        "rect",
        x=f"{left * _FULL:.1f}",
        y=f"{_y(high, top)}",
        width=f"{(right - left) * _FULL:.1f}",
        height=f"{_y(low, top) - _y(high, top)}",
        fill=colour,
    )


def cross(left: float, right: float, size: int, top: int) -> Markup:
    """A cross around a size: there memory ran out."""
    y, x1, x2 = _y(size, top), f"{left * _FULL:.1f}", f"{right * _FULL:.1f}"
    path = f"M{x1},{y - 40}L{x2},{y + 40}M{x1},{y + 40}L{x2},{y - 40}"
    return element("path", d=path, stroke=ALARM, **{"stroke-width": "3"}, **_THIN)


def _steps(values: Sequence[int], top: int) -> str:
    """Path commands for a level over the whole width; equal neighbours are drawn as one."""
    count, parts, before = max(len(values), 1), [], -1
    for index, value in enumerate(values):
        y = _y(value, top)
        if y != before:
            parts.append(f"H{index * _FULL // count}V{y}")
            before = y
    return "".join([*parts, f"H{_FULL}"])


def _level(size: int, top: int, colour: str, dashed: bool = False) -> Markup:
    y = f"{_y(size, top)}"
    style = {"stroke-dasharray": "6 4"} if dashed else {}
    ends_ = {"x1": "0", "x2": f"{_FULL}", "y1": y, "y2": y, "stroke-width": "1"}
    return element("line", stroke=colour, **ends_, **style, **_THIN)


def _y(size: int, top: int) -> int:
    return _FULL - round(_FULL * min(max(size, 0), top) / max(top, 1))
