"""What rules say that their changes save, against what they save on this machine's GPU.

python benchmarks/claims.py [--json FILE] [--seconds N] [NAME ...]
Each example of a rule is predicted for the GPU, then run on it as it is written and as the rule
writes it, each in a process of its own, several at once. --seconds: to take at most; what is not
begun by then is left out. NAME: of a rule. Ends with 1 where a claim does not hold.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

from fidelity_ways import WAYS, Runners, Way
from verify_gpu import WORKERS, card_of

from gpumem_magic.advice import RULES, find_rule
from gpumem_magic.assess import Question, assess
from gpumem_magic.devices import choose_source
from gpumem_magic.dryrun import Scenario
from gpumem_magic.sources import ACTIVE, Active
from gpumem_magic.values.advice import Advice, Example, Saves
from gpumem_magic.values.recording import Cell

AGREES = 0.05
"""How far a saving may be off: of itself, or, where none is claimed, of a fifth of the memory."""

_OF_THE_NOTEBOOK = ("stale-output", "second-model")  # a script has no output history, and runs once
_RAISING = ("backward-under-no-grad", "graph-used-twice")
_WHEN_SHORT = ("separate-models", "large-pass")  # and the cards here have room
_SIZES = {Saves.PEAK: "allocated", Saves.AFTER: "end", Saves.RESERVED: "reserved"}
_GPU = next(way for way in WAYS if way.name == "gpu")


@dataclass(frozen=True, slots=True)
class Case:
    """An example of a rule, by its number."""

    rule: str
    number: int

    @property
    def example(self) -> Example:
        return find_rule(self.rule).examples[self.number]


CASES = [
    Case(rule.name, number)
    for rule in RULES
    for number, example in enumerate(rule.examples)
    if example.rewritten
    and not example.needs
    and rule.name not in (*_OF_THE_NOTEBOOK, *_RAISING, *_WHEN_SHORT)
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Bytes of what the rule saves, before its change and after it, and what it claims. error: why
    there are none; the rule may have nothing to say of that card."""

    size: str = ""
    claimed: int = 0
    before: int = 0
    after: int = 0
    error: str = ""

    @property
    def holds(self) -> bool:
        """Whether the claim is what was saved, `AGREES` apart."""
        saved = self.before - self.after
        slack = AGREES * max(abs(saved), 0 if self.claimed else 0.2 * self.before)
        return abs(saved - self.claimed) <= slack


def claimed(case: Case, card: str) -> Advice | None:
    """What the rule says of its example on a virtual card; None where that is nothing."""
    names = {"__name__": "__main__"}
    source = choose_source(card)
    source.enter()
    active = ACTIVE.set(Active(source, recording=False))
    try:
        exec(compile(case.example.setup, "<setup>", "exec"), names)
        found = assess(Question(Scenario(Cell(case.example.before, "<cell>"), names), str))
    finally:
        ACTIVE.reset(active)
        source.leave()
        names.clear()
        source.close()
    everything = (*found.advice, *found.useless)
    mine = [one for one in everything if one.rule == case.rule]
    return next((one for one in mine if one.source == case.example.after), None)


def compared(case: Case, card: str, runners: Runners, way: Way) -> Outcome:
    """The claim for `card` beside two runs in `way`."""
    advice = claimed(case, card)
    if advice is None:
        return Outcome(error="nothing is said of it on this card")
    size, bytes_ = _SIZES[advice.saves], []
    set_up = f"import torch\n{case.example.setup}\ntorch.cuda.reset_peak_memory_stats()"
    for cell in (case.example.before, case.example.after):
        source = f"{set_up}\n{cell}\n"
        told = runners.run(way, SimpleNamespace(name=case.rule, source=source, card=card))
        if told.error is not None:
            return Outcome(error=told.error)
        bytes_.append(getattr(told, size))
    return Outcome(size, advice.saving or 0, *bytes_)


def _on_gpu(case: Case, card: str, until: float) -> Outcome:
    if time.time() > until:
        return Outcome(error="no time was left")
    try:
        with Runners(limit=60) as runners:
            return compared(case, card, runners, _GPU)
    except Exception as error:
        return Outcome(error=repr(error)[:200])


def on_gpu(cases: list[Case], card: str, seconds: float) -> Iterator[Outcome]:
    """Of each case, in their order."""
    until = time.time() + seconds
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=spawned) as pool:
        yield from pool.map(_on_gpu, cases, [card] * len(cases), [until] * len(cases))


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="rules; all if none is named")
    parser.add_argument("--json", type=Path, help="where to write the outcomes")
    parser.add_argument("--seconds", type=float, default=300, help="to take at most")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("claims.py: PyTorch finds no CUDA or ROCm device", file=sys.stderr)
        return 1
    name = torch.cuda.get_device_name()
    cases = [case for case in CASES if not options.names or case.rule in options.names]
    rows, wrong = {}, 0
    for case, outcome in zip(cases, on_gpu(cases, card_of(name), options.seconds), strict=True):
        told = outcome.error or f"{outcome.claimed:>13,} of {outcome.before:,} {outcome.size}"
        is_wrong = not outcome.error and not outcome.holds
        wrong += is_wrong
        print(f"{case.rule}-{case.number:<3} {told}{' DOES NOT HOLD' * is_wrong}", flush=True)
        rows[f"{case.rule}-{case.number}"] = asdict(outcome)
    if options.json:
        options.json.write_text(json.dumps({"device": name, "cases": rows}, indent=1) + "\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
