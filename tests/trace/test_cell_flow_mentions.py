"""Which names a cell needs from a line on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from gpumem_magic.sources.stacks.callsite import CellFiles
from gpumem_magic.trace.cell_flow import mentioned_later
from gpumem_magic.values.recording import Cell

FILES = CellFiles(SimpleNamespace(transform_cell=TransformerManager().transform_cell))
SOURCE = """%%gpumem
a = load()
b = a + c
!nvidia-smi
for batch in batches:
    out = model(batch)
    outputs.append(out)
print(result.total)
"""


def mentioned(line, source=SOURCE, **cells):
    others = {name: FILES.with_code(Cell(text, name)) for name, text in cells.items()}
    return mentioned_later(FILES.with_code(Cell(source, "<cell>")), line, others)


def test_from_the_statement_on_and_of_a_loop_all():
    assert mentioned(8) == {"print", "result"}
    assert mentioned(7) == {"batch", "batches", "out", "model", "outputs", "print", "result"}
    assert {"a", "b", "c"} <= mentioned(3)
    assert "load" not in mentioned(3)


def test_functions_of_every_cell_may_be_called():
    assert "teacher" in mentioned(8, other="def step(x):\n    return teacher(x)\nstudent = 1\n")
    assert "student" not in mentioned(8, other="def step(x):\n    return teacher(x)\nstudent = 1\n")


@pytest.mark.parametrize("source", ["a = (", "eval('x')", "f(**globals())", "x = 1\0"])
def test_where_it_cannot_be_told_it_is_not(source):
    assert mentioned(1, source) is None
    assert mentioned(None) is None


def test_lines_of_ipython_hide_nothing():
    source = "files = !ls {folder}\na = load(files)\nb = a + c\n%timeit step(model)\nprint(1)\n"
    assert {"a", "b", "c", "step", "model", "print"} <= mentioned(3, source)
    assert not {"folder", "load"} & mentioned(3, source)
    assert "folder" in mentioned(1, source)
