"""The out-of-memory error of a report, on its own and inside the report."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpumem_magic.oom_text.cures import EXPANDABLE
from gpumem_magic.renderers import mimebundle, post_mortem_bundle
from gpumem_magic.renderers.out_of_memory import RECOVERY, failure, failure_in_detail
from gpumem_magic.renderers.terminal import width
from gpumem_magic.values.advice import Advice
from gpumem_magic.values.findings import Remedy, Way
from gpumem_magic.values.report import Report

MIB = 1 << 20


def post_mortem_text(report):
    return post_mortem_bundle(report)["text/plain"]


def said(story, **changes):
    return " ".join(post_mortem_text(replace(story, oom=replace(story.oom, **changes))).split())


def test_golden(story, same_as_golden):
    same_as_golden("post_mortem.txt", post_mortem_text(story) + "\n")


def test_golden_html(story, same_as_golden):
    html = post_mortem_bundle(story)["text/html"]
    same_as_golden("post_mortem.html", html.replace("><", ">\n<") + "\n")


def test_it_is_the_section_of_the_report_and_ends_with_the_way_out(story):
    box, details, ending = post_mortem_text(story).split("\n\n")
    assert box in story.text()
    above, table, below = details.partition("The largest of it")
    assert above in story.text()
    assert (
        table not in story.text()
    )  # the report has the largest blocks at the peak, which was then
    assert below.partition("Each of")[2] in story.text()
    assert ending == RECOVERY
    assert story.text().endswith(RECOVERY)
    assert all(width(line) <= 80 for line in post_mortem_text(story).split("\n"))


@pytest.mark.parametrize("predicted", [False, True])
def test_nothing_is_said_twice(story, predicted):
    """A remedy may be, with what comes after it."""
    whole = replace(story, predicted=predicted)
    box = failure(whole, whole.oom).pieces
    details = failure_in_detail(whole, whole.oom).pieces
    assert not {*map(str, box)} & {*map(str, details)}


def test_a_prediction_has_taken_no_memory_to_give_back(story):
    assert RECOVERY not in replace(story, predicted=True).text()
    assert RECOVERY not in replace(story, oom=None).text()


def test_a_report_without_the_error_has_none(story):
    assert post_mortem_text(replace(story, oom=None)) == ""


def test_changes_stand_under_what_they_would_have_done(story):
    text = said(story, remedies=(Remedy(Way.OTHERS, 900 * MIB, True),))
    assert "left room for it: End what else runs on the card, 900.00 MiB in all" in text
    text = said(story, remedies=(Remedy(Way.GRADIENTS, 900 * MIB, False),))
    assert "To fit: at least" in text
    assert "Not enough alone: Call optimizer.zero_grad() before this line: 900.00 MiB" in text
    assert "To fit" not in said(story, remedies=(), missing=None)


def test_what_grew_comes_first_and_is_a_change_that_helps(story):
    grown = Advice("growth", "Memory grew by 1.00 GiB in each pass.", change="Keep less of it.")
    report = replace(story, advice=(grown,), oom=replace(story.oom, remedies=()))
    assert "To fit" not in report.text()
    short = re.sub("<[^>]*>", "", mimebundle(report)["text/html"]).partition("Details")[0]
    assert "To fit" not in short
    assert short.index("Memory grew") < short.index("Truly full")


def test_what_is_not_known_of_others_has_its_reason(story):
    text = said(story, others=None, unknown={"others": "a container hides them"})
    assert "other processes: unknown, because a container hides them" in text


def test_a_limit_and_a_library_are_no_full_card(story):
    text = said(story, allowed=1 << 30, device_free=4 << 30, missing=50 * MIB)
    assert "Stopped by the limit of 1.00 GiB on PyTorch; 50.00 MiB more was needed" in text
    library = said(story, requested=None, segment=None, missing=None, library="cuBLAS (X)")
    assert library.startswith("train \u00b7 OUT OF MEMORY in line 7: cuBLAS (X) asked for it")
    assert "how much is unknown" in library


def test_all_of_it_is_saved_and_loaded(story):
    assert Report.from_dict(story.to_dict()).oom == story.oom
    data = story.to_dict()
    for name in ("blocks", "others", "missing", "allowed", "remedies", "library", "unknown"):
        del data["oom"][name]  # as older versions wrote it
    old = Report.from_dict(data)
    assert "other processes: unknown" not in post_mortem_text(old)
    assert "To fit" not in post_mortem_text(old)


def test_what_the_box_says_no_advice_repeats_before_the_details(story):
    advised = replace(
        story, advice=(Advice("a", "A problem.", change=f"Begin with {EXPANDABLE}."),)
    )
    for way, told in ((Way.EXPANDABLE, 0), (Way.GRADIENTS, 1)):
        oom = replace(story.oom, remedies=(Remedy(way, MIB, True),))
        html = mimebundle(replace(advised, oom=oom))["text/html"]
        assert html.count("Advice: a") == told
