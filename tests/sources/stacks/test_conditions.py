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
        "while n < 50 and more(n):\n    n += 1",
        "while len(range(n)) < 50 and not (~more(n)).all():\n    n += 1",
        "for n in range(1, 30):\n    if not more(n):\n        return n",
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


def test_a_loop_lets_go_of_what_it_deletes(module):
    """As generation with beams does: the last scores are gone when the next ones are made."""
    module(
        "import torch\n"
        "def count(more):\n"
        "    n, finished = 0, False\n"
        "    while not finished:\n"
        "        scores = torch.ones(2**20, device='cuda')\n"
        "        n += 1\n"
        "        finished = not more(n)\n"
        "        del scores\n"
        "    return n\n"
    )
    code = """
from loops_of_a_library import count
more = lambda n: unknown & torch.full((), n < 9, device="cuda")
before = torch.cuda.memory_allocated()
torch.cuda.reset_peak_memory_stats()
count(more)
print(torch.cuda.max_memory_allocated() - before)
"""
    printed = predict(SETUP + code, {}, gpu="T4").output
    assert int(printed) < 2 * 4 * 2**20


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


@pytest.mark.parametrize(
    "loop",
    [
        "if abs(loss - last) < 1e-4:\n        break",
        "if not loss >= 0.6:\n        break",
        "if n >= 40 or loss < 0.6: break",
        "if chosen == 1:\n        break",
    ],
)
def test_numbers_that_nobody_knows_end_no_loop(loop):
    """GIVEN a loss that seems to stand still, or the stand-in of an end token."""
    code = f"""
last = 0.5
for n in range(1, 21):
    loss, chosen = big[0, 0].item(), big.argmax().item()
    {loop}
    last = loss
else:
    n = "all"
assert n == "all"
"""
    report = predict(SETUP + code, {}, gpu="T4")
    assert report.error is None
    assert any("a number that came from a tensor" in note for note in report.notes)


def test_a_count_that_nobody_knows_keeps_indices_within_their_bounds():
    code = """
n, count = 0, (big[0, :7] > 0).sum().item()
while n < count:
    big[0, :7][n]
    n += 1
for n in range(30):
    if n >= count:
        break
    big[0, :7][n]
"""
    assert predict(SETUP + code, {}, gpu="T4").error is None


def test_a_loop_over_a_number_that_stands_still_ends():
    code = "loss = 1.0\nwhile loss > 1e-3:\n    loss = big[0, 0].item()"
    assert predict(SETUP + code, {}, gpu="T4").error is None


@pytest.mark.parametrize(
    "check",
    [
        "if unknown.sum().item():\n    n = 1\n    raise ValueError(n)",
        "if big[0, 0].item() < 1 or big.argmax().item() >= 1:\n    raise IndexError",
        "if not big.min().item() > 2:\n    raise ValueError",
        "if big.max().item() > 2:\n    n = 1\nelse:\n    raise ValueError",
        "assert big.max().item() > 2 and not (big < 0).any(), 'small'",
        "for n in range(1100):\n    if bool(unknown):\n        raise ValueError",
    ],
)
def test_checks_of_unknown_values_find_nothing(module, check):
    body = "\n".join(f"    {line}" for line in check.splitlines())
    module(f"def check(big, unknown):\n{body}\n")
    code = "from loops_of_a_library import check\ncheck(big, unknown)"
    report = predict(SETUP + code, {}, gpu="T4")
    assert (report.error, len(report.notes) > 0) == (None, True)
