"""The cells of benchmarks/fidelity.py: each runs, computed, on the virtual GPU."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic import predict  # noqa: E402
from gpumem_magic.virtual.catalog import lookup  # noqa: E402
from gpumem_magic.virtual.gpu import VirtualGPU  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
try:
    from fidelity_table import CELLS, WORKLOADS
finally:
    del sys.path[0]

SMALL = [work for work in WORKLOADS if work.live]


@pytest.fixture(scope="module", autouse=True)
def _transformers_is_ready():
    """Its first model puts a method into nn.Module for good."""
    try:
        from transformers import GPT2Config, GPT2Model
    except ImportError:
        return
    GPT2Model(GPT2Config(n_layer=1, n_embd=2, n_head=1, vocab_size=2, n_positions=2))


def test_every_cell_is_in_the_table_and_no_name_twice():
    names = [work.name for work in WORKLOADS]
    assert len(set(names)) == len(names)
    on_disk = {path.stem for path in CELLS.glob("*.py")}
    assert {work.cell for work in WORKLOADS} <= on_disk


@pytest.mark.parametrize("work", SMALL, ids=lambda work: work.cell)
def test_a_cell_runs_live_and_its_dry_run_agrees_to_the_byte(work):
    if "transformers" in work.source:
        pytest.importorskip("transformers")
    names = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # GIVEN the cell, computed on a virtual card
        with VirtualGPU(lookup(work.card)):
            exec(compile(work.source, "<cell>", "exec"), names)
            live = (
                torch.cuda.max_memory_allocated(),
                torch.cuda.max_memory_reserved(),
                torch.cuda.memory_allocated(),
            )
            names.clear()
        # WHEN it is predicted
        report = predict(work.source, {"__name__": "__main__"}, gpu=work.card)
    # THEN nothing differs
    assert report.error is None
    assert (report.peak.allocated, report.peak.reserved, report.after.allocated) == live
