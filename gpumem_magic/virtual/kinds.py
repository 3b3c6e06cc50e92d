"""What kinds of memory a running cell holds, as far as its owners were seen so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from gpumem_magic.sources.objects.owners import Owned
from gpumem_magic.values.recording import Category, LiveBlocks

_CATEGORIES = tuple(Category)


def known_kinds(
    initial: LiveBlocks,
    seen: Sequence[tuple[int, tuple[Owned, ...]]],
    size_of: Callable[[int], int],
) -> dict[Category, int]:
    """Bytes by category of the blocks that are alive now and whose kind is known already.

    initial: what the cell found. seen: owners, as they were found so far, the latest last. size_of:
    the size of the block at an address; raises KeyError where there is none.
    """
    kinds: dict[int, Category] = {}
    if initial.category is not None:
        told = zip(initial.address.tolist(), initial.category.tolist(), strict=True)
        kinds = {address: _CATEGORIES[code] for address, code in told if code >= 0}
    for _, owned in seen[-1:]:
        kinds.update((o.address, o.category) for o in owned if o.category is not None)
    sizes: dict[Category, int] = {}
    for address, category in kinds.items():
        with suppress(KeyError):  # given back since
            sizes[category] = sizes.get(category, 0) + size_of(address)
    return sizes
