"""Columns of a terminal: wide, narrow and invisible characters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem_magic.renderers.terminal import bar, fit, fit_middle, left, right, width, wrap


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("数据", 4), ("e\u0301", 1), ("\U0001f600", 2), ("", 0)]
)
def test_width(text, columns):
    assert width(text) == columns


@settings(max_examples=50)
@given(st.text(max_size=40), st.integers(2, 30))
def test_fitted_text_is_as_wide_as_asked(text, columns):
    assert width(fit(text, columns)) <= columns
    assert width(fit_middle(text, columns)) <= columns
    assert width(left(text, columns)) == columns


def test_a_name_keeps_both_ends():
    assert fit_middle("model.layers[31].mlp.weight", 15) == "model.l….weight"


def test_a_number_is_never_cut():
    assert right("1023.00 MiB", 4) == "1023.00 MiB"


def test_a_size_is_not_torn_apart():
    for line in wrap("x" * 74 + " 12.00 MiB and more", "  "):
        assert line.count("12.00") == line.count("12.00 MiB")


@pytest.mark.parametrize(("share", "drawn"), [(0, ""), (0.5, "██"), (1, "████"), (2, "████")])
def test_bar(share, drawn):
    assert bar(share, 4) == drawn
