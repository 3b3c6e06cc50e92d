"""Who holds a device's memory, for terminals: 80 columns, no colour."""

from __future__ import annotations

from collections.abc import Iterator

from gpumem_magic.renderers import markup
from gpumem_magic.renderers.columns import WIDTH, bar, fit, fit_middle, left, wrap
from gpumem_magic.renderers.inventory import wording
from gpumem_magic.renderers.inventory.wording import Place
from gpumem_magic.renderers.markup import EMPTY, ROOT, Markup, element, join, row, table
from gpumem_magic.renderers.text import notes_rows
from gpumem_magic.renderers.wording import format_share, visible
from gpumem_magic.units import format_bytes, format_change
from gpumem_magic.values.findings import Level
from gpumem_magic.values.inventory import Freed, Holding, Inventory, Recovery

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


_FAINT = "opacity:0.75;font-size:0.92em"


def headline(recovery: Recovery) -> str:
    """What came back, in one sentence."""
    back = _less(recovery.before.reserved, recovery.after.reserved)
    freed = recovery.freed
    if not freed and not back:
        if wording.remedies(recovery.holdings):
            return "Nothing came back: what is still held needs a command of its own, see below"
        return "Nothing came back: nothing was held that no name needs"
    return f"{format_bytes(freed)} let go, {format_bytes(back)} back to the device"


def recovery_text(recovery: Recovery) -> str:
    """The steps for a terminal of 80 columns."""
    device = wording.device_phrase(recovery.device)
    rows = [fit(device, WIDTH), headline(recovery), ""]
    rows.append(f"{'':40}{'allocated':>13}{'reserved':>13}{'device used':>13}")
    rows.append(_level("before", recovery.before))
    for step in recovery.steps:
        rows += _step(step)
    rows.append(_level("after", recovery.after))
    left_over = list(_left(recovery))
    return "\n".join([*rows, *([""] if left_over else []), *left_over])


def _level(name: str, level: Level) -> str:
    sizes = (level.allocated, level.reserved, level.device_used)
    return left(name, 40) + "".join(f"{format_bytes(size):>13}" for size in sizes)


def _step(step: Freed) -> Iterator[str]:
    changes = (format_change(-step.allocated), format_change(-step.reserved))
    yield (left(f"  {visible(step.what)}", 40) + "".join(f"{c:>13}" for c in changes)).rstrip()
    for text in _remarks(step):
        yield from wrap(f"      {text}", "      ")


def _remarks(step: Freed) -> tuple[str, ...]:
    """What the step cost, and what it could not do."""
    cost = f"what it costs: {visible(step.cost)}" if step.cost else ""
    rest = f"not all: {visible(step.left)}" if step.left else ""
    return tuple(filter(None, (cost, rest)))


def _left(recovery: Recovery) -> Iterator[str]:
    found = wording.remedies(recovery.holdings)
    if found:
        yield "Still held, and what lets go of it"
    for remedy in found:
        yield f"{format_bytes(remedy.size):>12}  {remedy.command}"
        for whose in remedy.whose:
            yield from wrap(f"{'':14}{whose}", " " * 16)


def recovery_html(recovery: Recovery) -> str:
    """The steps as one <div> with inline styles."""
    rows = [_html_level("before", recovery.before)]
    rows += [_html_step(step) for step in recovery.steps]
    rows.append(_html_level("after", recovery.after))
    return element(
        "div",
        element("div", wording.device_phrase(recovery.device), style="opacity:0.75"),
        element("div", headline(recovery), style="font-size:1.3em;font-weight:600"),
        table("Step by step", ("", "allocated", "reserved", "device used"), rows),
        _html_left(recovery),
        style=ROOT,
    )


def _html_level(name: str, level: Level) -> Markup:
    sizes = (level.allocated, level.reserved, level.device_used)
    return row(name, *(element("strong", format_bytes(size)) for size in sizes))


def _html_step(step: Freed) -> Markup:
    remarks = (element("div", text, style=_FAINT) for text in _remarks(step))
    changes = (format_change(-step.allocated), format_change(-step.reserved))
    return row(join(visible(step.what), *remarks), *changes, "", indent=1)


def _html_left(recovery: Recovery) -> Markup:
    rows = []
    for remedy in wording.remedies(recovery.holdings):
        whose = (element("div", text, style=_FAINT) for text in remedy.whose)
        rows.append(row(join(markup.code(remedy.command), *whose), format_bytes(remedy.size)))
    caption = "Still held, and what lets go of it"
    return table(caption, ("command", "lets go of"), rows) if rows else EMPTY


def _less(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part
