"""Predictions beside numbers that others measured on real GPUs and published with what they ran.

python benchmarks/published.py [--json FILE] [--markdown] [NAME ...]
published_runs.py has the numbers, published_cells/ the cells, written after what each source says
that it ran. Each is predicted in a process of its own. With --json, results are added to what FILE
has; --markdown prints FILE.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from published_runs import GIB, RUNS, TOLD, Run

RESULTS = Path(__file__).parent / "results" / "published.json"


@dataclass(frozen=True, slots=True)
class Result:
    """A published number and the predicted one, in bytes. percent: of the published one."""

    title: str
    source: str
    page: str
    card: str
    versions: str
    counter: str
    published: int
    predicted: int
    percent: float
    cause: str
    seconds: float


def result_of(run: Run, told: dict[str, int], seconds: float) -> Result:
    published = round(run.published * run.unit)
    predicted = told[run.counter]
    percent = round(100 * (predicted / published - 1), 2)
    source = run.source
    return Result(
        run.title,
        source.name,
        source.page,
        source.card,
        source.versions,
        run.counter,
        published,
        predicted,
        percent,
        run.cause if abs(percent) > TOLD else "",
        seconds,
    )


_PREDICT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import gpumem_magic
code, card = json.loads(sys.argv[1])
report = gpumem_magic.predict(code, {"__name__": "__main__"}, gpu=card)
if report.error:
    sys.exit(report.error)
peak, after = report.peak, report.after
print(json.dumps(dict(allocated=peak.allocated, reserved=peak.reserved, after=after.allocated)))
"""


def predicted(run: Run) -> dict[str, int]:
    """The counters of the run's cell. Raises CalledProcessError where it could not be predicted."""
    order = json.dumps([run.code, run.source.key])
    done = subprocess.run(
        [sys.executable, "-c", _PREDICT, order],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    told: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return told


def versions() -> dict[str, str]:
    """What the predictions were made with."""
    names = ("torch", "transformers", "diffusers", "peft", "timm", "bitsandbytes", "torchao")
    return {name: metadata.version(name) for name in names}


def lines_of(results: list[dict[str, Any]]) -> list[str]:
    """A Markdown table."""
    rows = ["| run | card | counter | published | predicted | off |", "|---|---|---|---|---|---|"]
    for each in results:
        published, told = (f"{each[size] / GIB:,.2f}" for size in ("published", "predicted"))
        name = f"[{each['title']}]({each['page']})"
        counter = "allocated after a step" if each["counter"] == "after" else each["counter"]
        off = f"{each['percent']:+.2f} %"
        rows.append(f"| {name} | {each['card']} | {counter} | {published} | {told} | {off} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("names", nargs="*", help="parts of titles; all by default")
    options = parser.parse_args()
    if options.markdown:
        print("\n".join(lines_of(json.loads((options.json or RESULTS).read_text())["runs"])))
        return
    known: dict[str, dict[str, int]] = {}
    for run in RUNS:
        if options.names and not any(name in run.title for name in options.names):
            continue
        began = time.monotonic()
        if run.title not in known:
            known[run.title] = predicted(run)
        result = result_of(run, known[run.title], round(time.monotonic() - began, 1))
        print(f"{result.title:62} {result.counter:9} {result.percent:+7.2f} %", flush=True)
        if options.json:
            _add(options.json, result)


def _add(file: Path, result: Result) -> None:
    """Put a result into the file, in the place of an older one of the same run and counter."""
    old = json.loads(file.read_text())["runs"] if file.exists() else []
    rows = {(row["title"], row["counter"]): row for row in [*old, asdict(result)]}
    order = [(run.title, run.counter) for run in RUNS]
    kept = [rows[each] for each in order if each in rows]
    file.write_text(json.dumps({"versions": versions(), "runs": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
