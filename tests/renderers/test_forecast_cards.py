"""One cell on many cards, as a table of text and of HTML."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumem_magic.renderers.terminal import width
from gpumem_magic.units import GIB
from gpumem_magic.values.forecast import Forecast
from gpumem_magic.values.recording import Device

A100 = Device("NVIDIA A100-SXM4-80GB", 0, 80 * GIB, (8, 0), virtual=True)


def cards_text(reports):
    return Forecast(tuple(reports)).text()


def cards_html(reports):
    return Forecast(tuple(reports))._repr_mimebundle_()["text/html"]


@pytest.fixture
def forecast(reports):
    """Does not fit, fits, ends early."""
    fits = replace(reports["predicted"](), name="train", device=A100)
    return (reports["unfit"](), fits, replace(reports["raised"](), name="train"))


def test_golden(forecast, same_as_golden):
    same_as_golden("cards.txt", cards_text(forecast) + "\n")
    same_as_golden("cards.html", cards_html(forecast).replace("><", ">\n<") + "\n")


def test_a_line_that_fails_on_several_cards_is_shown_once(reports):
    unfit = reports["unfit"]()
    text = cards_text([unfit, replace(unfit, device=A100)])
    assert text.count("out of memory in line 7") == 2
    assert text.count("optimizer.step()") == 1


def test_each_card_says_its_peak_and_its_verdict(forecast):
    text = cards_text(forecast)
    first, second = forecast[:2]
    row = next(line for line in text.splitlines() if line.startswith("  Tesla T4"))
    assert row.split()[2:4] == ["14.2", "GiB"]
    said = "Probably does not fit: out of memory in line 7, at least 303.50 MiB short:"
    assert f"{said} optimizer.step()" in " ".join(text.split())
    assert f"{A100.name} " in text
    assert "Fits: 79.52 GiB of 80.00 GiB free" in text
    assert "The prediction ends in line 2" in text
    assert first.notes[0].split(":")[0] in text.replace("\n      ", " ")
    assert second.name in text.splitlines()[0]


def test_every_line_fits_80_columns(forecast, report):
    for line in cards_text((*forecast, report)).splitlines():
        assert width(line) <= 80, line


def test_in_html_the_composition_is_in_words_and_to_scale(forecast):
    text = cards_html(forecast)
    assert text.count('scope="row"') == 3
    assert "optimizer state 6.30 GiB" in text
    assert 'title="optimizer state 6.30 GiB"' in text
    assert "3 lines of output of the dry run" in text


def test_of_nothing_it_says_so():
    assert cards_text([]) == "Nothing was predicted."
    assert "Nothing was predicted." in cards_html([])


def test_the_first_line_says_on_how_many_cards_it_fits(reports):
    fits, unfit = reports["predicted"](), reports["unfit"]()
    several = ([fits, fits], [fits, unfit], [unfit, unfit])
    first = [cards_text(reports).splitlines()[0] for reports in several]
    said = [line.rpartition("fits ")[2] for line in first]
    assert said == ["all of 2 cards", "1 of 2 cards", "none of 2 cards"]
