"""How the snapshots in this folder were made: `python record.py OUT STACKS`, on CUDA builds.

PyTorch's own counters stand beside each snapshot, as "counters". Folders of the machine were taken
out of the names of files.
"""

from __future__ import annotations

import gzip
import pickle
import re
import sys
from contextlib import suppress

import torch

older = torch.empty(3_000_000, device="cuda")  # its block keeps slack that nobody asked for
torch.cuda.memory._record_memory_history(max_entries=100_000, stacks=sys.argv[2])
torch.cuda.reset_peak_memory_stats()
net = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
net = net.cuda()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(2):
    net(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
del older
parts = [torch.empty(size * 150_000, device="cuda") for size in range(1, 30)]
del parts[::2]
with suppress(torch.OutOfMemoryError):
    torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
counters = {
    "peak.allocated": torch.cuda.max_memory_allocated(),
    "peak.reserved": torch.cuda.max_memory_reserved(),
    "after.allocated": torch.cuda.memory_allocated(),
    "after.reserved": torch.cuda.memory_reserved(),
}
data = pickle.dumps(torch.cuda.memory._snapshot() | {"counters": counters}, protocol=4)
snapshot = pickle.loads(data)
seen = set()
for entry in [e for trace in snapshot["device_traces"] for e in trace]:
    for frame in entry.get("frames", []):
        if id(frame) not in seen:
            seen.add(id(frame))
            start = r"^/.*?/(?=lib/(lib)?python|bin/python|Python-3)"
            name = re.sub(start, "/usr/", frame["filename"])
            frame["filename"] = re.sub(r"^.*/record\.py$", "/home/user/train.py", name)
for block in [b for segment in snapshot["segments"] for b in segment["blocks"]]:
    block["frames"] = []
with gzip.open(sys.argv[1], "wb") as file:
    pickle.dump(snapshot, file, protocol=4)
