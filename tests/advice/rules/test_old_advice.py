"""When old advice is spoken of: clipping only where memory was meant, a flag where it is read."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rules.old_advice import ClippingIsNotMemory, volatile_readers
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Cell

CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def lines(source):
    cell = Code(Cell(source, "<cell>"), {"torch": "torch"})
    nothing = SimpleNamespace(levels=lambda *_: np.zeros(1), of=lambda *_: None)
    found = ClippingIsNotMemory().find(SimpleNamespace(lives=nothing), cell, Names())
    return [advice.line for advice in found]


@pytest.mark.parametrize(
    "source",
    [
        f"{CLIP}  # avoids OOM",
        f"# reduce memory usage\n# of the gradients\n{CLIP}",
        f"print('clip: limit GPU memory')\n{CLIP}",
        f"{CLIP}\nprint('clipped gradients to save memory')",
    ],
)
def test_words_about_memory(source):
    assert len(lines(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        CLIP,
        f"{CLIP}  # stability",
        f"{CLIP}  # does not save memory",
        f"# keep the memory bank normalised\n{CLIP}",
        f"{CLIP}\n# free GPU memory\ntorch.cuda.empty_cache()",
        f"print('GPU memory:', torch.cuda.memory_allocated())\n{CLIP}",
        "# clipping saves memory\nx = 1",
    ],
)
def test_silence_without_them(source):
    assert lines(source) == []


def test_readers_of_a_volatile_variable_by_any_way():
    # GIVEN a chain from a flagged Variable, and a statement that has nothing to do with it
    source = "v = Variable(x, volatile=True)\ny = v + 1\nsize = v.shape\nz = f(y)\nother = f(x)"
    cell = Code(Cell(source, "<cell>"))
    # WHEN its readers are looked for
    (found,) = volatile_readers(cell, Names()).values()
    # THEN all are found but that one
    assert sorted(statement.lineno for statement in found) == [1, 2, 3, 4]


def test_a_variable_without_the_flag_is_none():
    cell = Code(Cell("v = Variable(x, volatile=False)\ny = v + 1", "<cell>"))
    assert volatile_readers(cell, Names()) == {}
