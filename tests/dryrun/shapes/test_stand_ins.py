"""Numbers nobody knows: where they were needed, and where they decided."""

from __future__ import annotations

import pickle
import sys

import pytest
import torch

from gpumem_magic import predict
from gpumem_magic.dryrun.shapes.stand_ins import Guesses, stand_in

HERE = __file__


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.float16, 0.5), (torch.int32, 1), (torch.bool, False), (torch.complex64, 0.5 + 0j)],
)
def test_a_stand_in_is_of_the_tensors_kind(dtype, value):
    found = stand_in(dtype)
    assert found == value
    assert type(found) is type(value)


def test_a_note_names_the_line_and_what_it_needed():
    guesses = Guesses({HERE: "line "})
    guesses.needed("a")
    guesses.needed("b", decides=True)
    line = sys._getframe().f_lineno
    assert guesses.flow_depends
    assert guesses.notes() == (
        f"Line {line - 2} needs values that a dry run does not know (a): stand-ins were used.",
        f"Line {line - 1} goes by values that a dry run does not know (b): one way was taken.",
    )


def test_outside_the_cell_there_is_no_line():
    guesses = Guesses({"<another cell>": "line "})
    guesses.needed("a")
    assert guesses.notes()[0].startswith("Code outside the cell needs")


def test_each_place_that_asks_has_its_own_patience():
    printed = predict(
        "import torch\n"
        "big = torch.randn(1000, 1000, device='cuda')\n"
        "unknown = big.sum() > 0\n"
        "found = {bool(unknown) for _ in range(600)}\n"
        "found |= {bool(unknown) for _ in range(600)}\n"
        "print(found)\n",
        {},
        gpu="T4",
    ).output
    assert printed == "{True}\n"


def test_a_number_tells_when_it_is_compared():
    guesses = Guesses({HERE: "line "})
    mean = (guesses.number(0.5) * 3 + 1) / 2
    assert isinstance(mean, float)
    assert f"{mean:.2f}" == "1.25"
    assert not guesses.flow_depends
    assert (mean < 9) is True
    assert guesses.flow_depends


def test_numbers_are_numbers():
    guesses = Guesses({HERE: "line "})
    whole = guesses.number(3)
    assert list(range(whole)) == [0, 1, 2]
    assert pickle.loads(pickle.dumps(whole)) == 3
    assert type(pickle.loads(pickle.dumps(whole))) is int
    assert guesses.number(True) is True
    assert guesses.number("text") == "text"


def test_a_place_that_always_gets_the_same_answer_gets_the_other_one_at_last():
    guesses = Guesses({HERE: "line "})

    def ask():
        return guesses.decision(sys._getframe(), usual=False)

    answers = [ask() for _ in range(1002)]
    assert [i for i, answer in enumerate(answers) if answer] == [1000]
