"""Which line ran when: runs, and groups with room for a label."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpumem_magic.renderers.figure.runs import Run, group, runs_of


def runs(*lines):
    return runs_of(np.array(lines, np.int32))


def three_wide(run):
    return run.stop - run.start >= 3


def test_equal_neighbours_are_one_run_and_zero_is_a_gap():
    assert runs(1, 1, 0, 3, 3, 3) == (Run(0, 2, 1, 1), Run(3, 6, 3, 3))
    assert runs() == ()


def test_short_runs_join_under_one_label():
    grouped = group(runs(1, 4, 2, 3, 3, 3, 5, 6), three_wide)
    assert [r.label for r in grouped] == ["1-4", "3", "5-6"]


def test_passes_of_a_loop_too_short_to_tell_apart_are_one_group():
    assert [r.label for r in group(runs(*[1, 2, 3] * 20), three_wide)] == ["1-3"]


def test_wide_runs_stay_apart():
    assert [r.label for r in group(runs(*[4] * 5, *[5] * 5), three_wide)] == ["4", "5"]


@given(st.lists(st.integers(0, 5), max_size=60))
def test_groups_cover_the_same_points_in_order(lines):
    covered = [i for r in group(runs(*lines), three_wide) for i in range(r.start, r.stop)]
    assert covered == [i for i, line in enumerate(lines) if line]
