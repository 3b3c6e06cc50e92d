"""Fits or not, by how much, and how sure that is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpumem_magic.renderers import wording
from gpumem_magic.units import MIB
from gpumem_magic.values.findings import Level


@pytest.fixture
def predicted(reports):
    return reports["predicted"]()


@pytest.fixture
def unfit(reports):
    return reports["unfit"]()


def test_what_fits_says_how_much_of_the_card_stays_free(predicted):
    assert wording.fits(predicted) is True
    assert wording.word(predicted) == "fits"
    used, total = predicted.peak.device_used, predicted.device.total
    assert predicted.free_at_peak == total - used
    assert wording.verdict(predicted) == (
        "Fits: 492.00 MiB of 14.57 GiB in use at the peak, 14.09 GiB free"
    )
    assert wording.failing_line(predicted) is None


def test_where_the_device_is_not_known_what_is_reserved_stands_for_it(predicted):
    peak = replace(predicted.peak, device_used=None)
    assert "380.00 MiB of 14.57 GiB" in wording.verdict(replace(predicted, peak=peak))
    nothing = replace(predicted, peak=Level(None, None, None))
    assert wording.verdict(nothing) == "Fits: unknown of 14.57 GiB in use at the peak, unknown free"


def test_what_does_not_fit_says_where_and_how_much_is_missing(unfit):
    sure = replace(unfit, flow_guessed=False)
    assert wording.fits(sure) is False
    missing = 620 * MIB - sure.oom.device_free
    assert wording.short(sure.oom) == missing
    assert wording.verdict(sure) == (
        "Does not fit: out of memory in line 7, at least 303.50 MiB short"
    )
    assert wording.failing_line(sure) == 7


def test_a_guessed_way_makes_it_probable(unfit, predicted):
    assert wording.verdict(unfit).startswith("Probably does not fit: ")
    assert wording.word(replace(predicted, flow_guessed=True)) == "probably fits"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device_free": None}, "out of memory in line 7"),
        ({"device_free": 700 * MIB}, "out of memory in line 7"),
        ({"segment": None, "device_free": 0}, "out of memory in line 7, at least 620.00 MiB short"),
        ({"segment": 640 * MIB, "device_free": 0},
         "out of memory in line 7, at least 640.00 MiB short"),
        ({"fragmented": True, "reserved_free": 2048 * MIB},
         "out of memory in line 7; the free memory is in pieces that are too small"),
        ({"line": None, "device_free": None}, "out of memory"),
    ],
)  # fmt: skip
def test_only_what_is_known_is_said_of_a_failure(unfit, changes, said):
    assert wording.by_how_much(replace(unfit, oom=replace(unfit.oom, **changes))) == said


def test_another_error_ends_the_prediction_and_is_no_verdict(reports):
    raised = reports["raised"]()
    assert wording.fits(raised) is None
    assert wording.verdict(raised) == (
        "The prediction ends in line 2: AttributeError: 'Tensor' object has no attribute 'nonsense'"
    )
    assert wording.by_how_much(raised).startswith("up to there ")
    nowhere = replace(raised, error_line=None, flow_guessed=True)
    assert wording.verdict(nowhere).startswith("The prediction ends: AttributeError")
    assert wording.word(nowhere) == "ends early"


def test_lines_of_output_are_counted(predicted):
    assert (
        wording.output_phrase(replace(predicted, output="a")) == "1 line of output of the dry run"
    )
    assert wording.output_phrase(replace(predicted, output="a\n\nb\n")).startswith("3 lines ")


def test_notes_are_said_once(predicted, unfit):
    assert wording.notes_of([unfit, predicted, unfit]) == unfit.notes
