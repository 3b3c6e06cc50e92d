"""What benchmarks/coverage.py says became of a cell, from its error."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

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
        ("DryRunError: the dry run came to nothing new in 120 s at line 3", "timed out"),
        ("ConnectionRefusedError: a dry run makes no connections (here: to a.org)", "refused"),
    ],
)
def test_an_error_tells_what_became_of_the_cell(outcome_of, error, outcome):
    assert outcome_of(error) == outcome


@pytest.fixture(scope="module")
def value_between():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FILE.parent))
        from fidelity_events import value_between

        yield value_between
        sys.modules.pop("fidelity_events")


READ = "aten._local_scalar_dense.default"


@pytest.mark.parametrize(
    ("uses", "value"),
    [
        ([], None),
        ([(2, READ)], READ),
        ([(4, READ)], None),  # after they part
        ([(0, "aten.nonzero.default"), (4, READ)], "aten.nonzero.default"),
    ],
)
def test_cells_that_go_by_values_are_told_from_wrong_predictions(value_between, uses, value):
    common = [("alloc", 4096, "", 1), ("free", 4096, "", 1), ("alloc", 2048, "", 2)]
    real = [*common, ("alloc", 1, "", 3), ("alloc", 8192, "", 4)]
    predicted = [*common, ("alloc", 1024, "", 4)]
    assert value_between(real, predicted, uses) == value


def test_a_number_that_was_read_long_before_explains_nothing(value_between):
    real = [("alloc", 4096, "", i) for i in range(20)]
    assert value_between(real, real[:-1], [(2, READ)]) is None
    assert value_between(real, real[:-1], [(18, READ)]) == READ


def test_sides_part_at_the_small_blocks_that_lead_to_a_large_one(value_between):
    common = [("alloc", 4096, "", 1), ("alloc", 1, "", 2)]
    mask = [("alloc", 8 + i, "", 10 + i) for i in range(12)]
    real = [*common, *mask, ("alloc", 8192, "", 3)]
    assert value_between(real, [*common, ("alloc", 2048, "", 3)], [(2, READ)]) == READ
    assert value_between(real, [*common, *mask], [(2, READ)]) is None


def test_answers_of_a_dry_run_are_read_from_what_it_printed_and_heard_by_a_cell():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FILE.parent))
        from fidelity_answers import answers_in, replaying

        sys.modules.pop("fidelity_answers")
    printed = "epoch 1\n" + "".join(
        f"answered: {line}\n"
        for line in ('[":3", 0.5, false]', '["a.py:9", true, false]', '[":3", true, false]')
    )
    assert answers_in(printed) == {":3": [0.5, True], "a.py:9": [True]}
    answers = answers_in(printed + 'answered: [":3", false, true]\n')
    assert answers == {":3": [0.5, False], "a.py:9": [True]}
    cell = "import torch\none = torch.ones(())\nread = one.item(), bool(one), one.item()\n"
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "is_cuda", True)
        for name in ("__bool__", "item"):
            patch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))
        exec(compile(replaying(answers) + cell, "<cell>", "exec"), names)
    assert names["read"] == (0.5, False, 1.0)
