from __future__ import annotations

import numpy as np

from gpumem_magic.trace import build_trace
from gpumem_magic.values.recording import Category


def test_every_event_of_a_short_cell_is_a_point(script):
    s = script()
    s.initial("old", 512)
    s.segment(2 << 20, 1)
    s.alloc("a", 1024, 1)
    s.label("a", Category.PARAMETER)
    s.alloc("b", 2048, 2)
    s.free("a", 3)
    timeline = build_trace(s.recording()).timeline
    assert timeline.time.tolist() == [0, 1, 2, 3, 4]
    assert timeline.allocated.tolist() == [512, 512, 1536, 3584, 2560]
    assert timeline.reserved.tolist() == [0, *[2 << 20] * 4]
    assert timeline.line.tolist() == [0, 1, 1, 2, 3]
    assert timeline.peak == 3
    order = list(Category)
    assert timeline.by_category[:, order.index(Category.PARAMETER)].tolist() == [
        0,
        0,
        1024,
        1024,
        0,
    ]
    assert timeline.by_category[:, order.index(Category.OTHER)].tolist() == [
        *(512, 512, 512, 2560, 2560)
    ]
    dtypes = [timeline.time, timeline.allocated, timeline.line, timeline.by_category]
    assert [column.dtype.name for column in dtypes] == ["float64", "int64", "int32", "int64"]


def test_a_long_cell_keeps_its_extremes(script):
    s = script()
    s.alloc("base", 512, 1)
    for i in range(9000):
        s.alloc("a", 512 * (1 + i % 7), 1)
        if i == 4321:
            s.alloc("spike", 1 << 30, 1)
            s.segment(4 << 30, 1)
            s.segment(-(4 << 30), 1)
            s.free("spike", 1)
        s.free("a", 1)
    recording = s.recording()
    timeline = build_trace(recording).timeline
    assert 1300 < len(timeline.time) <= 2000
    assert (np.diff(timeline.time) > 0).all()
    assert timeline.allocated[timeline.peak] == timeline.allocated.max()
    assert timeline.allocated[timeline.peak] == 512 + (1 << 30) + 512 * (1 + 4321 % 7)
    assert timeline.reserved.max() == 4 << 30
    assert timeline.time[-1] == recording.events.time[-1]
    assert (timeline.allocated[1:] == 512).sum() > 600  # the low points between two blocks
    assert (timeline.by_category.sum(axis=1) == timeline.allocated).all()
