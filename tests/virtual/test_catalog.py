"""The cards: the numbers are sane, and a name is found however it is written."""

from __future__ import annotations

import pytest

from gpumem_magic.virtual.catalog import MODELS, lookup

GIB = 1 << 30


@pytest.mark.parametrize(
    ("key", "capacity"),
    [
        # as public out-of-memory texts print the total capacity, in hundredths of a GiB
        ("K80", "11.17"),
        ("P100-16GB", "15.90"),
        ("T4", "14.74"),
        ("V100-16GB", "15.78"),
        ("V100-32GB", "31.75"),
        ("A10G", "22.06"),
        ("L4", "22.03"),
        ("L40S", "44.40"),
        ("A100-40GB", "39.49"),
        ("A100-80GB", "79.25"),
        ("RTX3060", "11.63"),
        ("RTX3090", "23.58"),
        ("RTX4090", "23.52"),
        ("RTX5090", "31.36"),
        ("H100-80GB", "79.18"),
        ("H200", "139.80"),
        ("B200", "178.35"),
    ],
)
def test_cards_have_the_capacity_that_is_seen_in_public(key, capacity):
    assert f"{lookup(key).total / GIB:.2f}" == capacity


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.key)
def test_every_number_has_a_source_and_is_plausible(model):
    assert model.source.startswith("total: ")
    assert "; context: " in model.source
    assert 0.9 < model.total / 2**30 / _nominal(model) <= 1.0
    assert 0 < model.context < model.total / 8
    assert (3, 7) <= model.capability <= (12, 0)
    assert 10 < model.multiprocessors < 200


def _nominal(model):
    """The gigabytes on the box; every card reports a little less."""
    boxes = (10, 11, 12, 16, 24, 32, 40, 48, 80, 96, 141, 186)
    return min(box for box in boxes if box * 2**30 >= model.total)


def test_keys_are_unique_and_find_themselves():
    assert len({model.key for model in MODELS}) == len(MODELS)
    for model in MODELS:
        assert lookup(model.key) is model
        assert lookup(model.name) is model


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("t4", "T4"),
        ("Tesla T4", "T4"),
        ("a100 80gb", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("rtx 4090", "RTX4090"),
        ("4090", "RTX4090"),
        ("GeForce RTX 3060", "RTX3060"),
        ("h100", "H100-80GB"),
        ("P100", "P100-16GB"),
        ("A10", "A10"),
        ("l4", "L4"),
        (" b200 ", "B200"),
    ],
)
def test_a_name_is_found_in_any_spelling(written, key):
    assert lookup(written).key == key


@pytest.mark.parametrize("family", ["A100", "v100"])
def test_a_family_of_several_cards_asks_which(family):
    with pytest.raises(ValueError, match="more than one card") as raised:
        lookup(family)
    sizes = ("40GB", "80GB") if family == "A100" else ("16GB", "32GB")
    assert all(f"{family.upper()}-{size}" in str(raised.value) for size in sizes)


@pytest.mark.parametrize(
    ("size", "total", "key"),
    [
        ("24GiB", 24 * GIB, "24GiB"),
        ("1024GiB", 1024 * GIB, "1024GiB"),
        ("300MiB", 300 << 20, "300MiB"),
        ("1.5 GB", 3 * GIB // 2, "1536MiB"),
        ("1TiB", 1024 * GIB, "1024GiB"),
    ],
)
def test_a_plain_size_is_a_card_with_exactly_so_much(size, total, key):
    model = lookup(size)
    assert (model.total, model.context, model.key) == (total, 0, key)
    assert lookup(model.key) == model


@pytest.mark.parametrize(
    "wrong", ["T5", "RTX 4900", "h1000", "h20", "a1", "24", "", "gpu", "-3GiB"]
)
def test_a_wrong_name_lists_the_right_ones(wrong):
    with pytest.raises(ValueError, match="unknown card") as raised:
        lookup(wrong)
    assert all(model.key in str(raised.value) for model in MODELS)


def test_a_wrong_name_suggests_the_closest():
    with pytest.raises(ValueError, match="did you mean RTX4090"):
        lookup("RTX 4900")
    with pytest.raises(ValueError, match="did you mean T4"):
        lookup("T5")
    with pytest.raises(ValueError, match="did you mean H100-80GB"):
        lookup("h100x")
    with pytest.raises(ValueError, match="did you mean 24GiB"):
        lookup("24")


def test_a_size_below_one_page_of_memory_is_refused():
    with pytest.raises(ValueError, match="too small"):
        lookup("1KiB")
