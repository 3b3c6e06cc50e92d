"""How long `%gpucheck` looks at a large notebook, and of how much memory of real cells it cannot
tell the holder. Writes results/inventory.json with --save.

The notebook: 2,000 names, 50,000 objects below them, a model of 1,000 modules with its optimizer
and a graph. Seconds are of the thread's CPU time, the first look of a fresh process. The cells:
those of fidelity.py, the small ones on a virtual card, or (--cuda) all of them on a CUDA device.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from fidelity_table import WORKLOADS, Workload

from gpumem_magic.devices import choose_source
from gpumem_magic.sources import Source
from gpumem_magic.sources.holders import take_inventory
from gpumem_magic.values.inventory import HolderKind, Inventory

RESULTS = Path(__file__).parent / "results" / "inventory.json"
NAMES, OBJECTS, BLOCKS = 2_000, 25, 333
LIMIT = 1.0  # seconds


class Sample:
    """What the names of the notebook hold."""

    def __init__(self, number: int, extra: object) -> None:
        self.number = number
        self.notes = [number, str(number)]
        self.extra = extra


def numbers(_: int) -> object:
    return {"weight": 1.0, "tags": ("a", "b")}


def arrays(number: int) -> object:
    import numpy as np

    return np.zeros(4) if number % 2 else {"values": np.zeros(4)}


def host_tensors(_: int) -> object:
    return torch.zeros(4)


def lambdas(number: int) -> object:
    return lambda: number


CONTENTS = {c.__name__: c for c in (numbers, arrays, host_tensors, lambdas)}


def make_model(names: dict[str, Any]) -> None:
    """A model of 1,000 modules, trained for a step, and an output with its graph."""
    nn = torch.nn
    parts = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(BLOCKS)]
    names["net"] = net = nn.Sequential(*parts).to("cuda")
    names["opt"] = torch.optim.Adam(net.parameters())
    names["x"] = torch.ones(4, 8, device="cuda")
    net(names["x"]).sum().backward()
    names["opt"].step()
    names["out"] = net(names["x"])


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a large notebook. unknown: bytes without a known holder."""

    contents: str
    lost: int
    names: int
    modules: int
    seconds: float
    again: float
    allocated: int
    unknown: int
    in_time: bool


def look_at(contents: str, lost: int) -> Look:
    """Make the notebook and look. lost: tensors that only reference cycles hold."""
    source = choose_source("A100-80GB")
    source.enter()
    names: dict[str, Any] = {}
    make_model(names)
    gc.disable()
    for _ in range(lost):
        ring: list[object] = [torch.ones(1 << 10, device="cuda")]
        ring.append(ring)
    source.leave()
    make = CONTENTS[contents]
    for i in range(NAMES - len(names)):
        names[f"v{i}"] = [Sample(i, make(j)) for j in range(OBJECTS)]
    gc.enable()
    timed = [_timed(source, names) for _ in range(2)]
    found = timed[0][1]
    modules = len(list(names["net"].modules()))
    row = Look(
        *(contents, lost, len(names), modules, timed[0][0], timed[1][0]),
        allocated=found.level.allocated or 0,
        unknown=found.size_of(HolderKind.UNKNOWN),
        in_time=not found.notes,
    )
    source.close()
    return row


def _timed(source: Source, names: dict[str, Any]) -> tuple[float, Inventory]:
    begin = time.thread_time()
    found = take_inventory(source, names)
    return time.thread_time() - begin, found


@dataclass(frozen=True, slots=True)
class Share:
    """What is held at the end of a cell, and how much of it nobody is known to hold, in bytes."""

    cell: str
    allocated: int
    unknown: int
    adds_up: bool


def shares(cuda: bool, only: list[str]) -> Iterator[Share]:
    """Run each cell, and look."""
    for work in WORKLOADS:
        if (cuda or work.live) and (not only or work.cell in only):
            yield share_of(work, cuda)


def share_of(work: Workload, cuda: bool) -> Share:
    """Run one cell in a namespace of its own."""
    source = choose_source("auto" if cuda else work.card)
    names: dict[str, Any] = {"__name__": "__main__"}
    before = take_inventory(source, {})  # what libraries keep of earlier cells is not this one's
    try:
        source.enter()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(work.source, "<cell>", "exec"), names)
        source.leave()
        found = take_inventory(source, names)
        held = sum(holding.size for holding in found.holdings)
        unknown = found.size_of(HolderKind.UNKNOWN) - before.size_of(HolderKind.UNKNOWN)
        return Share(
            work.name,
            (found.level.allocated or 0) - (before.level.allocated or 0),
            unknown,
            held == found.level.allocated,
        )
    finally:
        source.leave()
        source.close()
        names.clear()
        gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--cuda", action="store_true", help="cells on a CUDA device")
    parser.add_argument("--cells", nargs="*", default=[], help="these cells only")
    parser.add_argument("--look", nargs=2, metavar=("CONTENTS", "LOST"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look:
        print(json.dumps(asdict(look_at(options.look[0], int(options.look[1])))))
        return
    looks = [] if options.cuda else [_in_a_process(c, n) for c, n in _variants()]
    found = list(shares(options.cuda, options.cells))
    _print(looks, found)
    if options.save:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(
            json.dumps({**known, **_result(looks, found, options.cuda)}, indent=1) + "\n"
        )


def _variants() -> Iterator[tuple[str, int]]:
    for contents in CONTENTS:
        yield contents, 0
    yield "numbers", 20


def _in_a_process(contents: str, lost: int) -> Look:
    command = [sys.executable, "-W", "ignore", __file__, "--look", contents, str(lost)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Look(**json.loads(text.splitlines()[-1]))


def _result(looks: list[Look], found: list[Share], cuda: bool) -> dict[str, object]:
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {platform.system()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if cuda else "virtual",
    }
    if cuda:
        return {"cells_cuda": {**about, "cells": [asdict(share) for share in found]}}
    rows = {"looks": [asdict(look) for look in looks]}
    return {"notebook": {**about, **rows}, "cells": {**about, "cells": [asdict(s) for s in found]}}


def _print(looks: list[Look], found: list[Share]) -> None:
    for look in looks:
        lost = f", {look.lost} lost" if look.lost else ""
        what = f"{look.names:,} names of {OBJECTS} objects with {look.contents}{lost}"
        print(f"{what:<55} {look.seconds:6.2f} s {look.again:6.2f} s  unknown {look.unknown:,}")
    for share in found:
        part = 100 * share.unknown / max(share.allocated, 1)
        mark = "" if share.adds_up else "  does not add up"
        print(f"{share.cell:<30} {share.allocated:>16,} unknown {part:6.3f} %{mark}")


if __name__ == "__main__":
    main()
