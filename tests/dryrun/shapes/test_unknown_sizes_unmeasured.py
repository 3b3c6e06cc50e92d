"""What a dry run cannot know of NVIDIA's libraries is said."""

from __future__ import annotations

from gpumem_magic.dryrun import Scenario
from gpumem_magic.values.recording import Cell
from gpumem_magic.virtual.catalog import lookup
from tests.dry_runs import dry_run

CODE = """
import torch
x = torch.randn(100, 100, device="cuda")
torch.fft.fft2(x)
torch.linalg.inv(x)
torch.fft.fft(torch.randn(100))
torch.sort(x)
"""


def test_lines_whose_workspace_is_not_known_are_named():
    found = dry_run(Scenario(Cell(CODE, "<cell>"), {}), lookup("T4"))
    assert found.error is None
    assert found.notes == (
        "Line 4 uses torch.fft, whose workspace on a GPU is not known: the real peak may be "
        "higher.",
        "Line 5 uses torch.linalg, whose workspace on a GPU is not known: the real peak may be "
        "higher.",
    )
