"""From the ways to blocks to holdings, each block once, summed by what holds it; and the inventory
of them: what the device shows = allocated + cached + context + others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpumem_magic.sources.device_memory import DeviceMemory
from gpumem_magic.sources.holders.folding import folded
from gpumem_magic.sources.holders.found import Found
from gpumem_magic.sources.objects.allocation_sites import AllocationSite
from gpumem_magic.values.findings import Level
from gpumem_magic.values.inventory import HolderKind, Holding, Inventory
from gpumem_magic.values.recording import Category

_ALSO = 6
_NO_SITE = AllocationSite(None, None, None)
_NOWHERE = 0  # the address of no block


@dataclass(frozen=True, slots=True)
class Item:
    """One block and what is known of it."""

    kind: HolderKind
    root: str
    path: str
    size: int
    category: Category
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    site: AllocationSite = _NO_SITE
    also: tuple[str, ...] = ()
    unneeded: str | None = None
    cure: str = ""


def items_of(
    memory: DeviceMemory, found: Mapping[int, Found], libraries: Mapping[int, str]
) -> list[Item]:
    """An item for every block in use, and one for what is allocated beside the known blocks."""
    blocks = dict(memory.blocks)
    if memory.unlisted:
        blocks[_NOWHERE] = (memory.reading.allocated or 0) - sum(blocks.values())
    return [
        _item(memory, address, size, found.get(address), libraries.get(address))
        for address, size in blocks.items()
        if address != _NOWHERE or size > 0
    ]


def _item(
    memory: DeviceMemory, address: int, size: int, way: Found | None, library: str | None
) -> Item:
    site = memory.sites.get(address, _NO_SITE)
    told = memory.told.get(address)
    if way is None:
        if library is not None:
            return Item(HolderKind.LIBRARY, library, library, size, Category.WORKSPACE, site=site)
        name = site.name or "nothing that Python sees"
        return Item(HolderKind.UNKNOWN, "", name, size, told or Category.OTHER, site=site)
    holder = way.holder
    return Item(
        kind=holder.kind,
        root=holder.root,
        path=way.path,
        size=size,
        category=way.category(told),
        shape=way.shape,
        dtype=way.dtype,
        site=site,
        also=tuple(way.others),
        unneeded=holder.unneeded,
    )


def summed(items: Iterable[Item], key: Callable[[Item], object] | None = None) -> list[Holding]:
    """Holdings of the items, by default one for each holder and category; the largest first."""
    groups: dict[object, list[Item]] = {}
    for item in items:
        which = (item.kind, item.root, item.category, item.unneeded, item.cure)
        groups.setdefault(key(item) if key else which, []).append(item)
    holdings = [_holding(group) for group in groups.values()]
    return sorted(holdings, key=lambda holding: (-holding.size, holding.name))


def _holding(group: list[Item]) -> Holding:
    first = group[0]
    same = {(item.shape, item.dtype) for item in group}
    shape = first.shape if len({shape for shape, _ in same}) == 1 else None
    dtype = first.dtype if len({dtype for _, dtype in same}) == 1 else None
    places = {(item.site.cell, item.site.line) for item in group}
    known = [(cell, line) for cell, line in places if cell is not None and line is not None]
    newest = max(known, default=None) if len(places) > 1 else None
    cell, line = places.pop() if len(places) == 1 else (None, None)
    also = dict.fromkeys(name for item in group for name in item.also)
    return Holding(
        kind=first.kind,
        name=folded([item.path for item in group]),
        size=sum(item.size for item in group),
        count=len(group),
        category=first.category,
        shape=shape,
        dtype=dtype,
        cell=cell,
        line=line,
        also=tuple(also)[:_ALSO],
        unneeded=first.unneeded,
        newest=newest,
        cure=first.cure,
    )


def by_category(items: Iterable[Item]) -> dict[Category, int]:
    """Bytes of each category, the largest first."""
    sizes: dict[Category, int] = {}
    for item in items:
        sizes[item.category] = sizes.get(item.category, 0) + item.size
    return dict(sorted(sizes.items(), key=lambda entry: -entry[1]))


_UNLISTED = (
    "Sizes and holders are those of the storages that Python comes to; what libraries hold is "
    "unknown, and so is what lies free in reserved memory: {why}."
)
_CUT_SHORT = (
    "The look ended {why}, with not everything looked at: what is unknown here may have a name. "
    "del what is large and no longer needed, then look again."
)


def put_together(
    memory: DeviceMemory,
    holdings: Sequence[Holding],
    sizes: Mapping[Category, int],
    cut_short: str,
) -> Inventory:
    """The inventory of these holdings. cut_short: why not everything was looked at."""
    reading = memory.reading
    context, others, unknown = reading.shares()
    has_unknown = any(holding.kind is HolderKind.UNKNOWN for holding in holdings)
    return Inventory(
        device=memory.device,
        level=Level(reading.allocated, reading.reserved, reading.device_used),
        context=context,
        others=others,
        processes=tuple(p for p in memory.processes if p.pid != os.getpid()),
        cached=memory.free,
        holdings=tuple(holdings),
        by_category=sizes,
        unknown={**reading.unknown, **unknown},
        notes=tuple(_notes(memory, cut_short if has_unknown else "")),
    )


def _notes(memory: DeviceMemory, cut_short: str) -> Iterator[str]:
    if memory.unlisted:
        yield _UNLISTED.format(why=memory.unlisted)
    if cut_short:
        yield _CUT_SHORT.format(why=cut_short)
