"""Which cells that people run can be predicted: predicted, refused, crashed or timed out.

python benchmarks/coverage.py [--json FILE] [--seconds N] [--judge] [NAME ...]
The cells are in coverage_cells/, a file for each package, written after the page that each cell
names. A cell runs as it is in a process of its own, imports and all, on the card that it names (an
L4). Results are added to what the file has. --judge compares instead with the real allocator on the
stub device ($GPUMEM_STUB, $GPUMEM_STUB_PYTHON), both sides with that Python's torch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import date
from importlib import metadata
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fidelity_ways import Runners, Way

FOLDER = Path(__file__).parent / "coverage_cells"
LIMIT = 60.0
_SEED = "import random, numpy, torch; random.seed(0); numpy.random.seed(0); torch.manual_seed(0)\n"
_LIKE = {"L4": "A10G"}  # the stub cannot launch kernels for the capability of an L4
_ENDED = "what the real side ended by"
_ANSWERED = ("aten._local_scalar_dense.default", "aten.is_nonzero.default", _ENDED)
_SAME = 0.01
"""Percent up to which a prediction and the real allocator are taken to agree."""
_REFUSED = re.compile(
    "not supported in a dry run|cannot be predicted|not covered by the virtual GPU"
    "|a dry run makes no connections"
)
_ENDLESS = "the dry run came to nothing new in"
# "Requires mslk >= 1.0.0", "... `pip install -U gemlite`": not "requires a GPU".
_ASKED_FOR = re.compile(
    r"(?:requires? (?=[\w.-]+ *[<>=~!]=?)|pip install (?:-\S+ )*)[`'\"]?(?P<package>\w[\w.-]*)",
    re.IGNORECASE,
)
_HEAD = re.compile(r"^# %% (?P<name>[^|\n]+) \| (?P<page>\S+)(?: \| (?P<card>\S+))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a package's documentation. page: where that stands. card: what it is run on."""

    name: str
    page: str
    card: str
    source: str


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a cell. date: of the run. outcome: predicted, refused, crashed, timed out or
    absent (a package is not installed). processor: seconds of it, imports and all. peak, reserved:
    bytes, None where it was not predicted."""

    name: str
    page: str
    card: str
    date: str
    outcome: str
    seconds: float
    processor: float
    peak: int | None = None
    reserved: int | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()


def cells_of(file: Path) -> Iterator[Cell]:
    """The cells of a file, in order."""
    text = file.read_text()
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=True):
        source = text[head.end() : end].strip() + "\n"
        yield Cell(f"{file.stem}: {head['name']}", head["page"], head["card"] or "L4", source)


def result_of(cell: Cell, seconds: float) -> Result:
    """Predict one cell in a fresh process."""
    known = cell.name, cell.page, cell.card, date.today().isoformat()
    order = json.dumps(asdict(cell))
    began, used = time.monotonic(), _processor()
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PREDICT, order],
            check=False,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return Result(*known, "timed out", seconds, _processor() - used)
    taken = round(time.monotonic() - began, 2), round(_processor() - used, 2)
    try:
        said = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return Result(*known, "crashed", *taken, reason=done.stderr[-400:])
    said["notes"] = tuple(said["notes"])
    return Result(*known, said.pop("outcome") or outcome_of(said["reason"]), *taken, **said)


def _processor() -> float:
    """Seconds of processor time of this process's children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def outcome_of(error: str) -> str:
    """What became of a cell that was run, from its error's text ("": it had none)."""
    if not error:
        return "predicted"
    if error.startswith("ModuleNotFoundError") or names_absent_package(error):
        return "absent"
    if _ENDLESS in error:
        return "timed out"
    return "refused" if _REFUSED.search(error) else "crashed"


def names_absent_package(error: str) -> bool:
    """If it is an ImportError that asks for a package which is indeed not installed."""
    if not error.startswith("ImportError"):
        return False
    with suppress(metadata.PackageNotFoundError):
        for asked in _ASKED_FOR.finditer(error):
            metadata.distribution(asked["package"])
        return False
    return True


_PREDICT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch, gpumem_magic
cell = json.loads(sys.argv[1])
told = dict(outcome="", peak=None, reserved=None, reason="", notes=())
try:
    report = gpumem_magic.predict(cell["source"], {"__name__": "__main__"}, gpu=cell["card"])
except Exception as error:
    told.update(outcome="refused", reason=f"{type(error).__name__}: {error}")
else:
    told.update(peak=report.peak.allocated, reserved=report.peak.reserved, notes=report.notes)
    text = "" if report.error is None or report.oom else str(report.error)
    told.update(reason=text)
