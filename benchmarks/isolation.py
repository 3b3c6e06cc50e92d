"""What a process of its own costs a prediction, what several at a time save, and what it would cost
to keep a process from the beginning of every measured cell.

python benchmarks/isolation.py [--json FILE] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what an optimizer loads, before the clock starts

import gpumem_magic
from gpumem_magic.dryrun import runs
from gpumem_magic.isolation import child

GIB = 1 << 30
NET = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(300, 600), nn.ReLU(), nn.Linear(600, 10)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(20):
    net(torch.randn(64, 300, device="cuda")).sum().backward()
    opt.step()
    opt.zero_grad()
"""
ENCODER = """
import torch
encoder = torch.nn.TransformerEncoderLayer(1024, 16, batch_first=True)
model = torch.nn.TransformerEncoder(encoder, 12).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    batch = torch.randn(16, 512, 1024, device="cuda")
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def seconds(work: Callable[[], Any], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def fork_and_end() -> None:
    process = child.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)


def predictions(rounds: int) -> list[dict[str, Any]]:
    """With more and more memory resident beside them."""
    rows = []
    held: list[torch.Tensor] = []
    for gib in (0, 1, 2):
        held.extend(torch.ones(GIB // 4) for _ in range(gib - len(held)))
        row = {
            "resident_gib": gib,
            "fork_ms": 1e3 * seconds(fork_and_end, rounds),
            "empty_cell_ms": 1e3 * seconds(lambda: gpumem_magic.predict("x = 1", {}), rounds),
            "training_cell_ms": 1e3 * seconds(lambda: gpumem_magic.predict(NET, {}), rounds),
        }
        rows.append(row)
        print("  ".join(f"{name} {value:8.1f}" for name, value in row.items()), flush=True)
    return rows


def side_by_side(rounds: int) -> dict[str, Any]:
    """--advise one dry run after the other, and as many at once as there are processors."""
    at_once = runs._processors
    found = gpumem_magic.advise(ENCODER, {}, gpu="8GiB")

    def advise() -> None:
        gpumem_magic.advise(ENCODER, {}, gpu="8GiB")

    together, alone = [], []
    try:
        for _ in range(rounds):
            runs._processors = lambda: 1
            alone.append(seconds(advise, 1))
            runs._processors = at_once
            together.append(seconds(advise, 1))
    finally:
        runs._processors = at_once
    row = {
        "dry_runs": found.runs,
        "one_after_the_other_s": statistics.median(alone),
        "side_by_side_s": statistics.median(together),
        "ratio": statistics.median(a / b for a, b in zip(alone, together, strict=True)),
    }
    print("  ".join(f"{name} {value:.2f}" for name, value in row.items()), flush=True)
    return row


def training() -> Callable[[], None]:
    """A step that rewrites what it has: weights and states of some 400 MB."""
    net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)])
    optimizer = torch.optim.AdamW(net.parameters())
    data = torch.randn(8, 2048)

    def step() -> None:
        net(data).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    step()
    return step


def own_memory() -> int:
    """Bytes that this process does not share."""
    rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(row.split()[1]) for row in rows if row.startswith("Private")) * 1024


def parked(rounds: int) -> dict[str, Any]:
    """A cell of one training step on a virtual card, plain and beside a process that keeps what
    was there at its beginning."""
    step = training()
    plain, beside, grown = [], [], []
    for _ in range(rounds):
        plain.append(seconds(step, 1))
        started = time.perf_counter()
        process = child.fork()
        if process == 0:
            signal.pause()
        before = own_memory()
        step()
        beside.append(time.perf_counter() - started)
        grown.append(own_memory() - before)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    row = {
        "plain_ms": 1e3 * statistics.median(plain),
        "with_a_parked_process_ms": 1e3 * statistics.median(beside),
        "ratio": statistics.median(b / a for a, b in zip(plain, beside, strict=True)),
        "copied_mib": statistics.median(grown) / 2**20,
    }
    print("  ".join(f"{name} {value:.2f}" for name, value in row.items()), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, help="the file to write")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    gpumem_magic.predict(NET, {})
    told = {
        "about": {
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "torch": torch.__version__,
            "numbers": "medians of rounds in one process; predictions without their imports",
            "date": time.strftime("%Y-%m-%d"),
        },
        "parked": parked(options.rounds),
        "predictions": predictions(options.rounds),
        "advise": side_by_side(max(3, options.rounds // 3)),
    }
    if options.json:
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
