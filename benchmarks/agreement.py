"""Allocated and reserved bytes after each phase of training: the virtual GPU against the real
allocator and the real operators' host code, on the stub device.

python benchmarks/agreement.py [--json] [NAME ...]
The stub is run with $GPUMEM_STUB/run.sh and the Python of $GPUMEM_STUB_PYTHON; without these the
virtual GPU's numbers stand alone.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import stub_device
import torch
from workloads import WORKLOADS, Workload, train

CARD = "T4"
STUB_SETTINGS = {"STUB_GPU_CC": "7.5", "STUB_GPU_MEMORY": "15095M"}
CAUSES = {
    "addresses": (
        "Where the driver puts a new segment decides which of two equally large free blocks is "
        "lower, and so which is used; up to 1 MiB of a block that is not split counts with it."
    ),
    "workspaces": (
        "cuDNN's convolutions ask for workspaces by algorithm; the stub gives none, the virtual "
        "GPU neither. On a real card they come on top of both."
    ),
}


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes after a phase; peak: the highest allocated so far."""

    phase: str
    allocated: int
    reserved: int
    peak: int


@dataclass(frozen=True, slots=True)
class Row:
    """A phase on both devices. real: None where the stub did not run."""

    workload: str
    phase: str
    virtual: Reading
    real: Reading | None

    def difference(self, size: str) -> float:
        """Of `size` ("allocated", ...), relative to the real one; 0 where there is none."""
        if self.real is None:
            return 0.0
        return float(getattr(self.virtual, size) / getattr(self.real, size) - 1)


def readings(work: Workload) -> list[Reading]:
    """Train on whatever answers for CUDA in this process."""
    found = []
    for phase in train(work):
        torch.cuda.synchronize()
        memory = torch.cuda
        found.append(
            Reading(
                phase,
                memory.memory_allocated(),
                memory.memory_reserved(),
                memory.max_memory_allocated(),
            )
        )
    return found


def on_virtual_gpu(work: Workload) -> list[Reading]:
    """Train on a fresh virtual GPU."""
    from gpumem_magic.virtual.catalog import lookup
    from gpumem_magic.virtual.gpu import VirtualGPU

    with VirtualGPU(lookup(CARD)):
        found = readings(work)
    gc.collect()
    return found


@functools.cache
def _stub() -> subprocess.Popen[str]:
    """A process on the stub device, which ends with this one."""
    return subprocess.Popen(
        stub_device.on_stub(str(Path(__file__).resolve()), "--here"),
        env=stub_device.environment(**STUB_SETTINGS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def on_stub(work: Workload) -> list[Reading]:
    """Train in a process of its own on the stub device. Raises RuntimeError where that fails."""
    stub = _stub()
    assert stub.stdin is not None
    assert stub.stdout is not None
    print(work.name, file=stub.stdin, flush=True)
    told = stub.stdout.readline()
    if not told.startswith("[{"):
        raise RuntimeError(f"{work.name} failed on the stub")
    return [Reading(**reading) for reading in json.loads(told)]


def _train_named(line: str) -> list[dict[str, Any]]:
    work = next(work for work in WORKLOADS if work.name == line.strip())
    return [asdict(reading) for reading in readings(work)]


def compare(work: Workload) -> list[Row]:
    """One row for each phase."""
    virtual = on_virtual_gpu(work)
    real: list[Any] = on_stub(work) if stub_device.has_stub() else [None] * len(virtual)
    return [
        Row(work.name, mine.phase, mine, theirs) for mine, theirs in zip(virtual, real, strict=True)
    ]


def worst(rows: list[Row], size: str) -> Row:
    """The row whose `size` differs most."""
    return max(rows, key=lambda row: abs(row.difference(size)))


def summary(rows: list[Row]) -> dict[str, float]:
    """Largest relative differences of one workload, with their signs."""
    return {
        **{size: worst(rows, size).difference(size) for size in ("allocated", "reserved")},
        "peak": rows[-1].difference("peak"),
    }


def versions() -> dict[str, str]:
    """What was compared with what."""
    stub = "absent"
    if stub_device.has_stub():
        stub = stub_device.torch_version(stub_device.python())
    return {
        "virtual": f"torch {torch.__version__}, virtual {CARD}",
        "real": f"torch {stub}, stub device of compute capability {STUB_SETTINGS['STUB_GPU_CC']}",
        "date": time.strftime("%Y-%m-%d"),
    }


def mebibytes(row: Row, size: str) -> str:
    mine = getattr(row.virtual, size) / 2**20
    if row.real is None:
        return f"{mine:10.2f}          -        -"
    theirs = getattr(row.real, size) / 2**20
    return f"{mine:10.2f} {theirs:10.2f} {100 * row.difference(size):+7.3f}%"


def table(rows: list[Row]) -> str:
    """One workload, for people."""
    width = " " * 3
    lines = [
        f"\n{rows[0].workload}  (MiB: virtual, real, difference)",
        f"  {'phase':<14}{'allocated':>29}{width}{'reserved':>29}{width}{'peak':>29}",
    ]
    lines += [
        f"  {row.phase:<14}"
        + width.join(mebibytes(row, size) for size in ("allocated", "reserved", "peak"))
        for row in rows
    ]
    return "\n".join(lines)


def overview(tables: list[list[Row]]) -> str:
    """The largest differences of each workload."""
    lines = [f"\n{'largest difference':<32}{'allocated':>11}{'reserved':>11}{'peak':>11}"]
    for rows in tables:
        values = "".join(f"{100 * value:+10.3f}%" for value in summary(rows).values())
        lines.append(f"{rows[0].workload:<32}{values}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads; all if none is named")
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument("--here", action="store_true", help="train what stdin names, on CUDA")
    options = parser.parse_args()
    chosen = [work for work in WORKLOADS if not options.names or work.name in options.names]
    if options.here:
        stub_device.answer_lines(_train_named)
        return
    tables = [compare(work) for work in chosen]
    if options.json:
        results = {"versions": versions(), "causes": CAUSES, "workloads": {}}
        for rows in tables:
            kept = [asdict(row) for row in rows]
            results["workloads"][rows[0].workload] = {"worst": summary(rows), "phases": kept}
        json.dump(results, sys.stdout, indent=1)
        return
    print("\n".join(versions().values()))
    print("\n".join(map(table, tables)))
    print(overview(tables))


if __name__ == "__main__":
    main()
