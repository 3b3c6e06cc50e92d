"""How many events a second go from Recording to Report, at 10 thousand and at 1 million events."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass

import numpy as np

from gpumem_magic.pipeline import build_report
from gpumem_magic.trace import build_trace
from gpumem_magic.values.recording import (
    Action,
    Category,
    Cell,
    Device,
    Events,
    Frame,
    Label,
    LiveBlocks,
    Reading,
    Recording,
)

LINES, STACKS, DEPTH, LABELS = 100, 2000, 20, 5000
SIZES = 512 * np.array([1, 2, 16, 128, 1024, 8192])


@dataclass(frozen=True)
class Result:
    events: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.events / self.seconds


def make_stacks() -> tuple[tuple[Frame, ...], ...]:
    """Distinct stacks as deep as a transformer's, the cell's frame among the outermost."""
    depth = range(DEPTH - 2)
    return tuple(
        (
            *(Frame(f"/lib/torch/nn/modules/{i}.py", 10 * i + number, "forward") for i in depth),
            Frame("<cell>", 2 + number % LINES, "<module>"),
            Frame("/lib/IPython/core/interactiveshell.py", 3577, "run_code"),
        )
        for number in range(STACKS)
    )


def make_events(count: int, random: np.random.Generator) -> Events:
    """Four events in ten free a block; lines follow one another in a loop, some 50 events each."""
    free = random.random(count) < 0.4
    action, address, size = np.zeros(count, np.int8), np.zeros(count, np.int64), np.zeros(count)
    live: list[tuple[int, int]] = []
    empty: list[int] = []
    picks, sizes = random.random(count), random.choice(SIZES, count)
    for i in range(count):
        if free[i] and live:
            place = int(picks[i] * len(live))
            live[place], live[-1] = live[-1], live[place]
            action[i], (address[i], size[i]) = Action.FREE, live.pop()
            empty.append(int(address[i]))
        else:
            address[i] = empty.pop() if empty else (len(live) + 1) << 22
            size[i] = sizes[i]
            live.append((int(address[i]), int(sizes[i])))
    line = np.arange(count) // 50 % LINES
    stack = line + LINES * random.integers(0, STACKS // LINES, count)
    phase = np.array([0, 0, 1, 2], np.int8)[line * 4 // LINES]
    size = size.astype(np.int64)
    seconds = np.arange(count) * 2e-6
    return Events(action, address, size, size, stack.astype(np.int32), phase, seconds)


def make_recording(count: int) -> Recording:
    random = np.random.default_rng(0)
    events = make_events(count, random)
    source = "for step in range(1000):\n" + "    work()\n" * LINES
    none = np.zeros(0, np.int64)
    change = np.where(events.action == Action.ALLOC, events.size, -events.size)
    births = np.flatnonzero(events.action == Action.ALLOC)
    owned = births[:: max(1, len(births) // LABELS)].tolist()
    return Recording(
        device=Device("Tesla T4", 0, 16 << 30, (7, 5), True),
        cell=Cell(source, "<cell>", 1),
        started=0.0,
        seconds=float(events.time[-1]),
        before=Reading(0, 0, 0, 0),
        after=Reading(int(change.sum()), 0, 0, 0),
        events=events,
        stacks=make_stacks(),
        initial=LiveBlocks(none, none, none),
        labels=tuple(
            Label(i + 1, int(events.address[i]), Category.PARAMETER, f"model.p{i}", (8,), "float32")
            for i in owned
        ),
    )


def measure(count: int, repeats: int = 3) -> Result:
    """The best of some repeats: what the machine can do when nothing else runs on it."""
    recording = make_recording(count)
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        build_report(recording, build_trace(recording), "benchmark")
        best = min(best, time.perf_counter() - begin)
    return Result(count, best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--events", type=int, nargs="*", default=[10_000, 1_000_000])
    options = parser.parse_args()
    results = [measure(count) for count in options.events]
    if options.json:
        rows = [{"events": r.events, "seconds": r.seconds, "rate": r.rate} for r in results]
        print(json.dumps({"analysis": rows}))
        return
    print(f"{'events':>12} {'seconds':>9} {'events/s':>12}")
    for result in results:
        print(f"{result.events:>12,} {result.seconds:>9.3f} {result.rate:>12,.0f}")


if __name__ == "__main__":
    main()
