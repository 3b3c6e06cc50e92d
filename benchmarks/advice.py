"""How long the rules take over a cell, without measuring: from its trace to its advice.

python benchmarks/advice.py [--json FILE] [--rounds N] [NAME ...]
Cells of fidelity_workloads/ are dry-run once each at full size; their traces are what is asked. All
rules are asked, also those that otherwise speak only when memory is short. Limit: 100 ms a cell;
500 ms for a made-up cell of a million events, the search for growth included.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from analysis import make_recording
from fidelity_table import Workload

from gpumem_magic.advice import RULES, advise
from gpumem_magic.dryrun import Scenario
from gpumem_magic.predict import predict_cell
from gpumem_magic.trace import build_trace
from gpumem_magic.trace.growth import find_growth
from gpumem_magic.values.recording import Cell, Recording

LIMIT, LIMIT_AT_SCALE = 0.1, 0.5
MILLION = 1_000_000
WORKLOADS = (
    Workload("mlp_loader"),
    Workload("accumulation"),
    Workload("resnet"),
    Workload("unet"),
    Workload("gan"),
    Workload("vit"),
    Workload("gpt2"),
    Workload("bert_mlm"),
    Workload("t5"),
    Workload("forgotten_no_grad"),
    Workload("llama_decode"),
    Workload("diffusion"),
    Workload("llama_7b", "B200"),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """seconds: of the processor, the best of some rounds of all rules. slowest: the rule that took
    longest, and its seconds. rules: those that spoke."""

    cell: str
    events: int
    seconds: float
    slowest: str
    slowest_seconds: float
    rules: tuple[str, ...]


def recorded(work: Workload) -> Recording:
    """What the cell does to its card, told by a dry run."""
    cell = Cell(work.source, f"<{work.cell}>")
    report = predict_cell(Scenario(cell, {"__name__": "__main__"}, work.card))
    assert report.basis is not None
    return report.basis.recording


def best(work: Callable[[], object], rounds: int) -> float:
    """Seconds of the processor, in the best of so many rounds."""
    taken = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return min(taken)


def at_scale(rounds: int) -> dict[str, float]:
    """What a million events cost: the search for growth, and all rules."""
    recording = make_recording(MILLION)
    trace = build_trace(recording)
    found = {
        "growth": best(lambda: find_growth(recording, trace.lives, trace.lines), rounds),
        "rules": best(lambda: advise(trace, recording.cell, recording.names), rounds),
    }
    over = "" if sum(found.values()) <= LIMIT_AT_SCALE else "  MORE THAN 500 ms"
    told = "   ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in found.items())
    print(f"{MILLION:>29,} events   {told}{over}", flush=True)
    return {name: round(seconds, 4) for name, seconds in found.items()}


def cost(work: Workload, rounds: int) -> Cost:
    recording = recorded(work)
    trace = build_trace(recording)
    names = {rule.name for rule in RULES}

    def seconds(rules: set[str]) -> float:
        asked = {"ignore": names - rules, "everything": True}
        return best(lambda: advise(trace, recording.cell, recording.names, **asked), rounds)

    whole, nothing = seconds(names), seconds(set())
    by_rule = {name: seconds({name}) - nothing for name in names}
    slowest = max(by_rule, key=lambda name: by_rule[name])
    said = advise(trace, recording.cell, recording.names, everything=True)
    return Cost(
        work.cell,
        len(recording.events),
        round(whole, 4),
        slowest,
        round(max(by_rule[slowest], 0), 4),
        tuple(dict.fromkeys(advice.rule for advice in said.advice)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="cells; all if none is named")
    parser.add_argument("--json", type=Path, help="the file to write")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [work for work in WORKLOADS if not options.names or work.cell in options.names]
    costs = []
    for work in chosen:
        costs.append(one := cost(work, options.rounds))
        over = "" if one.seconds <= LIMIT else "  MORE THAN 100 ms"
        print(
            f"{one.cell:<20}{one.events:>9,} events {1000 * one.seconds:8.1f} ms{over}   slowest: "
            f"{one.slowest} {1000 * one.slowest_seconds:.1f} ms   said: {', '.join(one.rules)}",
            flush=True,
        )
    million = {} if options.names else at_scale(options.rounds)
    if options.json:
        about = {
            "rules": len(RULES),
            "numbers": "seconds of the processor for all rules over one trace, best of some rounds",
            "limit": LIMIT,
            "cores": os.cpu_count(),
            "load": f"{os.getloadavg()[0]:.1f} processes ran on average in the last minute",
            "date": time.strftime("%Y-%m-%d"),
        }
        data = {"about": about, "million": million, "cells": [asdict(one) for one in costs]}
        options.json.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
