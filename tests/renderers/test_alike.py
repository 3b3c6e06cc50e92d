"""Storages that are alike become one row, and no row claims more than the report lists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumem_magic.renderers.alike import alike
from gpumem_magic.units import MIB
from gpumem_magic.values.findings import Block
from gpumem_magic.values.recording import Category as K


def block(name, size=4 * MIB, kind=K.PARAMETER, line=1, **more):
    return replace(Block(name, size, (1024, 1024), "float32", kind, line), **more)


def rows(*blocks, peak=None):
    return alike(blocks, sum(b.size for b in blocks) if peak is None else peak)


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (["net[0].weight", "net[2].weight", "net[1].weight"], "net[0..2].weight"),
        (["outputs[9]", "outputs[10]"], "outputs[9..10]"),
        (["a[0][1]", "a[1][0]"], "a[0][1] ..."),
        (["x"], "x"),
        ([None, None], "(parameter)"),
    ],
)
def test_one_name_stands_for_all(names, name):
    (row,) = rows(*map(block, names))
    assert row.name == name
    assert row.size == len(names) * 4 * MIB
    assert row.tensor == (f"{len(names)} x " if len(names) > 1 else "") + "float32[1024, 1024]"


def test_what_differs_in_more_than_a_number_stays_apart():
    found = rows(
        block("net[0].weight", 8 * MIB),
        *(block("net[0].weight"), block("net[0].bias"), block("net[1].weight", line=2)),
        block("net[1].weight", kind=K.GRADIENT),
    )
    assert len(found) == 5


def test_the_most_bytes_come_first():
    found = rows(block("big", 10 * MIB), *(block(f"many[{i}]") for i in range(3)))
    assert [row.name for row in found] == ["many[0..2]", "big"]


def test_where_the_list_is_cut_there_may_be_more_of_the_smallest():
    blocks = block("big", 8 * MIB), *(block(f"w[{i}]") for i in range(3))
    cut = rows(*blocks, peak=100 * MIB)
    assert [row.size_text for row in cut] == ["12.0 MiB+", "8.0 MiB"]
    assert cut[0].tensor.startswith("3+ x ")
    whole = rows(*blocks)
    assert [row.size_text for row in whole] == ["12.0 MiB", "8.0 MiB"]


def nameless(size, shape=None, module="net[0].attn"):
    dtype = "float32" if shape else None
    return block(None, size * MIB, K.ACTIVATION, shape=shape, dtype=dtype, module=module)


def test_what_has_no_name_is_one_row_for_each_module():
    """Of whatever shapes: that with the most bytes is said, and how many others there are."""
    found = rows(
        *(nameless(6, (3, 512, 1024)), nameless(2), nameless(2, (512, 1024), "net[1].attn")),
        *(nameless(2, (512, 1024), f"net[{i}].mlp") for i in range(3)),
    )
    assert [(row.name, row.size_text, row.tensor, row.others) for row in found] == [
        ("net[0..1].attn (activation)", "10.0 MiB", "float32[3, 512, 1024]", "and 2 others"),
        ("net[0..2].mlp (activation)", "6.0 MiB", "3 x float32[512, 1024]", ""),
    ]


def test_shapes_that_are_not_known_are_told_apart_by_their_sizes():
    (row,) = rows(nameless(4), nameless(4), nameless(1))
    assert (row.tensor, row.others) == ("2 x 4.0 MiB", "and 1 other")


def test_where_the_list_is_cut_there_may_be_more_without_a_name():
    found = rows(nameless(6), nameless(4), block("small", MIB), peak=100 * MIB)
    assert found[0].size_text == "10.0 MiB+"
    assert found[0].others == "and 1+ others"


def test_of_no_blocks():
    assert rows() == ()
