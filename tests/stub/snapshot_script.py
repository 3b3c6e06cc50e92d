"""Measures a block on a CUDA build, saves its report beside PyTorch's own snapshot of the device.

Arguments: the file of the report, the file of PyTorch.
"""

from __future__ import annotations

import pickle
import sys

import torch

from gpumem_magic import measure

held = [torch.empty(size * 70_000, device="cuda") for size in range(1, 40)]
del held[::3]
with measure() as measured:
    net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
    net = net.cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        net(torch.randn(64, 512, device="cuda")).square().mean().backward()
        optimizer.step()
    del held[::2]
    parts = [torch.empty(size * 90_000, device="cuda") for size in range(1, 40)]
    del parts[::2]
    torch.cuda.empty_cache()
    theirs = torch.cuda.memory._snapshot()
measured.report.save(sys.argv[1])
with open(sys.argv[2], "wb") as file:  # noqa: PTH123 - as short as it can be
    pickle.dump(theirs, file)
