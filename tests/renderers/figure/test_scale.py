"""Ticks and limits of the timeline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumem_magic.renderers.figure.scale import limit_of, steps
from gpumem_magic.units import GIB, MIB
from gpumem_magic.values.findings import Level


@pytest.mark.parametrize("top", [1, 2, 511, 512, 5000, 365 * MIB, 14 * GIB, 80 * GIB + 1])
def test_steps_are_few_and_round(top):
    ticks = steps(top)
    step = ticks[1] - ticks[0]
    assert 2 <= len(ticks) <= 7
    assert step & (step - 1) == 0
    assert ticks[0] == 0
    assert top - step < ticks[-1] <= top


def test_the_limit_is_what_others_leave(story):
    assert limit_of(story) == story.device.total - 112 * MIB
    assert limit_of(replace(story, peak=Level(1, 2, None))) == story.device.total
