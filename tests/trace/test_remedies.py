"""Which single change would have left room, measured on the blocks of that moment."""

from __future__ import annotations

import pytest

from gpumem_magic.trace import build_trace
from gpumem_magic.values.findings import Remedy, Way
from gpumem_magic.values.names import Names, owner_of
from gpumem_magic.values.recording import Category, Device, Phase, Reading

MIB = 1 << 20


def remedies(s, **beside):
    """The remedies, where each block is held by the names of its labels, and those `beside`."""
    holders = {}
    for label in s.labels:
        root = owner_of(label.name or "")
        holders[label.address] = frozenset({root, *beside.get(root, ())} - {""}) if root else None
    recording = s.recording(error="OutOfMemoryError", names=Names(holders=holders))
    return build_trace(recording).oom.remedies


def filled(script, source="a = f()\nb = g()\nh(b)\n", at=14):
    """A segment of 20 MiB: `a` has 6 MiB, `b` 4 MiB, and 4 + 2 MiB lie free beside them."""
    s = script(source)
    large = s.segment(20 * MIB, 1)
    s.alloc("a", 6 * MIB, 1, at=large + 4 * MIB)
    s.alloc("rest", 4 * MIB, 1, at=large + 10 * MIB)
    s.alloc("b", 4 * MIB, 2, at=large + at * MIB)
    s.label("a", name="a")
    s.label("b", name="b")
    return s


def test_an_unused_variable_that_leaves_a_gap_large_enough_is_enough(script):
    s = filled(script)
    s.fail(10 * MIB, 3, segment=10 * MIB, device_free=MIB)
    assert Remedy(Way.UNUSED, 6 * MIB, True, "a") in remedies(s)


def test_one_that_leaves_no_such_gap_is_not(script):
    s = filled(script)
    s.fail(11 * MIB, 3, segment=12 * MIB, device_free=MIB)
    assert remedies(s)[-1] == Remedy(Way.UNUSED, 6 * MIB, False, "a")


def test_a_segment_that_becomes_empty_goes_back_to_the_device(script):
    s = script("a = f()\nh()\n")
    s.alloc("a", 20 * MIB, 1, at=s.segment(20 * MIB, 1))
    s.label("a", name="a")
    s.fail(24 * MIB, 2, segment=24 * MIB, device_free=4 * MIB)
    assert remedies(s) == (Remedy(Way.UNUSED, 20 * MIB, True, "a"),)
    s.failure = None
    s.fail(26 * MIB, 2, segment=26 * MIB, device_free=4 * MIB)
    assert remedies(s) == (Remedy(Way.UNUSED, 20 * MIB, False, "a"),)


@pytest.mark.parametrize(
    ("source", "said"), [("a = f()\nh()\n", ["a, view"]), ("a = f()\nh(view)\n", [])]
)
def test_all_names_of_a_variable_have_to_go(script, source, said):
    s = script(source)
    s.alloc("a", 20 * MIB, 1, at=s.segment(20 * MIB, 1))
    s.label("a", name="a")
    s.fail(24 * MIB, 2, segment=24 * MIB, device_free=4 * MIB)
    assert [one.name for one in remedies(s, a={"view"})] == said


def test_where_nobody_looked_who_holds_what_no_variable_is_offered(script):
    s = filled(script)
    s.fail(10 * MIB, 3, segment=10 * MIB, device_free=MIB)
    assert build_trace(s.recording()).oom.remedies == ()


def test_a_variable_that_the_cell_still_needs_is_not_offered(script):
    s = filled(script, "a = f()\nb = g()\nh(a, b)\n")
    s.fail(10 * MIB, 3, segment=10 * MIB, device_free=MIB)
    assert not [one for one in remedies(s) if one.way is Way.UNUSED]


def test_what_is_held_otherwise_too_is_not_offered(script):
    s = filled(script)
    s.label("a", Category.ACTIVATION)
    s.fail(10 * MIB, 3, segment=10 * MIB, device_free=MIB)
    assert not [one for one in remedies(s) if one.way is Way.UNUSED]


