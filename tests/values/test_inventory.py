"""The values of an inventory add up."""

from __future__ import annotations

from gpumem_magic.values.findings import Level
from gpumem_magic.values.inventory import FreeMemory, Growing, HolderKind, Holding, Inventory
from gpumem_magic.values.recording import Category, Device

DEVICE = Device("Fake GPU", 0, 16 << 30, (7, 5), virtual=True)


def inventory(*holdings):
    return Inventory(
        device=DEVICE,
        level=Level(sum(h.size for h in holdings), 4096, 8192),
        context=0,
        others=0,
        processes=(),
        cached=FreeMemory(0, 0, 0, 0),
        holdings=holdings,
        by_category={},
    )


def test_bytes_by_kind_and_of_what_nothing_needs():
    found = inventory(
        Holding(HolderKind.VARIABLE, "x", 1024, 1, Category.OTHER),
        Holding(HolderKind.VARIABLE, "y", 512, 1, Category.OTHER, unneeded="a reason"),
        Holding(HolderKind.CYCLE, "<Net>", 256, 1, Category.PARAMETER, unneeded="another"),
    )

    assert found.size_of(HolderKind.VARIABLE) == 1536
    assert found.size_of(HolderKind.GRAPH) == 0
    assert found.unneeded == 768


def test_growth_is_from_the_first_run_to_the_last():
    assert Growing("outputs", (100, 150, 300)).growth == 200
