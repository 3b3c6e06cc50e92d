"""Single operators, forward and backward: what a dry run says against PyTorch's real allocator on
the stub device, event for event.

    python benchmarks/operators.py [--align] [words that a line of operators.txt has]

Left out of operators.txt: what goes by values (the stub device computes nothing), and libraries
whose workspaces are not published.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fidelity_events import Event, differences
from fidelity_ways import REAL, WAYS, Outcome, Runners

LISTED = Path(__file__).with_suffix(".txt")
PATIENCE = 120  # seconds for one cell
CELL = """import torch, torch.nn as nn, torch.nn.functional as F
D = dict(device="cuda")
x = torch.randn({shape}, **D, requires_grad=True)
for _ in range(2):
    for loss in (torch.square, torch.positive):  # with a dense gradient, with an expanded one
        y = {expression}
        loss(y.float()).sum().backward()
        x.grad = None
"""


@dataclass(frozen=True)
class Operator:
    """A cell with one operator, as `Runners` want it."""

    name: str
    source: str
    card: str = "A100-40GB"


@dataclass(frozen=True)
class Compared:
    """What the two ways said. allocated, reserved: how far the dry run's peak is from the real
    one, as a share; events: the first runs of events that differ."""

    name: str
    error: str = ""
    allocated: float = 0.0
    reserved: float = 0.0
    events: tuple[str, ...] = ()


def operators(words: Sequence[str] = ()) -> Iterator[Operator]:
    """The cells of operators.txt whose lines have one of the words; none: all."""
    shape = ""
    for line in LISTED.read_text().splitlines():
        if line.startswith("## "):
            shape = line.removeprefix("## ")
        elif line and not line.startswith("#") and (not words or any(w in line for w in words)):
            yield Operator(line, CELL.format(shape=shape, expression=line))


def compare(runners: Runners, operator: Operator) -> Compared:
    """Run one cell both ways."""
    (dry,) = (way for way in WAYS if way.name == "dry")
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("real", "dry")]
        found = [
            runners.run(way, operator, file) for way, file in zip((REAL, dry), files, strict=True)
        ]
        for name, outcome in zip(("real", "dry"), found, strict=True):
            if outcome.error:
                return Compared(operator.name, f"{name}: {outcome.error[:200]}")
        events = [_events(file) for file in files]
    real, predicted = found
    return Compared(
        operator.name,
        allocated=_share(real, predicted, "allocated"),
        reserved=_share(real, predicted, "reserved"),
        events=tuple(differences(*events, 3)),
    )


def _events(file: Path) -> list[Event]:
    return [
        (kind, size, place, address) for kind, size, place, address in json.loads(file.read_text())
    ]


def _share(real: Outcome, predicted: Outcome, level: str) -> float:
    return getattr(predicted, level) / getattr(real, level) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--align", action="store_true", help="show where events differ first")
    parser.add_argument("words", nargs="*", help="only operators whose line has one of these")
    options = parser.parse_args()
    counts = {"same events": 0, "same peak, other events": 0, "other peak": 0, "not run": 0}
    with Runners(PATIENCE) as runners:
        for operator in operators(options.words):
            found = compare(runners, operator)
            kind = (
                "not run" if found.error
                else "other peak" if abs(found.allocated) > 1e-4
                else "same peak, other events" if found.events
                else "same events"
            )  # fmt: skip
            counts[kind] += 1
            if kind in ("not run", "other peak") or (options.align and found.events):
                sizes = f"allocated {found.allocated:+.2%}, reserved {found.reserved:+.2%}"
                print(f"{found.name}\n    {found.error or sizes}", flush=True)
            if options.align:
                print(*(f"    {event}" for event in found.events), sep="\n")
    print(", ".join(f"{kind}: {count}" for kind, count in counts.items()))


if __name__ == "__main__":
    main()