print(json.dumps(told))
"""


def seeded(cell: Cell) -> Cell:
    """The same, so that two runs draw the same numbers."""
    return replace(cell, source=_SEED + cell.source)


def every_cell() -> list[Cell]:
    return [cell for file in sorted(FOLDER.glob("*.py")) for cell in cells_of(file)]


def versions() -> dict[str, str]:
    """Of the packages that the cells are written for."""
    found = {}
    for name in ("torch", *sorted(file.stem for file in FOLDER.glob("*.py"))):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name.replace("_", "-"))
    return found


def judged(runners: Runners, cell: Cell) -> dict[str, Any]:
    """Percent that the prediction is more than the real peaks, or the reason why it is not known.

    The stub's kernels compute nothing, so what goes by values goes another way there. Where the two
    differ, `value` names such a use (see fidelity_events.value_between), and `answered` has the
    errors once code that reads values there hears what the dry run answered (fidelity_answers.py).
    So it is, too, where the real side does not end well without them: `generate` waits for a value,
    a distribution checks its own.
    """
    from fidelity import off
    from fidelity_ways import REAL

    job: Any = replace(seeded(cell), card=_LIKE.get(cell.card, cell.card))
    real = runners.run(REAL, job)
    mine = real if real.error else runners.run(_dry(), job)
    found = {size: off(mine, real, size) for size in ("allocated", "reserved")}
    told = {**found, "reason": (real.error or mine.error or "")[:160], "value": None}
    if _differ(found) and (value := _value_between(runners, job, job)):
        told |= {"value": value, "answered": _answered(runners, job)[0]}
    if real.error:
        answered, hearing = _answered(runners, job)
        if answered["allocated"] is not None:
            value = _differ(answered) and _value_between(runners, job, hearing)
            told |= {"value": value or _ENDED, "answered": answered}
    return told


def _differ(found: dict[str, float | None]) -> bool:
    return any(error and abs(error) > _SAME for error in found.values())


def _answered(runners: Runners, job: Any) -> tuple[dict[str, float | None], Any]:
    """The errors where the real side hears what the dry run answered, and the cell that does."""
    from fidelity import off
    from fidelity_answers import answers_in, replaying
    from fidelity_ways import REAL

    mine = runners.run(replace(_dry(), child="dry answers"), job)
    hearing = replace(job, source=replaying(answers_in(mine.printed)) + job.source)
    real = runners.run(REAL, hearing)
    return {size: off(mine, real, size) for size in ("allocated", "reserved")}, hearing


def _dry() -> Way:
    from fidelity_ways import WAYS

    return next(way for way in WAYS if way.name == "dry")


def _value_between(runners: Runners, job: Any, real_job: Any) -> str | None:
    from fidelity_events import value_between
    from fidelity_ways import REAL

    with TemporaryDirectory() as folder:
        real, mine = Path(folder, "real"), Path(folder, "mine")
        watched = runners.run(replace(REAL, child="watched"), real_job, real)
        runners.run(_dry(), job, mine)
        if not real.exists() or not mine.exists():
            return None
        uses = [(count, what) for count, what in json.loads(watched.printed or "[]")]
        return value_between(*(json.loads(f.read_text()) for f in (real, mine)), uses)


def judge(cells: Iterable[Cell], file: Path | None) -> None:
    """Compare, print, and add to the file, with what the errors come to."""
    from fidelity_ways import Runners

    table = json.loads(file.read_text()) if file and file.exists() else {"cells": []}
    rows = table.setdefault("errors", {}).setdefault("cells", {})
    with Runners(int(LIMIT)) as runners:
        for cell in cells:
            rows[cell.name] = judged(runners, cell)
            print(cell.name, rows[cell.name], flush=True)
            table["errors"] |= summary(rows)
            if file:
                file.write_text(json.dumps(table, indent=1) + "\n")


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of each size the median and the worst error, in percent, and how many could be judged: by
    the dry run's answers where values decide, unless a size that a value decides is between."""
    told: dict[str, Any] = {"by_values": sum(row["value"] is not None for row in rows.values())}
    for size in ("allocated", "reserved"):
        judged = {
            name: row["answered"] if _goes_by_answers(row) else row
            for name, row in rows.items()
            if row["value"] is None or _goes_by_answers(row)
        }
        known = {name: abs(row[size]) for name, row in judged.items() if row[size] is not None}
        worst = max(known, key=known.__getitem__, default=None)
        told[size] = {
            "median": median(known.values()) if known else None,
            "worst": worst and round(known[worst], 4),
            "worst_cell": worst,
            "judged": len(known),
            "of": len(rows),
        }
    return told


def _goes_by_answers(row: dict[str, Any]) -> bool:
    return row["value"] in _ANSWERED and "answered" in row


def lines_of(results: Iterable[Result]) -> Iterator[str]:
    """The table, and a line that sums it up."""
    counts: Counter[str] = Counter()
    for result in results:
        counts[result.outcome] += 1
        peak = "" if result.peak is None else f"{result.peak / 2**20:,.1f} MiB"
        said = result.reason.strip().replace("\n", " ")[:160]
        yield f"{result.name:42} {result.outcome:10} {result.processor:6.1f} s {peak:>14}  {said}"
    yield ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--judge", action="store_true", help="compare with the real allocator")
    parser.add_argument("--seconds", type=float, default=LIMIT)
    parser.add_argument("names", nargs="*", help="parts of names; all by default")
    options = parser.parse_args()
    wanted = [
        c for c in every_cell() if not options.names or any(n in c.name for n in options.names)
    ]
    if options.judge:
        judge(wanted, options.json)
        return

    def run() -> Iterator[Result]:
        for cell in wanted:
            result = result_of(cell, options.seconds)
            if options.json:
                add(options.json, result)
            yield result

    for line in lines_of(run()):
        print(line, flush=True)


def add(file: Path, result: Result) -> None:
    """Put a result into the file, in the place of the cell's last one if it has one."""
    known = json.loads(file.read_text()) if file.exists() else {"cells": []}
    rows = {row["name"]: row for row in known["cells"]} | {result.name: asdict(result)}
    table = known | {"versions": versions(), "cells": [rows[name] for name in sorted(rows)]}
    file.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
