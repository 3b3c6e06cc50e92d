"""How far off a prediction of compiled code is: cells of compiled_cells/ in dry runs, and where
inductor's own wrappers run on PyTorch's real allocator, with kernels that do nothing.

python benchmarks/compiled.py [--json FILE] [--align] [NAME ...]
Each cell prints what is allocated after its forward passes: what they saved. With --json, what FILE
holds of other cells is kept. --align: see fidelity.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import stub_device
from fidelity import align, off
from fidelity_ways import Runners, Way, here

CELLS = Path(__file__).parent / "compiled_cells"
REAL = Way("real", "compiled", "the real allocator, on the stub device", device="stub")
DRY = Way("dry", "dry", "dry run, the same torch")
HERE = Way("dry_here", "dry", "dry run, this Python's torch", here)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell and the card that it runs on."""

    name: str
    source: str
    card: str = "A100-40GB"


@dataclass(frozen=True, slots=True)
class Result:
    """A cell in one way. Bytes; percent: of the real ones; saved: whether what is allocated after
    each forward pass is the same."""

    name: str
    way: str
    real: int
    allocated: int
    percent: float
    percent_reserved: float
    saved: bool
    planned: bool


def cells() -> tuple[Cell, ...]:
    """All of them, by their heads ("# %% name")."""
    texts = "\n".join(file.read_text() for file in sorted(CELLS.glob("*.py")))
    parts = (part.partition("\n") for part in texts.split("# %% ")[1:])
    return tuple(Cell(name, source) for name, _, source in parts)


def compared(runners: Runners, cell: Cell) -> list[Result]:
    """The cell in both ways. Raises RuntimeError where it fails."""
    real = runners.run(REAL, cell)
    found = []
    for way in (DRY, HERE):
        told = runners.run(way, cell)
        if real.error or told.error:
            raise RuntimeError(f"real: {real.error}; {way.name}: {told.error}")
        percent, reserved = (
            round(off(told, real, size) or 0.0, 3) for size in ("allocated", "reserved")
        )
        sizes = real.allocated or 0, told.allocated or 0, percent, reserved
        saved = told.printed.split() == real.printed.split()
        found.append(Result(cell.name, way.name, *sizes, saved, "planned" in told.note))
    return found


def line(result: Result) -> str:
    """Percent of both peaks, and what else there is to say."""
    percents = f"{result.percent:+8.3f} {result.percent_reserved:+8.3f} %"
    saved = "saved exactly" if result.saved else "saved otherwise"
    written = "" if result.planned else ", as written"
    return f"{result.name:30} {result.way:9} {result.real:13,} {percents}  {saved}{written}"


def summary(rows: list[dict[str, Any]], way: str) -> dict[str, Any]:
    """Of one way, in percent."""
    mine = [row for row in rows if row["way"] == way]
    errors = [abs(row["percent"]) for row in mine]
    reserved = [abs(row["percent_reserved"]) for row in mine]
    return {
        "cells": len(mine),
        "planned": sum(row["planned"] for row in mine),
        "saved_exact": sum(row["saved"] for row in mine),
        "allocated": {"median": statistics.median(errors), "worst": max(errors)},
        "reserved": {"median": statistics.median(reserved), "worst": max(reserved)},
    }


def add(file: Path, results: list[Result]) -> None:
    """Put results into the file, in the place of older ones."""
    old = json.loads(file.read_text())["runs"] if file.exists() else []
    rows = {(row["name"], row["way"]): row for row in [*old, *map(asdict, results)]}
    order = [(cell.name, way.name) for cell in cells() for way in (DRY, HERE)]
    runs = [rows[key] for key in order if key in rows]
    about = {
        "real": stub_device.torch_version(stub_device.python()),
        "here": stub_device.torch_version(sys.executable),
    }
    sums = {way.name: summary(runs, way.name) for way in (DRY, HERE)}
    file.write_text(json.dumps({"torch": about, "summary": sums, "runs": runs}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of names; all if none")
    parser.add_argument("--json", type=Path, help="the file that keeps the results")
    parser.add_argument("--align", action="store_true", help="show the first different events")
    options = parser.parse_args()
    if not stub_device.has_stub():
        print("compiled.py: skipped: set GPUMEM_STUB and GPUMEM_STUB_PYTHON", file=sys.stderr)
        return 0
    with Runners() as runners:
        for cell in cells():
            if options.names and not any(name in cell.name for name in options.names):
                continue
            if options.align:
                print(align(runners, [DRY], cell, REAL), flush=True)
                continue
            try:
                results = compared(runners, cell)
            except RuntimeError as error:
                print(f"{cell.name:30} {error}", flush=True)
                continue
            for each in results:
                print(line(each), flush=True)
            if options.json:
                add(options.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
