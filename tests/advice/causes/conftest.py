"""Predicts a cell on a small card, after the cells before it."""

from __future__ import annotations

import pytest

from tests.advice.conftest import Notebook
from tests.conftest import fresh_shell


@pytest.fixture
def predicted(notebook):
    """The report of a prediction; of a run, with `%%gpumem`."""

    def predicted(cell, card, earlier, magic="%%gpucheck"):
        with notebook(card) as one:
            set_up(one, earlier)
            return asked(one, cell, magic)

    return predicted


@pytest.fixture(scope="module")
def notebook_before(request):
    """A notebook on a card after some cells, `request.param`, for all tests in a row that ask for
    the same one and only predict."""
    card, *earlier = request.param
    with fresh_shell() as shell:
        one = Notebook(shell, card)
        set_up(one, earlier)
        yield one


def set_up(one, earlier):
    for text in earlier:
        result, said = one.run(text)
        assert result.success or "# raises" in text, said


def asked(one, cell, magic="%%gpucheck"):
    """The report of the cell; a notebook that only predicts is the same before and after it."""
    one.run(f"{magic} -o _predicted\n{cell}", stays=magic == "%%gpumem")
    return one.shell.user_ns.pop("_predicted")


@pytest.fixture
def ask():
    """Asks a notebook for the report of a cell."""
    return asked
