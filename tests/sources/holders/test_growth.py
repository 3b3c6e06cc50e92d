"""Growth from run to run."""

from __future__ import annotations

from gpumem_magic.sources.holders.growth import Growth, Held, held_by_name
from gpumem_magic.values.inventory import Growing, HolderKind, Holding
from gpumem_magic.values.recording import Category


def test_names_that_grew_in_each_run_the_fastest_first():
    growth = Growth(runs=3)
    for size in (100, 200, 300):
        assert growth.growing("cell") == ()
        growth.note("cell", {"a": Held(size, (2, 4)), "b": Held(2 * size), "c": Held(50)})
    growth.note("another", {"a": Held(1000)})

    assert growth.growing("cell") == (
        Growing("b", (200, 400, 600)),
        Growing("a", (100, 200, 300), 4),
    )

    growth.note("cell", {"a": Held(400, (3, 5)), "b": Held(600)})
    assert growth.growing("cell") == (Growing("a", (200, 300, 400), 5),)


def test_what_a_variable_holds_by_whatever_way_is_one_sum():
    held = held_by_name(
        [
            Holding(HolderKind.VARIABLE, "losses", 10, 2, Category.ACTIVATION, cell=7, line=3),
            Holding(HolderKind.GRAPH, "losses[0..1].grad_fn", 90, 2, Category.ACTIVATION),
        ]
    )

    assert held == {"losses": Held(100, (7, 3))}
