"""Words and numbers that text, HTML and figures share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumem_magic.renderers import wording
from gpumem_magic.units import GIB


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 ms"), (0.0123, "12 ms"), (0.0999, "0.1 s"), (0.84, "0.8 s"), (59.96, "1 min 00 s"),
     (125.4, "2 min 05 s")],
)  # fmt: skip
def test_format_seconds(seconds, said):
    assert wording.format_seconds(seconds) == said


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [(1, 3, "33 %"), (1, 10**6, "<1 %"), (0, 5, "0 %"), (5, 5, "100 %"), (None, 5, ""), (1, 0, ""),
     (1, None, "")],
)  # fmt: skip
def test_format_share(part, whole, said):
    assert wording.format_share(part, whole) == said


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("a\tb", "a    b"),
        ("a\nb\rc", "a b c"),
        ("\x1b[1m", "\\x1b[1m"),
        ("\u202eevil", "\\u202eevil"),
        ("\ud800", "\\ud800"),
        ("שלום 数据 \U0001f469\u200d\U0001f4bb", "שלום 数据 \U0001f469\u200d\U0001f4bb"),
    ],
)
def test_visible(raw, seen):
    assert wording.visible(raw) == seen


def test_how_the_numbers_came_about(story, reports):
    real = replace(story, device=replace(story.device, virtual=False))
    assert wording.device_phrase(story) == "virtual Tesla T4"
    assert wording.device_phrase(real) == "measured on Tesla T4"
    assert wording.device_phrase(reports["predicted"]()) == "predicted for Tesla T4"
    assert wording.device_total(real).startswith("nvidia-smi shows")
    assert wording.device_total(story).startswith("nvidia-smi would show")


def test_full_or_fragmented(story):
    def said(fragmented, free=19 << 20):
        oom = replace(story.oom, fragmented=fragmented, reserved_free=free)
        return wording.oom_in_short(oom).lower()

    assert said(True, free=2 << 30).startswith("fragmented")
    assert said(True).startswith("full")
    assert said(False).startswith("truly full")
    assert "unknown" in said(None)


def test_in_short_it_is_only_what_was_missing(story):
    assert wording.oom_in_short(story.oom) == "Truly full: 303.50 MiB more was needed"
    unknown = replace(story.oom, missing=None)
    assert wording.oom_in_short(unknown) == "Truly full"


def test_the_segment_is_named_where_it_is_not_the_request(story):
    asked = wording.oom_facts(replace(story.oom, requested=3 << 20, segment=20 << 20))[0]
    said = "the operator aten._foreach_sqrt asked for it; PyTorch asked the device for 20.00 MiB"
    assert asked == said


def test_what_was_held_falls_back_to_the_peak_and_says_so(story):
    moment, held = wording.held_then(replace(story, oom=replace(story.oom, held={})))
    assert moment == "allocated at the peak"
    assert held == story.at_peak


def test_parts_sum_to_what_the_device_shows(story):
    parts = wording.device_parts(story)
    assert sum(part.size for part in parts) == story.after.device_used
    used = replace(story.after, device_used=story.after.device_used + GIB)
    assert sum(p.size for p in wording.device_parts(replace(story, after=used))) == used.device_used


def test_an_empty_table_of_lines_says_whether_nothing_happened_or_nothing_is_known(story):
    assert "allocated or freed" in wording.no_lines(replace(story, lines=()))
    unknown = replace(story, lines=(), unknown={"lines": "nobody looked"})
    assert wording.no_lines(unknown) == "By line: unknown, because nobody looked."
