"""Random recordings against a model in plain Python."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem_magic.trace import build_trace
from gpumem_magic.values.recording import Category, Phase

STEP = st.tuples(
    st.integers(0, 9),  # which block to free, or to allocate
    st.integers(1, 64),  # how large
    st.integers(0, 4),  # line
    st.sampled_from(list(Phase)),
    st.sampled_from([None, None, None, *Category]),
)


def play(s, steps):
    """Each step frees the block of its key, or allocates it where there is none."""
    levels = [s.allocated]
    for key, units, line, phase, category in steps:
        if str(key) in s.live:
            s.free(str(key), line, phase=phase)
        else:
            s.alloc(str(key), 512 * units, line, phase=phase, at=4096 * (key + 1))
            if category:
                s.label(str(key), category)
        levels.append(s.allocated)
    return levels


@settings(max_examples=150, deadline=None)
@given(old=st.lists(st.integers(1, 64), max_size=4), steps=st.lists(STEP, max_size=60))
def test_sums_agree_whatever_happens(script, old, steps):
    s = script("a\nb\nc\nd\n")
    for number, units in enumerate(old):
        s.initial(f"old{number}", 512 * units)
    levels = play(s, steps)
    trace = build_trace(s.recording())

    assert trace.peak.allocated == max(levels)
    assert sum(trace.at_peak.values()) == max(levels)
    assert sum(trace.at_end.values()) == levels[-1]
    assert sum(line.net for line in trace.lines) == levels[-1] - levels[0]
    assert trace.timeline.allocated.tolist() == levels
    assert trace.timeline.by_category.sum(axis=1).tolist() == levels
    assert (trace.timeline.by_category >= 0).all()
    assert sum(block.size for block in trace.blocks) == max(levels)  # fewer than are shown
    assert [line.number for line in trace.lines] == sorted(set(trace.timeline.line[1:].tolist()))
