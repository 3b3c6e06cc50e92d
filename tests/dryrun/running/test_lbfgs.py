"""The history of LBFGS in a dry run, beside one that computes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic import predict  # noqa: E402 - needs torch for what it is tested with
from gpumem_magic.virtual.catalog import lookup  # noqa: E402
from gpumem_magic.virtual.gpu import VirtualGPU  # noqa: E402

CELL = """
import torch
torch.manual_seed(0)
image = torch.rand(3, 100, 100, device="cuda", requires_grad=True)
filters = torch.rand(8, 3, 3, 3, device="cuda")
goal = torch.rand(8, 98, 98, device="cuda")
optimizer = torch.optim.LBFGS([image], {options})

def closure():
    optimizer.zero_grad()
    loss = (torch.conv2d(image, filters) - goal).pow(2).sum()
    loss.backward()
    return loss

for _ in range({steps}):
    optimizer.step(closure)
stored = len(optimizer.state[image]["old_dirs"])
print(stored)
"""


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ("max_iter=20, history_size=8", 3),
        ("max_iter=6, history_size=30, max_eval=7", 3),
        ("max_iter=4, history_size=8, tolerance_change=1e-12", 1),
    ],
)
def test_it_grows_as_far_as_it_does_with_values(options, steps):
    cell = CELL.format(options=options, steps=steps)
    names = {}
    with VirtualGPU(lookup("T4")):
        exec(cell, names)
        peak, after = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        stored = names.pop("stored")
        names.clear()
    report = predict(cell, {}, "T4")
    assert report.error is None
    assert report.output == f"{stored}\n"
    assert (report.peak.allocated, report.after.allocated) == (peak, after)


def test_a_search_along_the_line_takes_no_part_in_it():
    cell = CELL.format(options="max_iter=9, line_search_fn='strong_wolfe'", steps=2)
    assert predict(cell, {}, "T4").output == "17\n"


def test_a_step_of_very_many_iterations_ends_once_it_is_full():
    cell = CELL.format(options="max_iter=1_000_000, history_size=5", steps=1)
    report = predict(cell, {}, "T4")
    assert report.output == "5\n"
    assert sum("LBFGS" in note and "left out" in note for note in report.notes) == 1
