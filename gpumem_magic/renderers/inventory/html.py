"""Who holds a device's memory, as static HTML for notebooks, trusted or not."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem_magic.renderers import markup
from gpumem_magic.renderers.figure.palette import ALLOCATED, CACHED, COLOURS, OUTSIDE
from gpumem_magic.renderers.inventory import wording
from gpumem_magic.renderers.inventory.wording import Place, Remedy
from gpumem_magic.renderers.markup import EMPTY, ROOT, Markup, element, join, row, table
from gpumem_magic.renderers.wording import format_share
from gpumem_magic.units import format_bytes
from gpumem_magic.values.inventory import Holding, Inventory

_HOLDINGS = 15  # shown at once; the others open on demand
_FOLDED = 100  # more would weigh on the notebook's file; JSON has all
_PROCESSES = 12
_HEAD = ("name", "size", "share", "tensors", "made in")
_FAINT = "opacity:0.75;font-size:0.92em"


def inventory_html(inventory: Inventory) -> str:
    """The whole of it as one <div> with inline styles."""
    device = element("div", wording.device_phrase(inventory.device), style="opacity:0.75")
    size = format_bytes(inventory.level.allocated)
    facts = (*wording.unused_facts(inventory.cached), *wording.reasons(inventory.unknown))
    return element(
        "div",
        device,
        markup.number(size, f"allocated; {wording.headline(inventory)}"),
        _places(inventory),
        *(markup.small(fact) for fact in facts),
        _holders(inventory),
        _unneeded(inventory),
        *(markup.small(note) for note in inventory.notes),
        style=ROOT,
    )


def _places(inventory: Inventory) -> Markup:
    total = inventory.device.total
    rows = []
    for place in wording.places(inventory):
        rows.append(_place(place, total, 0))
        parts = place.parts if place.label == "allocated" else place.parts[:_PROCESSES]
        rows += [_place(part, total, 1) for part in parts]
    return table("On the card", ("", "size", "of the card", ""), rows)


def _place(place: Place, total: int, indent: int) -> Markup:
    colour = COLOURS[place.category] if place.category else _colour(place.label)
    gauge = EMPTY
    if place.size and place.label != "free":
        gauge = markup.bar([(place.label, place.size, colour)], total or 1, 260)
    name = join(markup.swatch(colour), place.label) if place.category else place.label
    size, share = format_bytes(place.size), format_share(place.size, total)
    return row(name, size, share, gauge, indent=indent, faint=bool(indent))


def _colour(label: str) -> str:
    return {"allocated": ALLOCATED, "reserved but unused": CACHED}.get(label, OUTSIDE)


def _holders(inventory: Inventory) -> Markup:
    if not inventory.holdings:
        return markup.small("No tensor is on this device.")
    held = holdings_table("Who holds it", inventory.holdings, inventory.level.allocated)
    unborn = wording.births_note(inventory)
    return join(held, markup.small(unborn)) if unborn else held


def holdings_table(caption: str, holdings: Sequence[Holding], whole: int | None) -> Markup:
    """Holdings in their order, the later ones folded; their share is of `whole` bytes."""
    first, others = holdings[:_HOLDINGS], holdings[_HOLDINGS:]
    inner = table(caption, _HEAD, [_holding(holding, whole) for holding in first])
    if not others:
        return inner
    cut = f"; {_FOLDED} of them" if len(others) > _FOLDED else ""
    size = format_bytes(sum(holding.size for holding in others))
    more = element("summary", f"{len(others)} smaller, together {size}{cut}")
    rest = table("Others", _HEAD, [_holding(holding, whole) for holding in others[:_FOLDED]])
    return join(inner, element("details", more, rest))


def _holding(holding: Holding, whole: int | None) -> Markup:
    others = wording.others(holding)
    also = f" · also {', '.join(others)}" if others else ""
    name = join(
        markup.swatch(COLOURS[holding.category]),
        markup.source(wording.name_of(holding)),
        element("div", f"{holding.kind.value} · {holding.category.value}{also}", style=_FAINT),
    )
    share = format_share(holding.size, whole)
    return row(
        name, format_bytes(holding.size), share, wording.tensors(holding), wording.birth(holding)
    )


def _unneeded(inventory: Inventory) -> Markup:
    rows = [_remedy(remedy) for remedy in wording.remedies(inventory.holdings)]
    returnable = inventory.cached.returnable
    if returnable:
        back = "reserved but unused: back to the device"
        rows.append(_remedy(Remedy(wording.FREE, returnable, (back,))))
    head = ("command", "lets go of")
    return table("No longer needed, and what lets go of it", head, rows) if rows else EMPTY


def _remedy(remedy: Remedy) -> Markup:
    whose = (element("div", text, style=_FAINT) for text in remedy.whose)
    return row(join(markup.code(remedy.command), *whose), format_bytes(remedy.size))