def test_gradients_of_the_step_before_but_not_those_in_the_making(script):
    s = filled(script)
    s.label("a", Category.GRADIENT, "net.weight.grad")
    s.fail(10 * MIB, 3, segment=10 * MIB, device_free=MIB)
    assert not [one for one in remedies(s) if one.way is Way.GRADIENTS], "no step has read them"
    s.failure = None
    small = s.segment(2 * MIB, 2)
    s.alloc("step", 512, 2, phase=Phase.OPTIMIZER, at=small)
    s.free("step", 2, phase=Phase.OPTIMIZER)
    s.fail(10 * MIB, 3, segment=10 * MIB, device_free=MIB)
    assert Remedy(Way.GRADIENTS, 6 * MIB, True) in remedies(s)
    s.failure = None
    s.fail(10 * MIB, 3, segment=10 * MIB, device_free=MIB)
    backward = type(s.failure)(**{
        field: getattr(s.failure, field) for field in s.failure.__dataclass_fields__
    } | {"phase": Phase.BACKWARD})  # fmt: skip
    s.failure = backward
    assert not [one for one in remedies(s) if one.way is Way.GRADIENTS]


def test_results_that_the_notebook_keeps(script):
    s = filled(script)
    s.label("a", name="Out[3]")
    s.fail(10 * MIB, 3, segment=10 * MIB, device_free=MIB)
    assert Remedy(Way.HISTORY, 6 * MIB, True) in remedies(s)


def test_growing_segments_against_gaps_which_may_do(script):
    s = filled(script, at=16)
    s.fail(5 * MIB, 3, segment=20 * MIB, device_free=MIB)
    found = [one for one in remedies(s) if one.way is Way.EXPANDABLE]
    assert found == [Remedy(Way.EXPANDABLE, 6 * MIB, None)]


@pytest.mark.parametrize(("others", "enough"), [(12, True), (5, False)])
def test_other_processes(script, others, enough):
    """Of 100 MiB: 20 reserved, 10 beside PyTorch, the rest others' or free."""
    s = filled(script)
    free = 70 - others
    wanted = 70 - others + 8
    s.fail(wanted * MIB, 3, segment=wanted * MIB, device_free=free * MIB)
    after = Reading(14 * MIB, 20 * MIB, (30 + others) * MIB, 30 * MIB)
    card = Device("Card", 0, 100 * MIB, (7, 5), virtual=False)
    trace = build_trace(s.recording(after=after, device=card))
    assert trace.oom.others == others * MIB
    assert trace.oom.missing == 8 * MIB
    assert Remedy(Way.OTHERS, others * MIB, enough) in trace.oom.remedies


def test_what_is_not_known_of_others_has_its_reason(script):
    s = filled(script)
    s.fail(10 * MIB, 3, segment=10 * MIB, device_free=MIB)
    after = Reading(14 * MIB, 20 * MIB, None, None, {"process_used": "the driver hides it"})
    oom = build_trace(s.recording(after=after)).oom
    assert oom.others is None
    assert oom.unknown == {"others": "the driver hides it"}


def test_the_largest_blocks_of_that_moment_and_not_of_the_peak(script):
    s = filled(script)
    s.fail(10 * MIB, 3, segment=10 * MIB, device_free=MIB)
    s.alloc("later", 64 * MIB, 3)
    oom = build_trace(s.recording()).oom
    assert [block.size for block in oom.blocks] == [6 * MIB, 4 * MIB, 4 * MIB]
    assert sum(oom.held.values()) == 14 * MIB


def test_a_library_asks_for_what_nobody_knows(script):
    s = filled(script)
    message = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    s.fail(0, message=message)
    s.failure = type(s.failure)(None, None, None, len(s.rows), -1, Phase.FORWARD, None, message)
    oom = build_trace(s.recording(error_line=3)).oom
    assert (oom.requested, oom.line) == (None, 3)
    assert oom.library == "cuBLAS (CUBLAS_STATUS_ALLOC_FAILED)"
    assert oom.remedies == ()
    assert [block.size for block in oom.blocks] == [6 * MIB, 4 * MIB, 4 * MIB]


@pytest.mark.parametrize(
    ("later", "expected"), [("h()", [("net, opt", 14 * MIB)]), ("opt.step()", [])]
)
def test_a_model_goes_only_with_the_optimizer_that_has_its_parameters(script, later, expected):
    s = script(f"net = f()\nopt = g(net)\n{later}\n")
    large = s.segment(20 * MIB, 1)
    s.alloc("weight", 6 * MIB, 1, at=large)
    s.alloc("state", 8 * MIB, 2, at=large + 12 * MIB)
    s.label("weight", Category.PARAMETER, "net.weight")
    s.label("state", Category.OPTIMIZER_STATE, "opt.state[net.weight]['exp_avg']")
    s.fail(10 * MIB, 3, segment=10 * MIB, device_free=MIB)
    unused = [one for one in remedies(s, net={"opt"}) if one.way is Way.UNUSED]
    assert [(one.name, one.size) for one in unused] == expected
