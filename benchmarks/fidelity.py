"""How far off a prediction is: whole cells on the virtual GPU and as dry runs, and what other
estimators say of them, against PyTorch's real allocator.

python benchmarks/fidelity.py [--json FILE] [--ways WAY,...] [--small] [--align] [NAME ...]
With --json, what FILE holds of other workloads and ways is kept. --align shows instead where the
allocator was first asked for something else, and what only one side held at its peak. Each run is
a process of its own with a time limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import stub_device
from fidelity_causes import ADDRESSES, cause_of
from fidelity_child import Outcome
from fidelity_events import at_peak, differences
from fidelity_table import WORKLOADS, Workload
from fidelity_ways import (
    DRY_UPWARDS,
    REAL,
    UPWARDS,
    WAYS,
    Runners,
    Way,
    Work,
    applies,
    is_possible,
)
from fidelity_ways import QUIET as QUIET

SIZES = ("allocated", "reserved", "end")
TOLD = 1.0
"""Percent from which on an error wants its cause."""


Results = dict[str, dict[str, Outcome]]
"""By workload and way."""


def off(outcome: Outcome, real: Outcome, size: str) -> float | None:
    """Percent that a size is more than the real one; None where either is not known."""
    mine, theirs = getattr(outcome, size), getattr(real, size)
    if mine is None or not theirs or outcome.error or real.error:
        return None
    return float(100 * (mine / theirs - 1))


def errors(results: Results, way: str, size: str) -> dict[str, float]:
    """Percent by workload, where known."""
    found = {
        name: off(row[way], row[REAL.name], size)
        for name, row in results.items()
        if way in row and REAL.name in row
    }
    return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Summary:
    """Of a way and a size, in percent. ran: workloads with a number; of: those that were tried."""

    median: float | None
    worst: float | None
    worst_workload: str | None
    ran: int
    of: int


def summary(results: Results, way: str, size: str) -> Summary:
    found = errors(results, way, size)
    tried = sum(way in row for row in results.values())
    if not found:
        return Summary(None, None, None, 0, tried)
    name = max(found, key=lambda each: abs(found[each]))
    median = statistics.median(map(abs, found.values()))
    return Summary(round(median, 4), round(found[name], 4), name, len(found), tried)


def unexplained(results: Results) -> list[str]:
    """Errors of dry runs above TOLD percent of which fidelity_causes.py knows no cause."""
    return [
        f"{name} {size}: {value:+.2f} %"
        for size in SIZES
        for name, value in errors(results, "dry", size).items()
        if abs(value) > TOLD and why(name, results[name], size) is None
    ]


def why(name: str, row: dict[str, Outcome], size: str) -> str | None:
    """The cause of a dry run's error: the addresses of segments, where the error is gone once both
    sides place each above the last; else what fidelity_causes.py knows."""
    placed_alike = off(*(row.get(way.name, Outcome()) for way in (DRY_UPWARDS, UPWARDS)), size)
    if placed_alike is not None and abs(placed_alike) <= TOLD:
        return f"{ADDRESSES} ({placed_alike:+.2f} % there)."
    return cause_of(name, size)


@cache
def about() -> dict[str, str]:
    """What was compared with what."""
    return {
        "device": (
            "stub of a CUDA device: PyTorch's real caching allocator and the real operators' host "
            "code over kernels that compute nothing; cuDNN workspaces off; total memory, compute "
            "capability and multiprocessors of the card that each workload names"
        ),
        "torch": stub_device.torch_version(stub_device.python()),
        "torch_here": stub_device.torch_version(sys.executable),
        "sizes": "bytes: highest allocated and reserved, allocated at the end of the cell",
        "date": time.strftime("%Y-%m-%d"),
    }


def as_json(results: Results) -> dict[str, Any]:
    known = {work.name: work for work in WORKLOADS}
    ways = {way.name: way for way in WAYS if any(way.name in row for row in results.values())}
    return {
        "about": about(),
        "ways": {way.name: way.title for way in ways.values()},
        "summary": {
            way: {size: asdict(summary(results, way, size)) for size in SIZES}
            for way in ways
            if way != REAL.name
        },
        "unexplained": unexplained(results),
        "workloads": {
            name: _row_as_json(known[name], row) for name, row in results.items() if name in known
        },
    }


def _row_as_json(work: Workload, row: dict[str, Outcome]) -> dict[str, Any]:
    ways: dict[str, Any] = {}
    for way, outcome in row.items():
        kept = asdict(replace(outcome, printed=""))
        ways[way] = {k: value for k, value in kept.items() if value not in (None, "")}
        if way != REAL.name and REAL.name in row:
            values = {size: off(outcome, row[REAL.name], size) for size in SIZES}
            ways[way]["percent"] = {k: round(v, 4) for k, v in values.items() if v is not None}
    percent = ways.get("dry", {}).get("percent", {})
    causes = {size: why(work.name, row, size) for size, v in percent.items() if abs(v) > TOLD}
    return {
        "title": work.title,
        "card": work.card,
        "values": dict(work.values),
        **({"causes": causes} if causes else {}),
        "ways": ways,
    }


def from_json(path: Path) -> Results:
    """What an earlier run has left; nothing where there is no such file."""
    if not path.exists():
        return {}
    kept: Results = {}
    for name, row in json.loads(path.read_text())["workloads"].items():
        kept[name] = {
            way: Outcome(**{k: v for k, v in outcome.items() if k != "percent"})
            for way, outcome in row["ways"].items()
        }
    return kept


def line(name: str, row: dict[str, Outcome]) -> str:
    """Percent of the three sizes, way by way."""
    real = row.get(REAL.name, Outcome(error="not run"))
    shown = [f"{name:<26}{(real.allocated or 0) / 2**20:>11,.1f}"]
    for way, outcome in row.items():
        if way in (REAL.name, UPWARDS.name, DRY_UPWARDS.name):
            continue
        values = [off(outcome, real, size) for size in SIZES]
        text = " ".join("      -" if v is None else f"{v:+7.2f}" for v in values)
        shown.append(f"{way} {text}" + (f" ({outcome.error[:60]})" if outcome.error else ""))
    return "  ".join(shown) + (f"  real: {real.error}" if real.error else "")


def overview(results: Results) -> str:
    lines = [f"\n{'':<14}" + "".join(f"{size + ': median, worst':^44}" for size in SIZES)]
    for way in WAYS[1:]:
        sums = [summary(results, way.name, size) for size in SIZES]
        if any(each.of for each in sums):
            parts = [
                f"{'-':^44}"
                if each.median is None
                else f"{each.median:8.3f} % {each.worst:+9.3f} % {each.worst_workload:<22}"
                for each in sums
            ]
            lines.append(f"{way.name:<14}" + "".join(parts) + f"{sums[0].ran} of {sums[0].of}")
    return "\n".join(lines)


def align(runners: Runners, ways: Iterable[Way], work: Work, own: Way = REAL) -> str:
    """Where each of the ways first parts from the real one, which is `own`."""
    texts = []
    with tempfile.TemporaryDirectory() as folder:
        paths = {way.name: Path(folder) / way.name for way in (own, *ways)}
        told = {way.name: runners.run(way, work, paths[way.name]) for way in (own, *ways)}
        for way in ways:
            real, mine = (
                json.loads(path.read_text()) if path.exists() else []
                for path in (paths[own.name], paths[way.name])
            )
            found = differences(real, mine)
            texts.append(f"{way.name}: {len(mine)} events, real {len(real)}")
            texts += [f"  {text}" for text in found or ["no difference"]]
            texts += [f"  at the peak {text}" for text in at_peak(real, mine)]
    return "\n".join([line(work.name, told), *texts])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads; all if none is named")
    parser.add_argument("--json", type=Path, help="the file that keeps the results")
    parser.add_argument("--ways", default="", help="comma-separated; all that are possible if none")
    parser.add_argument("--small", action="store_true", help="only what is small enough to compute")
    parser.add_argument("--align", action="store_true", help="show the first different events")
    options = parser.parse_args()
    if not stub_device.has_stub():
        print("fidelity.py: skipped: set GPUMEM_STUB and GPUMEM_STUB_PYTHON", file=sys.stderr)
        return 0
    chosen = [
        work
        for work in WORKLOADS
        if (not options.names or work.name in options.names or work.cell in options.names)
        and (work.live or not options.small)
    ]
    wanted = set(filter(None, options.ways.split(",")))
    ways = [way for way in WAYS if (not wanted or way.name in wanted) and is_possible(way)]
    with Runners() as runners:
        if options.align:
            for work in chosen:
                mine = [way for way in ways if way is not REAL and applies(way, work)]
                print(align(runners, mine, work), flush=True)
            return 0
        results = compared(runners, ways, chosen, options.json)
    print(overview(results))
    print("\n".join(["", "without a known cause:", *unexplained(results)]))
    return 0


def compared(
    runners: Runners, ways: list[Way], chosen: list[Workload], kept: Path | None
) -> Results:
    """Run what is chosen; what `kept` has of the rest stays."""
    results = from_json(kept) if kept else {}
    for work in chosen:
        row = results.setdefault(work.name, {})
        for way in ways:
            if applies(way, work):
                row[way.name] = runners.run(way, work)
        print(line(work.name, row), flush=True)
        if kept:
            kept.write_text(json.dumps(as_json(_in_order(results)), indent=1) + os.linesep)
    return _in_order(results)


def _in_order(results: Results) -> Results:
    """As the table has them; what it has no longer is left out."""
    return {work.name: results[work.name] for work in WORKLOADS if work.name in results}


if __name__ == "__main__":
    sys.exit(main())
