"""Number by number: what is said of each, what follows, what is missing, what to do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem_magic.oom_text import explain


def facts(explanation):
    return {fact.label: fact for fact in explanation.facts}


def test_a_segment_of_20_mib_stands_for_3_mib_too(texts):
    assert "3 MiB" in facts(explain(texts["capacity"]))["asked for"].meaning


def test_who_has_the_rest_of_the_card(texts):
    found = facts(explain(texts["capacity"]))
    assert found["context"].derived
    assert found["other processes"].derived
    assert found["context"].size.about == (128 << 20)  # 12.50 GiB less 12.25 GiB and 128 MiB
    assert found["other processes"].size.about == (2 << 30) - int(3.25 * (1 << 20))
    assert found["process 4711"].meaning == "another process on the card"


def test_without_this_process_the_rest_stays_undivided(texts):
    found = facts(explain(texts["reserved"]))
    assert "other processes" not in found
    assert found["outside PyTorch"].size.about == int((16 - 14.25) * (1 << 30)) - (512 << 20) - (
        512 << 10
    )
    assert found["reserved"].size.about == int(14.25 * (1 << 30))
    assert found["cached"].derived


def test_every_printed_number_is_in_it_once(texts):
    for form, text in texts.items():
        labels = [fact.label for fact in explain(text).facts]
        assert len(labels) == len(set(labels)), form


def test_impossible_rests_are_unknown(texts):
    text = texts["reserved"].replace("16.00 GiB total", "12.00 GiB total")
    fact = facts(explain(text))["outside PyTorch"]
    assert fact.size is None
    assert "contradict" in fact.meaning


def test_steps_follow_from_the_numbers(texts):
    def first(form):
        return explain(texts[form]).steps[0]

    assert "max_split_size_mb:128" in first("reserved")
    older = texts["cached"].replace("6.00 GiB", "4.00 GiB").replace("64.00 MiB", "2.00 GiB")
    assert "no setting" in explain(older).steps[0]
    assert "nvidia-smi" in first("capacity")
    assert "expandable_segments:True" in explain(texts["capacity"]).steps[-1]
    assert "set_per_process_memory_fraction" in first("allowed")
    assert "mps.empty_cache" in first("mps")
    assert "shapes" in first("endless")
    assert not any("no_grad" in step for text in texts.values() for step in explain(text).steps)


def test_gaps_that_are_little_of_what_is_held_come_last():
    text = (
        "CUDA out of memory. Tried to allocate 90.00 MiB. GPU 0 has a total capacity of 39.39 GiB "
        "of which 60.00 MiB is free. Including non-PyTorch memory, this process has 39.33 GiB "
        "memory in use. Of the allocated memory 38.50 GiB is allocated by PyTorch, and 120.00 MiB "
        "is reserved by PyTorch but unallocated."
    )
    steps = explain(text).steps
    assert "expandable_segments" not in steps[0]
    assert "expandable_segments" in steps[-1]


def test_others_are_ended_where_that_is_enough(texts):
    steps = explain(texts["capacity"]).steps
    assert any("2.00 GiB in all (more than was missing)" in step for step in steps)
    alone = texts["capacity"].replace("12.50 GiB memory", "14.49 GiB memory")
    assert not any("nvidia-smi" in step for step in explain(alone).steps)


def test_what_is_missing_is_named_with_its_reason(texts):
    text = texts["capacity"]
    untold = explain(text[: text.index("Of the")]).untold
    assert "allocated, cached: the text is cut off before it" in untold
    assert explain("").untold == ("the text is empty",)
    assert "Not recognised as an out-of-memory error" in explain("what is this").headline


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=60), st.integers(0, 400), st.integers(0, 400))
def test_no_cut_or_inserted_text_makes_it_raise(inserted, start, end):
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a "
        "total capacity of 14.50 GiB of which 3.25 MiB is free. Process 4711 has 2.00 GiB memory "
        "in use. Including non-PyTorch memory, this process has 12.50 GiB memory in use. 13.00 GiB "
        "allowed; Of the allocated memory 12.25 GiB is allocated by PyTorch, and 128.00 MiB is "
        "reserved by PyTorch but unallocated."
    )
    explanation = explain(text[:start] + inserted + text[end:])
    assert explanation.headline
    assert explanation.verdict
    assert explanation.steps
    assert explanation.untold


@pytest.mark.parametrize("unit", ["KiB", "MiB", "GiB", "bytes"])
def test_huge_numbers_do_no_harm(unit):
    explanation = explain(f"CUDA out of memory. Tried to allocate {'9' * 400}.{'9' * 400} {unit}.")
    assert explanation.steps
