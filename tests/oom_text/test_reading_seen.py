"""Texts of errors as people report them, with other numbers: each is read as what it is.

`seen_texts.txt` has above each text who ran out of memory, how that is called, how much was asked
for, and whether the text has no other cause.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumem_magic.oom_text import explain

SEEN = [
    one.partition("\n")[::2]
    for one in (Path(__file__).parent / "seen_texts.txt").read_text().split("=== ")[1:]
]
AROUND = "Traceback (most recent call last):\n  ...\n{}\n[rank0]: cleaning up\n"


@pytest.mark.parametrize(("head", "text"), SEEN, ids=[text[:40] for _, text in SEEN])
def test_a_text_is_read_as_what_it_is(head, text):
    origin, library, asked, sure = (part.strip() for part in head.split("|"))
    for whole in (text, AROUND.format(text)):
        found = explain(whole)
        reading = found.reading
        assert (reading.origin.name, reading.library) == (origin, library)
        assert str(reading.asked.about if reading.asked else "-") == asked
        assert reading.certain is (sure == "certain")
        assert ("may have" in found.headline) is (not reading.certain and origin != "NONE")
