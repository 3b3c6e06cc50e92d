"""What the numbers read as, and what the code can have asked for."""

from __future__ import annotations

import pytest

from gpumem_magic.oom_text import Outlook, explain, parse
from gpumem_magic.oom_text.meaning import smallest_request

MIB, GIB = 1 << 20, 1 << 30


def text(asked="2.00 GiB", free="1.00 GiB", process="6.00 GiB", more="", cached="64.00 MiB",
         allocated="5.50 GiB", total="8.00 GiB"):  # fmt: skip
    return (
        f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {total} of "
        f"which {free} is free. Including non-PyTorch memory, this process has {process} memory in "
        f"use. {more}Of the allocated memory {allocated} is allocated by PyTorch, and {cached} is "
        "reserved by PyTorch but unallocated."
    )


@pytest.mark.parametrize(
    ("changes", "outlook", "said"),
    [
        ({"process": "7.00 GiB"}, Outlook.FULL, "The card lacked about 1.00 GiB"),
        ({"allocated": "3.00 GiB", "process": "4.00 GiB"}, Outlook.OTHERS, "3.00 GiB of it is"),
        ({"cached": "2.50 GiB", "allocated": "3.00 GiB"}, Outlook.FRAGMENTED, "no single gap"),
        ({"cached": "1.25 GiB", "allocated": "4.00 GiB"}, Outlook.EITHER, "2.25 GiB, enough had"),
        ({"more": "6.00 GiB allowed; ", "free": "2.50 GiB"}, Outlook.LIMITED, "5.56 GiB held"),
        ({"asked": "9.00 GiB"}, Outlook.TOO_LARGE, "9.00 GiB asked for, 8.00 GiB in all"),
        ({"allocated": "9.50 GiB", "free": "0 bytes"}, Outlook.SPILLED, "more than the card's"),
        ({"free": "2.25 GiB"}, Outlook.CONTRADICTORY, "2.25 GiB was free for 2.00 GiB"),
        ({"free": "1.9x GiB"}, Outlook.UNKNOWN, "cannot be told"),
        ({"cached": "2.00 GiB", "allocated": "3.50 GiB"}, Outlook.EITHER, "one piece"),
        # gaps of 1 % hold a small request, which is not why 5.5 GiB are held
        (
            {"asked": "20.00 MiB", "cached": "60.00 MiB", "allocated": "5.50 GiB", "free": "9 MiB"},
            Outlook.EITHER,
            "Nearly full",
        ),
    ],
)
def test_what_it_reads_as(changes, outlook, said):
    explanation = explain(text(**changes))
    assert explanation.outlook is outlook
    assert said in explanation.verdict


def test_forms_with_fewer_numbers(texts):
    told = {form: explain(each).outlook for form, each in texts.items()}
    assert told["reserved"] is Outlook.FRAGMENTED
    assert told["allowed"] is Outlook.LIMITED
    assert told["mps"] is Outlook.LIMITED
    assert told["async"] is Outlook.UNKNOWN
    assert told["endless"] is told["xpu"] is Outlook.TOO_LARGE


@pytest.mark.parametrize(
    ("asked", "least"),
    [
        ("2.00 MiB", 512),
        ("20.00 MiB", MIB + 512),
        ("64.00 MiB", 62 * MIB + 512 - 5244),
        ("33.00 MiB", 33 * MIB - 5244),
        ("1024.00 KiB", MIB - 6),
        ("2.32 GiB", int(2.32 * GIB) - 2 * MIB + 512 - 5368710),
    ],
)
def test_a_segment_is_more_than_what_was_asked_for(asked, least):
    reading = parse(f"CUDA out of memory. Tried to allocate {asked}.")
    assert smallest_request(reading) == pytest.approx(least, abs=2)


def test_a_gap_that_may_hold_a_small_request_leaves_doubt():
    """20 MiB is the segment of a tensor of 1 to 10 MiB: a gap of 3 MiB could have held it."""
    full = {"asked": "20.00 MiB", "free": "512.00 KiB", "process": "8.00 GiB"}
    assert explain(text(**full, cached="3.00 MiB")).outlook is Outlook.EITHER
    assert explain(text(**full, cached="256.00 KiB")).outlook is Outlook.FULL
