"""The largest value that fits: with it a cell runs on torch's real allocator, with the next it runs
out of memory."""

from __future__ import annotations

import os
import subprocess

import pytest

pytest.importorskip("torch")

from tests.benches import benchmark_module

pytestmark = pytest.mark.skipif(
    not (os.environ.get("GPUMEM_STUB") and os.environ.get("GPUMEM_STUB_PYTHON")),
    reason="needs the stub device: set GPUMEM_STUB (folder of run.sh) and GPUMEM_STUB_PYTHON",
)

MOST_RUNS = 12
OF_TRANSFORMERS = ("gpt2", "bert")
CASES = [
    ("mlp", "batch_size", "T4"),
    ("lstm", "width", "2GiB"),
    ("vgg", "batch_size", "T4"),
    ("gpt_scratch", "length", "T4"),
    ("gpt2", "batch_size", "T4"),
    ("bert", "batch_size", "T4"),
    ("lstm", "batch_size", "T4"),
    ("lstm", "length", "T4"),
    ("recommender", "batch_size", "T4"),
]


@pytest.fixture(scope="module")
def benchmark():
    """The benchmark, as a module."""
    with benchmark_module("fit") as module:
        yield module


@pytest.fixture(scope="module")
def has_transformers():
    """Whether the Python on the stub device can import transformers."""
    command = [os.environ["GPUMEM_STUB_PYTHON"], "-W", "ignore", "-c", "import transformers"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def finder(benchmark):
    with benchmark.finder() as finder:
        yield finder


@pytest.fixture(scope="module")
def runners(benchmark):
    with benchmark.Runners() as runners:
        yield runners


@pytest.mark.parametrize(("cell", "variable", "card"), CASES)
def test_the_value_found_is_the_largest(
    benchmark, finder, runners, has_transformers, cell, variable, card
):
    if cell in OF_TRANSFORMERS and not has_transformers:
        pytest.skip("the Python on the stub device has no transformers")
    # GIVEN the largest value for a cell on a card, by dry runs with the stub's version of torch
    question = benchmark.Question(cell, variable, card)
    answer = finder.ask(question)
    assert (answer.error, answer.exact) == ("", True)
    assert answer.runs <= MOST_RUNS
    # WHEN the cell runs on the real allocator, on a device of the same size
    proof = benchmark.prove(runners, benchmark.REAL, question, answer.value)
    # THEN it goes through with that value, and not with the next
    assert (proof.at_value, proof.at_next) == ("runs", "out of memory")


def test_a_wrong_value_is_no_proof(benchmark, runners):
    question = benchmark.Question("lstm", "length")
    assert not benchmark.prove(runners, benchmark.REAL, question, 100).holds
    assert not benchmark.prove(runners, benchmark.REAL, question, 100_000).holds
