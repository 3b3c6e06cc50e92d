"""Who holds a device's memory, and what can go."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpumem_magic.oom_text.cures import FREE, FREE_ALL, FREE_OUTPUTS
from gpumem_magic.renderers.document import (
    Bar,
    Document,
    Folded,
    Legend,
    Line,
    Part,
    Piece,
    Row,
    Section,
    Span,
    Style,
    Table,
    listed,
    notes,
)
from gpumem_magic.renderers.figure import palette
from gpumem_magic.renderers.wording import format_share, reasons, shown, visible
from gpumem_magic.units import format_bytes, format_size
from gpumem_magic.values.inventory import (
    FreeMemory,
    HolderKind,
    Holding,
    Inventory,
)
from gpumem_magic.values.recording import Category, Device

_COMMANDS = {
    HolderKind.EXCEPTION: FREE,
    HolderKind.CYCLE: FREE,
    HolderKind.OUTPUT_HISTORY: FREE_OUTPUTS,
}
_INNER = ("user_ns_hidden", "displayhook", "last_execution_result", "InteractiveTB", "SyntaxTB")
_UNBORN = (
    "In which line each was made is known of measured cells: %%gpumem on top of one, "
    "%gpumem --on for all"
)
_BY_NAME = frozenset(
    {HolderKind.VARIABLE, HolderKind.OPTIMIZER, HolderKind.GRAPH, HolderKind.CACHE}
)
_DELETE = (
    "To let go of what you no longer need: ",
    Span("del\u00a0NAME", Style.CODE),
    ", then ",
    Span(FREE, Style.CODE),
)
_NAMES = 3  # that one row of what is no longer needed says
_HOLDINGS = 12  # a screenful; the others are folded
_FIRST = 3  # that are seen before the others are opened
_PROCESSES = 5
_ALWAYS = ("allocated", "free")  # of the card, told where they are 0 bytes as well
_SEEN = 200  # what is smaller than one part of so many is not named beside a bar, nor listed first


@dataclass(frozen=True, slots=True)
class Place:
    """A part of the device's memory, and its own parts. size: bytes, None where not known."""

    label: str
    size: int | None
    parts: tuple[Place, ...] = ()
    category: Category | None = None


@dataclass(frozen=True, slots=True)
class Remedy:
    """What one command lets go of: bytes, and whose they are."""

    command: str
    size: int
    whose: tuple[str, ...]


def device_phrase(device: Device) -> str:
    """ "virtual Tesla T4 (14.74 GiB)"."""
    kind = "virtual " if device.virtual else ""
    return f"{kind}{visible(device.name)} ({format_bytes(device.total)})"


def headline(inventory: Inventory) -> str:
    """How full the device is."""
    used = inventory.level.device_used
    if used is None:
        return f"{format_bytes(inventory.level.reserved)} reserved by PyTorch"
    free = max(inventory.device.total - used, 0)
    return f"{format_bytes(used)} in use, {format_bytes(free)} free"


def places(inventory: Inventory) -> tuple[Place, ...]:
    """The device's whole memory, part by part, as nvidia-smi adds it up."""
    kinds = [Place(kind.value, size, category=kind) for kind, size in shown(inventory.by_category)]
    found = [
        Place("allocated", inventory.level.allocated, tuple(kinds)),
        Place("reserved but unused", inventory.cached.size),
        Place("context", inventory.context),
        Place("other processes", inventory.others, _processes(inventory)),
    ]
    used = inventory.level.device_used
    if used is not None:
        sizes = [place.size for place in found if place.size is not None]
        rest = used - sum(sizes)
        if rest and len(sizes) < len(found):
            found.append(Place("outside PyTorch", rest))
        elif rest:
            found.append(Place("not accounted for", rest))
        found.append(Place("free", inventory.device.total - used))
    return tuple(place for place in found if place.size != 0 or place.label in _ALWAYS)


def _processes(inventory: Inventory) -> tuple[Place, ...]:
    return tuple(
        Place(f"{process.pid} {visible(process.name)}".strip(), process.used)
        for process in sorted(inventory.processes, key=lambda process: -(process.used or 0))
    )


def unused_facts(cached: FreeMemory) -> tuple[str, ...]:
    """What the reserved but unused memory is good for; nothing where there is none."""
    if not cached.size:
        return ()
    facts = []
    if cached.largest is not None:
        facts.append(f"the largest free piece has {format_bytes(cached.largest)}")
    if cached.in_small_pieces:
        facts.append(f"{format_bytes(cached.in_small_pieces)} lie in pieces below 1 MiB")
    if cached.waiting:
        facts.append(f"another stream may still use {format_bytes(cached.waiting)}")
    if cached.returnable:
        facts.append(f"empty_cache() would return {format_bytes(cached.returnable)}")
    return (f"reserved but unused: {'; '.join(facts)}",) if facts else ()


def name_of(holding: Holding) -> str:
    """The way to the holding, or its kind in parentheses."""
    return visible(holding.name) or f"({holding.kind.value})"


