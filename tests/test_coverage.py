"""What benchmarks/coverage.py says became of a cell, from its error."""

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "coverage.py"


@pytest.fixture(scope="module")
def outcome_of():
    """The benchmark's function; by its path, as a package of its name is well known."""
    spec = importlib.util.spec_from_file_location("coverage_benchmark", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
        yield module.outcome_of
    finally:
        del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        ("", "predicted"),
        ("ModuleNotFoundError: No module named 'surely_absent'", "absent"),
        ("ImportError: Requires surely-absent >= 1.0.0", "absent"),
        ("ImportError: It is required. Install with: `pip install -U surely-absent`", "absent"),
        ("ImportError: Requires pytest >= 1.0", "crashed"),
        ("ImportError: requires a GPU with surely_absent", "crashed"),
        ("ImportError: cannot import name 'Absent' from 'torch'", "crashed"),
        ("RuntimeError: Requires surely-absent >= 1.0.0", "crashed"),
        ("NotImplementedError: fork is not supported in a dry run: call it", "refused"),
    ],
)
def test_an_error_tells_what_became_of_the_cell(outcome_of, error, outcome):
    assert outcome_of(error) == outcome
