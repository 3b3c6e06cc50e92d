"""Whether the largest value that `fit` finds is the largest that PyTorch's real allocator holds:
the cell is run on the stub device with that value, which must succeed, and with the next, which
must run out of memory.

python benchmarks/fit.py [--json FILE] [NAME ...]
A NAME is a cell of fidelity_workloads/. The search and the stub use the same version of torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import stub_device
from fidelity import about
from fidelity_table import Workload
from fidelity_ways import QUIET, REAL, UPWARDS, Runners, Way, is_possible


@dataclass(frozen=True, slots=True)
class Question:
    """The largest value of which variable lets which cell run on which card?"""

    cell: str
    variable: str
    card: str = "T4"
    values: tuple[tuple[str, int], ...] = ()

    def work(self, value: int) -> Workload:
        """The cell with that value."""
        return Workload(self.cell, self.card, (*self.values, (self.variable, value)))


@dataclass(frozen=True, slots=True)
class Answer:
    """What `fit` found, in how many dry runs and seconds; error: what it raised instead."""

    value: int = 0
    exact: bool = False
    runs: int = 0
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the cell did on a stub device with the value found, and with the next one: "runs",
    "out of memory", or another error's text."""

    at_value: str
    at_next: str

    @property
    def holds(self) -> bool:
        """Whether the value is right to the unit."""
        return (self.at_value, self.at_next) == ("runs", "out of memory")


# Where the value makes the model larger, the card is small: its weights are made on the host.
QUESTIONS = (
    Question("mlp", "batch_size"),
    Question("mlp", "batch_size", "RTX3060", (("hidden", 333), ("steps", 50))),
    Question("mlp", "hidden", "2GiB"),
    Question("mlp_loader", "hidden", "2GiB"),
    Question("vgg", "batch_size"),
    Question("resnet", "batch_size", "A100-40GB"),
    Question("autoencoder", "batch_size"),
    Question("transformer", "batch_size"),
    Question("transformer", "length"),
    Question("gpt_scratch", "batch_size"),
    Question("gpt_scratch", "length"),
    Question("gpt2", "batch_size"),
    Question("gpt2", "length"),
    Question("bert", "batch_size"),
    Question("lstm", "batch_size"),
    Question("lstm", "length"),
    Question("lstm", "width", "2GiB"),
    Question("gru", "batch_size"),
    Question("recommender", "batch_size"),
    Question("tensors", "points"),
)


class Finder:
    """A process that answers questions by dry runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, question: Question) -> Answer:
        """What `fit` says there."""
        work = Workload(question.cell, question.card, question.values)
        job = {"source": work.source, "name": question.variable, "gpu": question.card}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        told = self._process.stdout.readline()
        if not told:
            raise RuntimeError(f"the process that answers ended with {self._process.wait()}")
        return Answer(**json.loads(told))


@contextmanager
def finder() -> Iterator[Finder]:
    """One with the stub's version of torch, but without the stub."""
    command = [stub_device.python(), "-W", "ignore", __file__, "--answer"]
    process = subprocess.Popen(
        command,
        env=stub_device.environment(**QUIET),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        yield Finder(process)
        process.communicate()


def answer_questions() -> None:
    """Be the process: a job of JSON in each line of the input, an Answer in each of the output."""
    from gpumem_magic import fit

    with redirect_stdout(sys.stderr):
        for text in sys.stdin:
            started = time.perf_counter()
            try:
                found = fit(**json.loads(text), namespace={"__name__": "__main__"}, headroom=0)
                answer = Answer(found.value, found.exact, found.runs)
            except Exception as error:
                answer = Answer(error=f"{type(error).__name__}: {error}")
            row = asdict(answer) | {"seconds": round(time.perf_counter() - started, 2)}
            print(json.dumps(row), file=sys.__stdout__, flush=True)


def prove(runners: Runners, way: Way, question: Question, value: int) -> Proof:
    """Run the cell with `value`, and with the next."""
    told = [runners.run(way, question.work(each)).error for each in (value, value + 1)]
    return Proof(*map(_in_words, told))


def _in_words(error: str | None) -> str:
    if error is None:
        return "runs"
    return "out of memory" if error.startswith("OutOfMemoryError") else error


def rows(questions: list[Question]) -> Iterator[dict[str, Any]]:
    """For each question the answer, and the proof on each stub device that can be had."""
    with finder() as asked, Runners() as runners:
        for question in questions:
            answer = asked.ask(question)
            proofs = {
                way.name: prove(runners, way, question, answer.value)
                for way in (REAL, UPWARDS)
                if is_possible(way) and not answer.error
            }
            print(_line(question, answer, proofs), flush=True)
            yield {
                **asdict(question),
                "values": dict(question.values),
                **asdict(answer),
                "stub": {name: {**asdict(p), "holds": p.holds} for name, p in proofs.items()},
            }


def _line(question: Question, answer: Answer, proofs: dict[str, Proof]) -> str:
    shown = [f"{question.cell:<14}{question.variable:<12}{question.card:<10}"]
    if answer.error:
        return shown[0] + answer.error
    exact = " " if answer.exact else "~"
    shown.append(f"{exact}{answer.value:>9,}{answer.runs:>4} runs{answer.seconds:>7.1f} s")
    shown += [f"  {name}: {p.at_value[:60]}, {p.at_next[:60]}" for name, p in proofs.items()]
    return "".join(shown)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="cells; all if none is named")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer_questions()
        return 0
    if not stub_device.has_stub():
        print("fit.py: skipped: set GPUMEM_STUB and GPUMEM_STUB_PYTHON", file=sys.stderr)
        return 0
    chosen = [each for each in QUESTIONS if not options.names or each.cell in options.names]
    told: list[dict[str, Any]] = []
    for row in rows(chosen):
        told.append(row)
        if options.json:
            result = {"about": about() | {"ways": _ways()}, "questions": told}
            options.json.write_text(json.dumps(result, indent=1) + os.linesep)
    for way in _ways():
        right = sum(row["stub"].get(way, {}).get("holds", False) for row in told)
        print(f"right to the unit on {way}: {right} of {len(told)}")
    return 0


def _ways() -> dict[str, str]:
    return {way.name: way.title for way in (REAL, UPWARDS)}


if __name__ == "__main__":
    sys.exit(main())
