"""What a child sends its parent."""

from __future__ import annotations

import collections
import os
import pickle

import numpy as np
import pytest

from gpumem_magic.isolation import answers
from gpumem_magic.isolation.answers import read_answer, write_answer
from gpumem_magic.isolation.child import DryRunError
from gpumem_magic.values.recording import Action, Cell


class Calling(str):
    """A text that is read as a call."""

    __slots__ = ()

    def __reduce__(self):
        return os.getenv, ("HOME",)


@pytest.mark.parametrize("succeeded", [True, False])
def test_values_of_ours_arrive(succeeded):
    value = (Cell("x = 1", "file"), Action.ALLOC, {"a": {1}}, [b"c", 0.5, None])
    assert read_answer(write_answer(succeeded, value)) == (succeeded, value)


def test_arrays_arrive():
    for array in (np.arange(5), np.ones((2, 3))[:, ::2], np.float32(3)):
        (_, found) = read_answer(write_answer(True, array))
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype


def test_errors_arrive_with_their_place():
    error = DryRunError("why")
    error.place = "here"
    _, found = read_answer(write_answer(False, error))
    assert (type(found), str(found), found.place) == (DryRunError, "why", "here")


def test_texts_of_other_kinds_become_plain_ones():
    _, found = read_answer(write_answer(True, {Calling("name"): Calling("text")}))
    assert found == {"name": "text"}
    assert {type(each) for pair in found.items() for each in pair} == {str}


@pytest.mark.parametrize(
    "thing",
    [
        *(os.system, print, eval, pickle.Unpickler, collections.OrderedDict(), type, np.load),
        *(set, frozenset, bytearray, str),
    ],
)
def test_nothing_else_is_made(thing):
    with pytest.raises(pickle.UnpicklingError, match="an answer holds no"):
        read_answer(pickle.dumps((True, thing)))


class Large:
    """A text of something that is large when it is written out."""

    def __reduce__(self):
        return answers._plain, ([[0] * 9] * 9,)


def test_no_text_is_made_of_other_things():
    with pytest.raises(pickle.UnpicklingError, match="no text of something else"):
        read_answer(pickle.dumps((True, Large())))


def test_what_is_reached_through_a_module_of_ours_is_not_made():
    data = b"\x80\x04\x8c\x1cgpumem_magic.isolation.child\x8c\x0dshutil.rmtree\x93."
    with pytest.raises(pickle.UnpicklingError, match=r"shutil\.rmtree"):
        read_answer(data)
