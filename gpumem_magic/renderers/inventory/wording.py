"""The sentences about who holds memory that text and HTML share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpumem_magic.renderers.wording import shown, visible
from gpumem_magic.units import format_bytes
from gpumem_magic.values.inventory import FreeMemory, HolderKind, Holding, Inventory
from gpumem_magic.values.recording import Category, Device

FREE = "%gpucheck --free"
FREE_OUTPUTS = "%gpucheck --free --outputs"
FREE_ALL = "%gpucheck --free --all"
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
_NAMES = 3  # that one row of what is no longer needed says


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
    return tuple(found)


def _processes(inventory: Inventory) -> tuple[Place, ...]:
    return tuple(
        Place(f"{process.pid} {visible(process.name)}".strip(), process.used)
        for process in sorted(inventory.processes, key=lambda process: -(process.used or 0))
    )


def reasons(unknown: Mapping[str, str]) -> tuple[str, ...]:
    """Why numbers are not known, one sentence for each reason."""
    fields: dict[str, list[str]] = {}
    for field, why in unknown.items():
        fields.setdefault(visible(why), []).append(visible(field))
    return tuple(f"unknown: {', '.join(names)}, because {why}" for why, names in fields.items())


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
    if cached.returnable is not None:
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
        known.append(f"also {', '.join(also)}")
    return " · ".join(filter(None, known))


def others(holding: Holding) -> list[str]:
    """What else leads to it, but for IPython's inner places where one of these is the holder."""
    inner = holding.kind in (HolderKind.OUTPUT_HISTORY, HolderKind.EXCEPTION)
    return [visible(name) for name in holding.also if not (inner and name.startswith(_INNER))]


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
