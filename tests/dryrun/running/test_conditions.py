"""Loops that wait for unknown values go on until something known ends them."""

from __future__ import annotations

import importlib
import sys

import pytest

from gpumem_magic import predict

SETUP = """
import torch
big = torch.randn(1024, 1024, device="cuda") @ torch.randn(1024, 1024, device="cuda")
unknown = big[0, 0] > 0
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of this text, which the cell calls, as libraries have their loops."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(text):
        (tmp_path / "loops_of_a_library.py").write_text(text)
        importlib.invalidate_caches()

    yield make
    sys.modules.pop("loops_of_a_library", None)


@pytest.mark.parametrize(
    "loop",
    [
        "finished = False\nwhile not finished:\n    n += 1\n    finished = not more(n)",
        "finished = False\nwhile goes_on(finished):\n    n += 1\n    finished = not more(n)",
        "going = True\nwhile going:\n    n += 1\n    going = bool(more(n))",
        "end = False\nwhile not end:\n    n += 1\n    end = not (\n        more(n)\n    )",
        "while True:\n    n += 1\n    if not more(n):\n        break",
        "for n in range(1, 30):\n    if (~more(n)).reshape(1, 1).any(-1).all():\n        break",
    ],
)
def test_a_loop_goes_on_to_its_known_bound(module, loop):
    body = "\n".join(f"    {line}" for line in ("n = 0", *loop.splitlines(), "return n"))
    module(f"import torch\ndef goes_on(finished): return not finished\ndef count(more):\n{body}\n")
    code = """
from loops_of_a_library import count
more = lambda n: unknown & torch.full((), n < 20, device="cuda")
assert count(more) == 20
"""
    report = predict(SETUP + code, {}, gpu="T4")
    assert report.error is None


def test_a_loop_without_a_bound_ends(module):
    module(
        "def count(more):\n"
        "    n, finished = 0, False\n"
        "    while not finished:\n"
        "        n += 1\n"
        "        finished = not more\n"
        "    return n\n"
    )
    report = predict(SETUP + "from loops_of_a_library import count\nn = count(unknown)", {}, "T4")
    assert report.error is None


def test_a_loop_of_the_cell_itself_goes_on_too_and_its_source_can_be_read():
    code = """
import inspect
def more(n): return unknown & torch.full((), n < 20, device="cuda")
assert inspect.getsource(more).startswith("def more(n)")
n, finished = 0, False
while not finished:
    n += 1
    finished = not more(n)
assert n == 20
"""
    assert predict(SETUP + code, {}, gpu="T4").error is None
