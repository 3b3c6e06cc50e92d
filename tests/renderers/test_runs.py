"""Which line ran when: runs, and groups with room for a label."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpumem_magic.renderers.runs import Run, group, runs_of


def runs(*lines):
    return runs_of(np.array(lines, np.int32))


def test_equal_neighbours_are_one_run_and_zero_is_a_gap():
    assert runs(1, 1, 0, 3, 3, 3) == (Run(0, 2, 1, 1), Run(3, 6, 3, 3))
    assert runs() == ()


def test_short_runs_join_under_one_label():
    assert [r.label for r in group(runs(1, 4, 2, 3, 3, 3, 5, 6), 3)] == ["1-4", "3", "5-6"]


def test_wide_runs_stay_apart():
    assert [r.label for r in group(runs(*[4] * 5, *[5] * 5), 3)] == ["4", "5"]


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 10))
def test_groups_cover_the_same_points_in_order(lines, least):
    covered = [i for r in group(runs(*lines), least) for i in range(r.start, r.stop)]
    assert covered == [i for i, line in enumerate(lines) if line]
