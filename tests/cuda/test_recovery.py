"""The stories of tests/test_magics_recovery.py on a CUDA device with as little memory."""

from __future__ import annotations

import gc
import runpy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
STORIES = runpy.run_path(str(Path(__file__).parents[1] / "test_magics_recovery.py"))


@pytest.fixture
def _small():
    """PyTorch may have no more than the virtual card."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    limit = STORIES["CARD"] + torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction(limit / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(("case", "times"), STORIES["TESTED"])
def test_memory_comes_back_and_a_smaller_batch_runs(shell, case, times):
    session = STORIES["Session"](shell)
    session.run("%load_ext gpumem_magic")
    try:
        STORIES["check_recovery"](session, case, times)
    finally:
        session.asked("--free --all")
        shell.user_ns.clear()
