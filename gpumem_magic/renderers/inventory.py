"""Who holds a device's memory, for terminals: 80 columns, no colour."""

from __future__ import annotations

from collections.abc import Iterator

from gpumem_magic.inventory import Holding, Inventory
from gpumem_magic.renderers import inventory_wording as wording
from gpumem_magic.renderers.columns import WIDTH, bar, fit, fit_middle, left, wrap
from gpumem_magic.renderers.inventory_wording import Place
from gpumem_magic.renderers.text import notes_rows
from gpumem_magic.renderers.wording import format_share
from gpumem_magic.units import format_bytes

_HOLDINGS = 12  # a screenful; HTML and JSON have more
_PROCESSES = 5


def inventory_text(inventory: Inventory) -> str:
    """The whole of it, ending without a newline."""
    device = wording.device_phrase(inventory.device)
    sections = [
        [fit(f"{device} · {wording.headline(inventory)}", WIDTH)],
        list(_places(inventory)),
        list(_holders(inventory)),
        list(_unneeded(inventory)),
        notes_rows(inventory.notes),
    ]
    rows = "\n\n".join("\n".join(section) for section in sections if section)
    return "\n".join(row.rstrip() for row in rows.split("\n"))


def _places(inventory: Inventory) -> Iterator[str]:
    total = inventory.device.total
    yield "On the card"
    for place in wording.places(inventory):
        yield _place(place, total, 2)
        for part in place.parts[: None if place.label == "allocated" else _PROCESSES]:
            yield _place(part, total, 4)
    for fact in (*wording.unused_facts(inventory.cached), *wording.reasons(inventory.unknown)):
        yield from wrap(f"  {fact}", "    ")


def _place(place: Place, total: int, indent: int) -> str:
    name = left(" " * indent + place.label, 30)
    size = place.size or 0
    share = format_share(place.size, total)
    gauge = bar(size / total if total else 0, 28)
    return f"{name}{format_bytes(place.size):>12}{share:>7}  {gauge}"


def _holders(inventory: Inventory) -> Iterator[str]:
    if not inventory.holdings:
        yield "No tensor is on this device."
        return
    unborn = wording.births_note(inventory)
    yield f"{'Who holds it':<65}{'' if unborn else 'made in':>15}"
    for holding in inventory.holdings[:_HOLDINGS]:
        yield from holding_rows(holding)
    hidden = inventory.holdings[_HOLDINGS:]
    if hidden:
        size = format_bytes(sum(holding.size for holding in hidden))
        yield f"{size:>12}  ... and {len(hidden)} smaller"
    if unborn:
        yield from wrap(f"  {unborn}", "    ")


def holding_rows(holding: Holding) -> Iterator[str]:
    """A holding in two rows: its bytes, the way to it and its birth; what else is known."""
    name = left(fit_middle(wording.name_of(holding), 50), 50)
    yield f"{format_bytes(holding.size):>12}  {name} {fit(wording.birth(holding), 15):>15}"
    yield fit(f"{'':14}{wording.facts(holding)}", WIDTH)


def _unneeded(inventory: Inventory) -> Iterator[str]:
    found = wording.remedies(inventory.holdings)
    returnable = inventory.cached.returnable
    if not found and not returnable:
        return
    yield "No longer needed, and what lets go of it"
    for remedy in found:
        yield f"{format_bytes(remedy.size):>12}  {remedy.command}"
        for whose in remedy.whose:
            yield from wrap(f"{'':14}{whose}", " " * 16)
    if returnable:
        yield f"{format_bytes(returnable):>12}  {wording.FREE}"
        yield f"{'':14}reserved but unused: back to the device"
