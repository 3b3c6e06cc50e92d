"""Predicts a cell on a small card, after the cells before it."""

from __future__ import annotations

import pytest


@pytest.fixture
def predicted(notebook):
    """The report of a prediction; of a run, with `%%gpumem`."""

    def predicted(cell, card, earlier, magic="%%gpucheck"):
        with notebook(card) as one:
            for text in earlier:
                result, said = one.run(text)
                assert result.success or "# raises" in text, said
            one.run(f"{magic} -o _predicted\n{cell}")
            return one.shell.user_ns["_predicted"]

    return predicted
