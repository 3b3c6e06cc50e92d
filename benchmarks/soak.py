"""Many measured cells in one shell: what memory and time a cell take, from the first to the last.

    python benchmarks/soak.py [CELLS]     10,000 by default; writes results/soak.json

Memory is the process's resident set after a collection of garbage, time the processor's for a cell;
both of a window of 500 cells, the time that of its faster tenth, which the machine's neighbours
disturb least. The same cells without the mark tell what the extension alone keeps, and in a shell
without it (on the CPU: there is no virtual GPU then) what IPython itself does.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import resource
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

WINDOW = 500
CELL = """x = torch.ones(1 << 16, device="cuda")
w = torch.ones(64, 64, device="cuda", requires_grad=True)
loss = (w @ w).sum()
loss.backward()
y = [x + n for n in range(3)]
del y
"""
RESULTS = Path(__file__).parent / "results" / "soak.json"


WAYS = {"measured": "%%gpumem -q\n" + CELL, "unmarked": CELL, "plain": CELL.replace("cuda", "cpu")}


def soak(way: str, cells: int, answer: Connection) -> None:
    """Run the cells in a process of their own; sends a row for each window."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    if way != "plain":
        shell.run_line_magic("load_ext", "gpumem_magic")
    shell.run_cell("import torch\ntorch.set_num_threads(1)")
    seconds: list[float] = []
    for number in range(1, cells + 1):
        begun = time.process_time()
        shell.run_cell(WAYS[way], store_history=True)
        seconds.append(time.process_time() - begun)
        if number % WINDOW == 0:
            gc.collect()
            row = {
                "cells": number,
                "resident": resident(),
                "seconds": sorted(seconds)[WINDOW // 10],
                "objects": len(gc.get_objects()),
            }
            answer.send(row)
            seconds.clear()
    answer.send(None)


def resident() -> int:
    """Bytes of this process that lie in memory (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def windows(way: str, cells: int) -> list[dict]:
    """The rows of a run, printed as they come."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=soak, args=(way, cells, theirs))
    process.start()
    rows = []
    while row := ours.recv():
        rows.append(row)
        mib, ms = row["resident"] / 2**20, row["seconds"] * 1e3
        print(f"{row['cells']:6} cells  {mib:8.1f} MiB  {ms:6.2f} ms a cell  {row['objects']}")
    process.join()
    return rows


def main() -> None:
    """Run all, print and keep it."""
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    found = {}
    for way in WAYS:
        print(way)
        found[way] = windows(way, cells)
    grown = {way: rows[-1]["resident"] - rows[0]["resident"] for way, rows in found.items()}
    for way in ("measured", "unmarked"):
        share = (grown[way] - grown["plain"]) / found[way][0]["resident"]
        print(f"{way}: {share:+.1%} from the first {WINDOW} on, beyond what plain cells add")
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
