"""The list of advice tells its entries apart before one of them is opened."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("ipywidgets")

from gpumem_magic.panel.advice import label
from gpumem_magic.values.advice import Advice
from tests.renderers.conftest import make_calling


def test_advice_of_one_rule_differs_in_its_label():
    ways = ("Checkpoint the blocks: more time. Price: time.", "Take the batch in 4 pieces.")
    rows = [label(1, Advice("activations", "A lot.", change=way), make_calling()) for way in ways]
    assert rows == [
        "1  activations \u00b7 Checkpoint the blocks: more time",
        "1  activations \u00b7 Take the batch in 4 pieces",
    ]


def test_a_label_leaves_out_what_stands_in_brackets_behind_the_change():
    way = "Take the batch in 4 pieces. (Not written out: its tensors have no names.)"
    told = label(1, Advice("activations", "A lot.", change=way), make_calling())
    assert told == "1  activations \u00b7 Take the batch in 4 pieces"


def test_a_long_change_is_cut():
    told = label(1, Advice("activations", "A lot.", change="Take " * 60), make_calling())
    assert len(told) == 120
    assert told.endswith("\u2026")
