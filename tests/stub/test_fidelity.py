"""Whole cells: dry runs against torch's CUDA code on the stub device."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

from tests.benches import benchmark_module

pytestmark = pytest.mark.skipif(
    not (os.environ.get("GPUMEM_STUB") and os.environ.get("GPUMEM_STUB_PYTHON")),
    reason="needs the stub device: set GPUMEM_STUB (folder of run.sh) and GPUMEM_STUB_PYTHON",
)

QUICK = ["mlp", "accumulation", "vgg", "gpt_scratch", "lstm", "checkpointed", "forgotten_no_grad"]


@pytest.fixture(scope="module")
def fidelity():
    """The benchmark, as a module."""
    with benchmark_module("fidelity") as module:
        yield module


@pytest.fixture(scope="module")
def runners(fidelity):
    with fidelity.Runners() as runners:
        yield runners


def _work(fidelity, name):
    (work,) = [work for work in fidelity.WORKLOADS if work.name == name]
    return work


def _way(fidelity, name):
    (way,) = [way for way in fidelity.WAYS if way.name == name]
    return way


@pytest.mark.parametrize("name", QUICK)
def test_a_dry_run_tells_what_cuda_takes(fidelity, runners, name):
    # GIVEN the same cell as a dry run and on torch's real allocator, with the same torch
    work = _work(fidelity, name)
    real = runners.run(fidelity.REAL, work)
    dry = runners.run(_way(fidelity, "dry"), work)
    assert real.error is None
    assert dry.error is None
    # THEN the peaks are the real ones, within 3 % (allocated) and 8 % (reserved)
    assert abs(fidelity.off(dry, real, "allocated")) <= 3
    assert abs(fidelity.off(dry, real, "reserved")) <= 8
    assert abs(fidelity.off(dry, real, "end")) <= 3


def test_a_cell_that_raises_is_told_and_leaves_the_others_alone(fidelity, runners, tmp_path):
    # GIVEN a cell that fails, and one after it
    work = _work(fidelity, "mlp small")
    broken = fidelity.Workload("mlp", values=(("hidden", -1),))
    outcomes = [runners.run(fidelity.REAL, each) for each in (broken, work)]
    # THEN the first has no sizes but an error, the second is as ever
    assert outcomes[0].allocated is None
    assert "RuntimeError" in outcomes[0].error
    assert outcomes[1].error is None
    assert outcomes[1].allocated > 0


def test_an_error_above_one_percent_is_named_until_its_cause_is_known(fidelity):
    # GIVEN a dry run that is 2 % off, and one that is off only where segments lie otherwise
    real = fidelity.Outcome(1000, 1000, 1000)
    dry = fidelity.Outcome(1020, 1020, 1000)
    results = {"mlp": {"real": real, "dry": dry}}
    assert fidelity.unexplained(results) == [
        "mlp allocated: +2.00 %",
        "mlp reserved: +2.00 %",
    ]
    results["mlp"]["real_up"] = fidelity.Outcome(1000, 1040, 1000)
    results["mlp"]["dry_up"] = fidelity.Outcome(1020, 1040, 1000)
    # THEN the former alone is left
    assert fidelity.unexplained(results) == ["mlp allocated: +2.00 %"]
    assert "segment" in fidelity.why("mlp", results["mlp"], "reserved")
