"""The devices now, as HTML: gauges, kinds of memory, the course of the running cell."""

from __future__ import annotations

from collections.abc import Mapping

from gpumem_magic.glance import Glance
from gpumem_magic.panel import controls
from gpumem_magic.panel.desk import Desk, Draw, Section
from gpumem_magic.panel.live import Live
from gpumem_magic.renderers import html, wording
from gpumem_magic.renderers.document import Bar, Line, Part
from gpumem_magic.renderers.figure import chart
from gpumem_magic.renderers.figure.palette import ALARM, ALLOCATED, CACHED, COLOURS, GROWN, OUTSIDE
from gpumem_magic.renderers.figure.scale import SIGHT
from gpumem_magic.renderers.html import EMPTY, ROOT, Markup, element, join
from gpumem_magic.units import format_bytes, format_size
from gpumem_magic.values.findings import Level
from gpumem_magic.values.recording import Category

FULL, NEARLY_FULL = 0.95, 0.80
"""Shares of a device's memory from which on it is marked."""

_UNTOLD = "#BBBBBB"

_MUCH = 10  # a cache of more than one part of so many is told beside a warning

_DIGITS = "font-variant-numeric:tabular-nums"


def now_html(
    live: Live, kinds: Mapping[Category, int], why_off: str, below_head: bool = False
) -> str:
    """The state of every device. kinds: what the last cell left on the first device, for the time
    when no cell runs. below_head: without what `head_html` says."""
    if not live.glances:
        return controls.told(Line(why_off or "No device was looked at yet."))
    devices = [
        _device(live, index, glance, kinds if index == 0 else {})
        for index, glance in enumerate(live.glances)
    ]
    activity = EMPTY if below_head else _activity(live)
    return element("div", activity, *devices, _course(live), style=f"{ROOT};{_DIGITS}")


def head_html(live: Live) -> str:
    """The first device in short: its name, what is in use of it, what runs."""
    gauges = EMPTY
    for glance in live.glances[:1]:
        name = _named(glance)
        size = glance.level.device_used
        level = ("in use", size) if size is not None else ("reserved", glance.level.reserved)
        of = f" of {format_bytes(glance.device.total)}"
        gauges = join(name, of, _gauge(*level, glance.device.total, ALLOCATED))
    return element("div", gauges, _activity(live), style=f"{ROOT};{_DIGITS}")


def _activity(live: Live) -> Markup:
    if not live.running:
        return element("div", "\u25cb no cell is running")
    said = [element("strong", f"\u25cf running for {live.seconds:.0f} s")]
    if live.place is not None:
        text = wording.visible(live.place.source)
        cut = text if len(text) <= 120 else f"{text[:119]}\N{HORIZONTAL ELLIPSIS}"
        said += [Markup(" \u00b7 "), join(f"line {live.place.number} ", html.code(cut))]
    return element("div", *said, style="overflow-wrap:anywhere")


def _device(live: Live, index: int, glance: Glance, left: Mapping[Category, int]) -> Markup:
    device, level = glance.device, glance.level
    name = _named(glance)
    number = f" (cuda:{device.index})" if len(live.glances) > 1 else ""
    peak = live.highest[index] if index < len(live.highest) and live.seconds else None
    told = glance.kinds if live.running else left
    heading = "by kind" if live.running else "by kind, as the last measured cell left it"
    return element(
        "div",
        element("div", name, number, style="margin-top:8px"),
        _gauge("allocated", level.allocated, device.total, ALLOCATED),
        _gauge("reserved", level.reserved, device.total, CACHED),
        _gauge("device used", level.device_used, device.total, OUTSIDE),
        _fact("limit", f"{format_bytes(device.total)}, the whole card"),
        _fact(_peak_name(live), format_size(peak)) if peak is not None else EMPTY,
        _kinds(told, level, heading),
        _warning(level, device.total),
    )


def _named(glance: Glance) -> Markup:
    kind = "virtual " if glance.device.virtual else ""
    return element("strong", f"{kind}{wording.visible(glance.device.name)}")


def _peak_name(live: Live) -> str:
    return "peak so far" if live.running else "peak of the last cell"