def births_note(inventory: Inventory) -> str:
    """How to learn where things are made, where nothing is known of it."""
    known = any(birth(holding) for holding in inventory.holdings)
    return "" if known or not inventory.holdings else _UNBORN


def birth(holding: Holding) -> str:
    """ "In[3]:5", as far as it is known; "last In[9]:5" of what was made in several places."""
    if holding.newest is not None:
        return f"last In[{holding.newest[0]}]:{holding.newest[1]}"
    if holding.line is None:
        return f"In[{holding.cell}]" if holding.cell is not None else ""
    return f"line {holding.line}" if holding.cell is None else f"In[{holding.cell}]:{holding.line}"


def tensors(holding: Holding) -> str:
    """ "148 tensors float32[768, 768]"."""
    shape = "" if holding.shape is None else str(list(holding.shape))
    kind = f"{visible(holding.dtype or '')}{shape}"
    what = "blocks" if holding.kind in (HolderKind.LIBRARY, HolderKind.UNKNOWN) else "tensors"
    many = f"{holding.count} {what}" if holding.count > 1 else ""
    return " ".join(filter(None, (many, kind)))


def facts(holding: Holding) -> str:
    """What is known of a holding besides its name and size, in one line."""
    known = [holding.kind.value, tensors(holding)]
    if holding.category is not Category.OTHER:
        known.append(holding.category.value)
    if also := others(holding):
        known.append(f"also held by {', '.join(also)}")
    return " · ".join(filter(None, known))


def others(holding: Holding) -> list[str]:
    """What else leads to it, but for IPython's inner places where one of these is the holder."""
    inner = holding.kind in (HolderKind.OUTPUT_HISTORY, HolderKind.EXCEPTION)
    names = [visible(name) for name in holding.also if not (inner and name.startswith(_INNER))]
    more = len(names) - _NAMES
    return [*names[:_NAMES], f"{more} more"] if more > 1 else names


def remedy(holding: Holding) -> str:
    """What to type to let go of what nothing needs; empty where only a person can decide."""
    if holding.unneeded is None:
        return ""
    if holding.cure:
        return visible(holding.cure)
    if holding.category is Category.GRADIENT:
        return _COMMANDS.get(holding.kind, FREE_ALL)
    return _COMMANDS.get(holding.kind, "")


def remedies(holdings: Iterable[Holding]) -> tuple[Remedy, ...]:
    """What the commands would let go of, the largest first; none where all is needed."""
    grouped: dict[str, list[Holding]] = {}
    for holding in holdings:
        if command := remedy(holding):
            grouped.setdefault(command, []).append(holding)
    found = [
        Remedy(command, sum(holding.size for holding in group), _whose(group))
        for command, group in grouped.items()
    ]
    return tuple(sorted(found, key=lambda remedy: -remedy.size))


def _whose(group: list[Holding]) -> tuple[str, ...]:
    """One sentence for each reason, with the names that it holds for."""
    names: dict[str, list[str]] = {}
    for holding in group:
        names.setdefault(visible(holding.unneeded or ""), []).append(name_of(holding))
    return tuple(
        f"{_listed(list(dict.fromkeys(which)))}{f': {why}' if why else ''}"
        for why, which in names.items()
    )


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMES
    return f"{', '.join(names[:_NAMES])}{f' and {more} more' if more > 0 else ''}"


def inventory_document(inventory: Inventory) -> Document:
    """Where the memory of a device is, who holds it, what can go."""
    said = f" allocated; {headline(inventory)}"
    size = Span(format_bytes(inventory.level.allocated), Style.LARGE)
    facts = (*unused_facts(inventory.cached), *reasons(inventory.unknown))
    held = what_names_hold(inventory.holdings, "Held by your own names:")
    parts = tuple(_place_row(place, inventory.device.total) for place in places(inventory))
    unneeded = _unneeded(inventory)
    whole = Table("On the card", ("", "size", "share", ""), parts)
    return (
        Section((Line((device_phrase(inventory.device), " · ", size, said)), *held)),
        Section(_in_short(unneeded), brief=True),
        Section(_in_use(inventory), brief=True),
        *_who_holds(inventory),
        Section(notes(inventory.notes)),
        Folded(
            "Why it can go · the whole card, as nvidia-smi adds it up"
            if unneeded
            else "The whole card, as nvidia-smi adds it up",
            (
                Section(remedy_table("No longer needed, and what lets go of it", unneeded)),
                Section((whole, *(Line(fact, Style.FAINT, 1) for fact in facts))),
            ),
        ),
    )


def _in_use(inventory: Inventory) -> tuple[Piece, ...]:
    """The card as one bar, what PyTorch has allocated by kind, and the size of each part."""
    used = inventory.level.in_use or 0
    found = [part for place in places(inventory) for part in _leaves(place) if part.size]
    parts = [Part(part.label, part.size or 0, _colour(part)) for part in found]
    seen = (one for one in parts if one.size * _SEEN > used or one.label == "free")
    named = (replace(one, label=f"{one.label} {format_size(one.size)}") for one in seen)
    return (Bar(tuple(parts), inventory.device.total or used), Legend(tuple(named)))


