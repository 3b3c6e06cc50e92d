"""Everything that needs a GPU, on this machine's, in at most eight minutes: the tests, what
measuring costs an allocation, and how far predictions of small cells are from what they took.

python benchmarks/verify_gpu.py [--minutes N] [--json FILE]
Writes results/gpu-NAME.json: what ran, what it told, and what was left out, with the reason. Ends
with 0 where all that ran is well, with 1 where something failed or there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import stub_device

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")
MINUTES = 8.0
MARGIN = 30.0
"""Seconds that are kept for ending what runs, and for writing."""

SHARES = {"tests": 0.6, "overhead": 0.8, "fidelity": 1.0}
"""Up to which part of the time each may run."""

TOLERANCE = 1.0
"""Percent; further off a prediction is named as such. It fails nothing: causes are looked up by
`fidelity.py --align`."""

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
        env=stub_device.environment(HF_HUB_OFFLINE="1"),
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
    """All tests that are marked `gpu`."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "tests.xml"
        arguments = ("-m", "pytest", "-q", "-m", "gpu", "tests/cuda", f"--junitxml={written}")
        soft = f"--session-timeout={limit:.0f}"  # ends after the test that runs then
        done = run(*arguments, soft, "-p", "no:cacheprovider", limit=limit + MARGIN)
        if not written.exists():
            return {"failed": [(done.stdout + done.stderr).strip()[-600:]]}
        cases = list(ElementTree.parse(written).iter("testcase"))
    skipped = {name(case): told for case in cases if (told := reason(case, "skipped"))}
    failed = [name(case) for case in cases if reason(case, "failure") or reason(case, "error")]
    passed = len(cases) - len(skipped) - len(failed)
    if "session-timeout" in done.stdout:
        failed.append(f"stopped after {limit:.0f} s, before the last test")
    return {"passed": passed, "failed": failed, "left out": skipped}


def name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}"


def reason(case: ElementTree.Element, kind: str) -> str | None:
    found = case.find(kind)
    return None if found is None else found.get("message") or kind


def overhead(limit: float) -> dict[str, Any]:
    """What measuring costs an allocation or free, beside PyTorch's own recording."""
    done = run("benchmarks/overhead.py", "--events", "--json", "--rounds", "3", limit=limit)
    if done.returncode:
        return {"failed": [done.stderr.strip()[-600:]]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found["microseconds_per_allocation_or_free"]


def fidelity(card: str, clock: Clock) -> dict[str, Any]:
    """Small cells, predicted for this card and run on it: percent that predicted peaks are off."""
    from fidelity import off
    from fidelity_table import WORKLOADS
    from fidelity_ways import WAYS, Runners

    ways = {way.name: way for way in WAYS}
    errors: dict[str, float] = {}
    left_out: dict[str, str] = {}
    with Runners(limit=30) as runners:
        for work in (replace(work, card=card) for work in WORKLOADS if work.live):
            if clock.until("fidelity") <= MARGIN:
                left_out[work.name] = "no time was left"
                continue
            real, dry = (runners.run(ways[way], work) for way in ("gpu", "dry_here"))
            percent = off(dry, real, "allocated")
            if percent is None:
                left_out[work.name] = real.error or dry.error or "nothing was allocated"
            else:
                errors[work.name] = round(percent, 4)
    return {
        "median": statistics.median(map(abs, errors.values())) if errors else None,
        "percent off": errors,
        "further than 1 %": [name for name, error in errors.items() if abs(error) > TOLERANCE],
        "left out": left_out,
    }


def parts(card: str, clock: Clock) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each part with what it told; what takes too long is a part that failed."""
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
            told = {"failed": [f"not done within {error.timeout:.0f} s"]}
        yield part, {"seconds": round(clock.seconds - began, 1), **told}


def card_of(name: str) -> str:
    """The catalog's key for a device's name; "cuda" for one that it lacks."""
    from gpumem_magic.virtual.catalog import MODELS

    return next((model.key for model in MODELS if model.name == name), "cuda")


def summary(part: str, told: dict[str, Any]) -> str:
    """One line."""
    if told.get("failed"):
        text = f"FAILED: {'; '.join(told['failed'])}"
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
    return int(any(told.get("failed") for told in results.values()))


if __name__ == "__main__":
    sys.exit(main())