def _gauge(name: str, size: int | None, total: int, colour: str) -> Markup:
    share = (size or 0) / total if total else 0.0
    shown = ALARM if share >= FULL else GROWN if share >= NEARLY_FULL else colour
    percent = f" \u00b7 {wording.format_share(size, total)}" if size is not None and total else ""
    sign = f"  {_sign(share)}" if share >= NEARLY_FULL else ""
    text = f"{format_size(size)}{percent}{sign}"
    bar = html.bar(Bar((Part(name, size or 0, shown),), total))
    return element("div", _row(name, text), bar, style="margin:3px 0")


def _row(name: str, text: str) -> Markup:
    style = "display:flex;justify-content:space-between;flex-wrap:wrap;gap:0 12px"
    return element("div", element("span", name), element("span", text), style=style)


def _fact(name: str, text: str) -> Markup:
    return element("div", _row(name, text), style="margin:3px 0")


def _sign(share: float) -> str:
    return "\u203c nearly full" if share >= FULL else "\u26a0 high"


def _warning(level: Level, total: int) -> Markup:
    """What is to be feared, in words."""
    used = level.device_used if level.device_used is not None else level.reserved
    share = (used or 0) / total if total else 0.0
    if share < NEARLY_FULL:
        return EMPTY
    bound = "95" if share >= FULL else "80"
    text = f"{_sign(share)}: more than {bound} % of this device is in use, "
    text += f"{format_bytes(total - (used or 0))} are left."
    cached = (level.reserved or 0) - (level.allocated or 0)
    if cached * _MUCH > total:
        text += f" {format_bytes(cached)} of what is in use is PyTorch's cache, which new tensors "
        text += "take first."
    colour = ALARM if share >= FULL else GROWN
    return element(
        "div", text, style=f"border-left:4px solid {colour};padding:2px 8px;margin:4px 0"
    )


def _kinds(kinds: Mapping[Category, int], level: Level, heading: str) -> Markup:
    """What is allocated, by kind; what is not known yet is one part of its own."""
    allocated = level.allocated or 0
    shown = wording.shown(kinds)
    known = sum(size for _, size in shown)
    if not allocated or not shown or known > allocated:
        return EMPTY
    parts = [Part(kind.value, size, COLOURS[kind]) for kind, size in shown]
    if allocated > known:
        parts.append(Part("not sorted before the cell ends", allocated - known, _UNTOLD))
    named = [Part(f"{p.label} {format_size(p.size)}", p.size, p.colour) for p in parts]
    bar = html.bar(Bar(tuple(parts), allocated))
    return element("div", heading, bar, html.legend(named), style="margin:6px 0")


def _course(live: Live) -> Markup:
    """The first device's memory since the cell began."""
    if len(live.trail) < 3:  # one look and the end: there is no course to see
        return EMPTY
    allocated, reserved = [list(column) for column in zip(*live.trail, strict=True)]
    total = live.glances[0].device.total
    most = max(*allocated, *live.highest[:1], 1)
    near = max(reserved) <= SIGHT * most  # else the cell's course would be flat below a large cache
    highest = max(most, *reserved) if near else most
    top = min(total, highest * 3 // 2) if total else highest
    layers = [
        chart.area(allocated, top, ALLOCATED),
        *([chart.line(reserved, top, CACHED)] if near else []),
        *([chart.limit(total, top)] if total <= top else []),
    ]
    peak = format_bytes(live.highest[0]) if live.highest else "unknown"
    what = f"Memory since the cell began: {format_bytes(allocated[-1])} allocated, peak {peak}"
    below = chart.ends("cell began", f"{live.seconds:.0f} s")
    return chart.chart(what, top, layers, 110, below)


class NowSection(Section):
    """Gauges of every device; follows a running cell."""

    title = "Now"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.picture = controls.html()
        self.box = self.framed(self.picture)

    @property
    def pieces(self) -> tuple[Draw, ...]:
        """The gauges."""
        return (self.draw,)

    def draw(self) -> None:
        """Look at the devices and show them; in the module, the first of them on every tab."""
        desk = self.desk
        desk.follower.look()
        live = desk.follower.live
        if desk.front is None:
            self.picture.value = now_html(live, self.state.left(), desk.host.why_off)
        else:
            whole = desk.front.tab == self.title
            body = now_html(live, self.state.left(), desk.host.why_off, True) if whole else ""
            desk.front.show("now", {"head": head_html(live), "body": body})