def _leaves(place: Place) -> tuple[Place, ...]:
    return place.parts if place.label == "allocated" and place.parts else (place,)


def _place_row(place: Place, total: int) -> Row:
    colour = _colour(place)
    size = place.size if place.size and place.label != "free" else 0
    name = Span(place.label, colour=colour if place.category else "")
    gauge = Bar((Part(place.label, size, colour),), total)
    parts = place.parts if place.label == "allocated" else place.parts[:_PROCESSES]
    inner = tuple(_place_row(part, total) for part in parts)
    share = format_share(place.size, total)
    return Row((name, format_size(place.size), share, gauge), inner=inner)


def _colour(place: Place) -> str:
    known = {
        "allocated": palette.ALLOCATED,
        "reserved but unused": palette.CACHED,
        "free": palette.FREE,
    }
    return (
        palette.COLOURS[place.category]
        if place.category
        else known.get(place.label, palette.OUTSIDE)
    )


def _who_holds(inventory: Inventory) -> Document:
    """The holders; of many those of most first, in short."""
    whole, count = Section(_holders(inventory)), len(inventory.holdings)
    if count <= _FIRST:
        return (whole,)
    allocated = inventory.level.allocated or 0
    most = (_holding(one, allocated) for one in inventory.holdings[:_FIRST])
    rows = tuple(replace(row, below=()) for row in most)
    caption = (
        "Who holds most" if births_note(inventory) else "Who holds most, and where it was made"
    )
    brief = Section((Table(caption, ("", "", "", ""), rows),), brief=True)
    return (brief, Folded(f"All {count} holders, and what each of them is", (whole,)))


def _holders(inventory: Inventory) -> tuple[Piece, ...]:
    if not inventory.holdings:
        return (Line("No tensor is on this device."),)
    holdings, allocated = inventory.holdings, inventory.level.allocated or 0
    rows = [_holding(holding, allocated) for holding in holdings]
    seen = sum(1 for one in holdings[:_HOLDINGS] if one.size * _SEEN >= allocated)
    seen += len(rows) == seen + 1  # to say that one is left out takes as much room as the one
    unborn = births_note(inventory)
    table = Table("Who holds it", _head(inventory), tuple(rows[:seen]))
    what = f"smaller, together {format_bytes(sum(one.size for one in holdings[seen:]))}"
    below = (Line(unborn, Style.FAINT, 1),) if unborn else ()
    return (*listed(table, rows[seen:], what, ".holdings"), *below)


def _head(inventory: Inventory) -> tuple[str, ...]:
    return ("name", "size", "share", "" if births_note(inventory) else "made in")


def _holding(holding: Holding, whole: int | None) -> Row:
    name = Span(name_of(holding), Style.CODE, palette.COLOURS[holding.category])
    # the gradients of a model hang on its name, as its parameters do
    of = " gradients" if holding.category is Category.GRADIENT and holding.name else ""
    size, share = format_size(holding.size), format_share(holding.size, whole)
    return Row(
        ((name, Span(of, Style.FAINT)) if of else name, size, share, birth(holding)),
        (Line(facts(holding), Style.FAINT),),
    )


def _unneeded(inventory: Inventory) -> tuple[Remedy, ...]:
    """What commands would let go of, or give back of what is unused already."""
    found = {one.command: one for one in remedies(inventory.holdings)}
    if returnable := inventory.cached.returnable:
        first = found.get(FREE, Remedy(FREE, 0, ()))
        unused = "reserved but unused: back to the device"
        found[FREE] = Remedy(FREE, first.size + returnable, (*first.whose, unused))
    return tuple(sorted(found.values(), key=lambda remedy: -remedy.size))


def _in_short(found: Sequence[Remedy]) -> tuple[Line, ...]:
    """What can go, and what to type, in a sentence."""
    words: list[str | Span] = []
    for one in found:
        words += [", " if words else "No longer needed: ", f"{format_size(one.size)} ("]
        words += [Span(one.command.replace(" ", "\u00a0"), Style.CODE), ")"]
    return (Line(tuple(words)),) if words else ()


def remedy_table(caption: str, found: Sequence[Remedy]) -> tuple[Piece, ...]:
    """Commands, the bytes that each lets go of, and whose they are."""
    rows = tuple(
        Row(
            (Span(remedy.command, Style.CODE), format_size(remedy.size)),
            tuple(Line(whose, Style.FAINT) for whose in remedy.whose),
        )
        for remedy in found
    )
    return (Table(caption, ("command", "size"), rows),) if rows else ()


def what_names_hold(holdings: Iterable[Holding], said: str) -> tuple[Line, ...]:
    """The names that hold most of what no command lets go of: only a person knows if it goes."""
    sizes: Counter[str] = Counter()
    for one in holdings:
        if one.kind in _BY_NAME and not remedy(one):
            sizes[re.split(r"\W", name_of(one), maxsplit=1)[0]] += one.size
    named = ", ".join(f"{name} {format_size(size)}" for name, size in sizes.most_common(_NAMES))
    return (Line((f"{said} {named}. ", *_DELETE)),) if named else ()
