"""Everything that needs a GPU, on this machine's, in at most eight minutes: the tests, what
measuring costs an allocation, and how far predictions are from what cells took: those of
fidelity.py, compiled.py and coverage.py whose packages are installed.

python benchmarks/verify_gpu.py [--minutes N] [--json FILE]
Writes results/gpu-NAME.json: what ran, what it told, and what was left out, with the reason. Ends
with 0 where all that ran is well, with 1 where something failed, no test ran or there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import stub_device

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # where gpumem_magic is not installed
RESULTS = Path(__file__).with_name("results")
MINUTES = 8.0
MARGIN = 30.0
"""Seconds that are kept for ending what runs, and for writing."""

WORKERS = max(1, min(12, (os.cpu_count() or 1) - 2))
"""How many cells are compared at once."""

SHARES = {"tests": 0.5, "overhead": 0.6, "fidelity": 1.0}
"""Up to which part of the time each may run."""

TOLERANCE = 1.0
"""Percent; further off a prediction is named as such. It fails nothing: causes are looked up by
`fidelity.py --align`."""

_COMPILED = "compiled: "
"""Before the names of cells that compile: what inductor measures while it does is a first run's."""

_CALL = "import torch, torch.nn as nn, torch.nn.functional as F\ntorch.manual_seed(0)\nd = 'cuda'\n"
"""How the cells of calls.txt begin."""

_NO_ROOM = re.compile("out of memory|_ALLOC_FAILED|OutOfMemoryError")

_MISSING = re.compile(r"^(?:E +)?(ModuleNotFoundError: .*)$", re.MULTILINE)
"""Why nothing could be imported."""

_CASE = re.compile(r"^(tests/\S+) (PASSED|FAILED|ERROR|SKIPPED)(?: \((.*)\))? +\[", re.MULTILINE)
"""A line of `pytest -v`: the test, how it ended, and why it was skipped."""

PROBE = """
import json, torch
if torch.cuda.is_available():
    of = torch.cuda.get_device_properties(0)
    print(json.dumps({"name": of.name, "bytes": of.total_memory, "devices":
        torch.cuda.device_count(), "capability": f"{of.major}.{of.minor}",
        "torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}))
"""


class Clock:
    """How much of the time is left."""

    def __init__(self, minutes: float) -> None:
        self._began = time.monotonic()
        self._whole = minutes * 60 - MARGIN

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def until(self, part: str) -> float:
        """Seconds that `part` may still take; at least one."""
        return max(1.0, SHARES[part] * self._whole - self.seconds)


