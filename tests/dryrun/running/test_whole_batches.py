"""Batches that a dry run takes whole are those that torch puts together sample by sample."""

from __future__ import annotations

import contextlib
import io

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic import predict  # noqa: E402 - needs torch for what it is tested with

START = """\
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split
torch.manual_seed(0)
x, y = torch.arange(60.0).view(20, 3), torch.arange(20)
whole = TensorDataset(x, y, y > 7)
"""
SHOW = """
for batch in loader:
    print(type(batch).__name__, [(each.dtype, each.stride(), each.tolist()) for each in batch])
"""


def ran(code):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(code, {"__name__": "__main__"})
    return shown.getvalue()


@pytest.mark.parametrize(
    "loader",
    [
        "DataLoader(whole, batch_size=8)",
        "DataLoader(whole, batch_size=8, shuffle=True, drop_last=True)",
        "DataLoader(Subset(Subset(whole, [3, 1, 4, 15, 9, 2, 6]), [5, 0, 2, 2]), batch_size=3)",
        "DataLoader(random_split(whole, [12, 8])[1], batch_size=5)",
        "DataLoader(TensorDataset(x.t()[:, ::2].t(), y[::2].clone()), batch_size=4)",
        "DataLoader(TensorDataset(x.t()), batch_size=2, sampler=[-1, 0, -3])",
        "DataLoader(whole, batch_size=8, collate_fn=lambda rows: [row[0] for row in rows])",
        "DataLoader(whole, batch_size=None)",
    ],
)
def test_they_are_what_torch_makes(loader):
    code = f"{START}loader = {loader}{SHOW}"
    assert predict(code, {}, "T4").output == ran(code)


def test_a_dataset_of_ones_own_is_asked_for_each_sample():
    code = f"""{START}
class Counted(TensorDataset):
    def __getitem__(self, i):
        print("asked", i)
        return super().__getitem__(i)
loader = DataLoader(Counted(x, y), batch_size=4)
batch = next(iter(loader))"""
    assert predict(code, {}, "T4").output == "".join(f"asked {i}\n" for i in range(4))


def test_samples_on_the_device_are_put_together_there():
    setup = f"{START}big = TensorDataset(torch.zeros(64, 1 << 16).cuda())\n"
    dry = predict(f"{setup}for (rows,) in DataLoader(big, batch_size=32):\n    pass", {}, "T4")
    one_by_one = f"{setup}for n in (0, 32):\n    rows = torch.stack([*big.tensors[0][n : n + 32]])"
    assert dry.peak == predict(one_by_one, {}, "T4").peak
