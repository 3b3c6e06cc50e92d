"""What one recording tells the next of the blocks that are still there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpumem_magic.trace import build_trace
from gpumem_magic.values.recording import Category

CODE = {category: code for code, category in enumerate(Category)}


def told(recording, *categories):
    codes = np.array([-1 if c is None else CODE[c] for c in categories], np.int8)
    return replace(recording, initial=replace(recording.initial, category=codes))


def test_survivors_are_the_blocks_alive_at_the_end_with_their_categories(script):
    s = script()
    s.alloc("a", 512, 1)
    s.alloc("b", 1024, 2, at=1 << 20)
    s.label("b", Category.BUFFER)
    s.free("a", 3)
    survivors = build_trace(s.recording()).survivors
    assert survivors.address.tolist() == [1 << 20]
    assert survivors.category.tolist() == [CODE[Category.BUFFER]]


@pytest.mark.parametrize("category", [Category.ACTIVATION, Category.GRADIENT, Category.WORKSPACE])
def test_what_an_earlier_recording_told_is_believed(script, category):
    s = script()
    s.initial("old", 4096)
    recording = told(s.recording(), category)
    assert build_trace(recording).at_end == {category: 4096}


def test_a_label_of_this_recording_counts_more(script):
    s = script()
    s.initial("old", 4096)
    s.label("old", Category.PARAMETER)
    assert build_trace(told(s.recording(), Category.INPUT)).at_end == {Category.PARAMETER: 4096}


@pytest.mark.parametrize("before", [None, Category.OTHER])
def test_what_nobody_knew_is_told_by_its_life(script, before):
    from gpumem_magic.values.recording import Phase

    s = script()
    s.initial("old", 4096)
    s.free("old", 1, phase=Phase.BACKWARD)
    assert build_trace(told(s.recording(), before)).at_peak == {Category.ACTIVATION: 4096}