def run(*arguments: str, limit: float) -> subprocess.CompletedProcess[str]:
    """This Python with the repository on its path. Raises subprocess.TimeoutExpired."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=ROOT,
        env=stub_device.environment(HF_HUB_OFFLINE="1", COLUMNS="1000"),
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )


def gpu() -> dict[str, Any] | str:
    """The first GPU, or why there is none."""
    done = run("-c", PROBE, limit=120)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it ended without a word"]
        return f"{sys.executable} cannot ask PyTorch for it ({last[0]})"
    return (
        json.loads(done.stdout) if done.stdout.strip() else "PyTorch finds no CUDA or ROCm device"
    )


def tests(limit: float) -> dict[str, Any]:
    """All tests that are marked `gpu`, as far as there is time for them."""
    arguments = ("-m", "pytest", "-v", "-m", "gpu", "tests/cuda", "-p", "no:cacheprovider")
    try:
        done = run(*arguments, limit=limit)
        told, ended = done.stdout, True
    except subprocess.TimeoutExpired as error:
        told, ended = (error.stdout or b"").decode(), False
    cases = _CASE.findall(told)
    failed = [name for name, outcome, _ in cases if outcome in ("FAILED", "ERROR")]
    left_out = {name: reason for name, outcome, reason in cases if outcome == "SKIPPED"}
    if ended and not cases and (missing := _MISSING.search(done.stdout)):
        left_out["tests"] = missing[1]
    elif ended and not cases:
        failed.append((done.stdout + done.stderr).strip()[-600:])
    if not ended:
        last = cases[-1][0] if cases else "nothing"
        left_out[f"what comes after {last}"] = f"no time was left after {limit:.0f} s"
    passed = sum(outcome == "PASSED" for _, outcome, _ in cases)
    return {"passed": passed, "failed": failed, "left out": left_out}


def overhead(limit: float) -> dict[str, Any]:
    """What measuring costs an allocation or free, beside PyTorch's own recording; in as many rounds
    as there is time for."""
    often = ("--rounds", "3", "--seconds", f"{limit / 2:.0f}")
    done = run("benchmarks/overhead.py", "--events", "--json", *often, limit=limit)
    if done.returncode and (missing := _MISSING.search(done.stderr)):
        return {"left out": {"overhead": missing[1]}}
    if done.returncode:
        return {"failed": [done.stderr.strip()[-600:]]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found["microseconds_per_allocation_or_free"]


def cells(card: str) -> list[Any]:
    """Those that predictions are compared on, whole ones first, for this card."""
    from compiled import Cell
    from compiled import cells as compiled_cells
    from coverage import every_cell, seeded
    from fidelity_table import WORKLOADS

    whole = [work for work in WORKLOADS if not work.live]
    compiled = [replace(cell, name=f"{_COMPILED}{cell.name}") for cell in compiled_cells()]
    packages = map(seeded, every_cell())
    calls = (Cell(f"call: {name}", source) for name, source in single_calls().items())
    return [replace(each, card=card) for each in (*whole, *compiled, *packages, *calls)]


def single_calls() -> dict[str, str]:
    """The cells of calls.txt by their names."""
    lines = Path(__file__).with_name("calls.txt").read_text().splitlines()
    named = (line.split(" | ", 1) for line in lines if not line.startswith("#"))
    return {name: _CALL + text.replace(r"\n", "\n") for name, text in named}


def fidelity(card: str, clock: Clock) -> dict[str, Any]:
    """Cells predicted for this card and run on it, several at once: percent that predicted peaks
    are off. One that another leaves no room for is run again by itself."""
    from fidelity_ways import Runners

    compared: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    every = cells(card)
    with ExitStack() as stack:
        idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(WORKERS):
            idle.put(stack.enter_context(Runners(limit=60)))

        def compare(cell: Any) -> None:
            if clock.until("fidelity") <= MARGIN:
                left_out[cell.name] = "no time was left"
                return
            runners = idle.get()
            row = row_of(runners, cell)
            idle.put(runners)
            if isinstance(row, str):
                left_out[cell.name] = row
            else:
                left_out.pop(cell.name, None)
                compared[cell.name] = row

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(compare, every))
        for cell in every:
            if _NO_ROOM.search(left_out.get(cell.name, "")):
                compare(cell)
    errors = {name: abs(row["allocated"]) for name, row in compared.items()}
    return {
        "median": statistics.median(errors.values()) if errors else None,
        "cells": compared,
        "further than 1 %": [name for name, error in errors.items() if error > TOLERANCE],
        "left out": left_out,
    }


def row_of(runners: Any, cell: Any) -> dict[str, Any] | str:
    """Percent that the prediction is off by size, the real bytes and the prediction's seconds; or
    why there are none."""
    from fidelity import off
    from fidelity_ways import WAYS

    ways = {way.name: way for way in WAYS}
    real = runners.run(ways["gpu"], cell)
    if cell.name.startswith(_COMPILED):
        real = runners.run(ways["gpu"], cell)
    dry = real if real.error else runners.run(ways["dry_here"], cell)
    percent = {size: off(dry, real, size) for size in ("allocated", "reserved", "end")}
    if percent["allocated"] is None:
        return str(real.error or dry.error or "nothing was allocated")
    rounded = {size: None if v is None else round(v, 4) for size, v in percent.items()}
    return {**rounded, "bytes": real.allocated, "seconds": dry.seconds}


def parts(card: str, clock: Clock) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each part with what it told; what takes too long is left out."""
    work = {
        "tests": lambda: tests(clock.until("tests")),
        "overhead": lambda: overhead(clock.until("overhead")),
        "fidelity": lambda: fidelity(card, clock),
    }
    for part, do in work.items():
        began = clock.seconds
        try:
            told = do()
        except subprocess.TimeoutExpired as error:
            told = {"left out": {part: f"not done within {error.timeout:.0f} s"}}
        yield part, {"seconds": round(clock.seconds - began, 1), **told}


def card_of(name: str) -> str:
    """The catalog's key for a device's name; "cuda" for one that it lacks."""
    from gpumem_magic.virtual.catalog import MODELS

    return next((model.key for model in MODELS if model.name == name), "cuda")


def summary(part: str, told: dict[str, Any]) -> str:
    """One line."""
    if told.get("failed"):
        text = f"FAILED: {'; '.join(told['failed'])}"
    elif part in told.get("left out", {}):
        text = told["left out"][part]
    elif part == "tests":
        text = f"{told['passed']} passed"
    elif part == "overhead":
        beside = told["gpumem_magic beside PyTorch's recording and snapshot"]
        text = f"{beside:.2f} us an allocation or free beside PyTorch's own recording"
    elif told["median"] is None:
        text = "no cell could be compared"
    else:
        off = ", ".join(told["further than 1 %"]) or "none"
        text = f"median {told['median']:.3f} %, further than 1 % off: {off}"
    left_out = f" ({len(told['left out'])} left out)" if told.get("left out") else ""
    return f"{part:9} {text}{left_out}, {told['seconds']:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=MINUTES, help="to take at most")
    parser.add_argument("--json", type=Path, help="where to write instead")
    options = parser.parse_args()
    clock = Clock(options.minutes)
    device = gpu()
    if isinstance(device, str):
        print(f"verify-gpu: there is no GPU to verify on: {device}", file=sys.stderr)
        return 1
    print(f"{device['name']}, torch {device['torch']}", flush=True)
    machine = {**device, "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")}
    results: dict[str, Any] = {"machine": machine}
    for part, told in parts(card_of(device["name"]), clock):
        results[part] = told
        print(summary(part, told), flush=True)
    slug = re.sub(r"[^a-z0-9]+", "-", device["name"].lower()).strip("-")
    path = options.json or RESULTS / f"gpu-{slug}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{clock.seconds:.0f} s in all; written to {path}")
    failed = any(told.get("failed") for told in results.values())
    return int(failed or not results["tests"].get("passed"))


if __name__ == "__main__":
    sys.exit(main())
