"""Arguments of a training framework that save memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import ClassVar

import numpy as np

from gpumem_magic.advice.changes.checkpointing import CHECKPOINT
from gpumem_magic.advice.changes.frameworks import (
    ADAPTERS,
    BATCH,
    Framework,
    Knob,
    framework_of,
    is_precise_already,
    known_value,
    passed,
    with_adapters,
)
from gpumem_magic.advice.changes.mixed_precision import has_bfloat16
from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.training_pass import heaviest_line
from gpumem_magic.advice.rewrite import UnsafeError, applied
from gpumem_magic.advice.rule import Case, Rule, mended
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.values.advice import Advice, Argument, Example, Kind
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names

_SHARE = 0.1
"""Of the peak: what is less is not worth the price of an argument."""

_PIECES = (4, 3, 5, 2)
"""In how many parts a batch is taken: the first number that leaves none over."""

_TRAINER = """\
args = TrainingArguments("out", max_steps=1, report_to=[], save_strategy="no")
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=256, n_head=2, vocab_size=20000))
one = {"input_ids": torch.zeros(8).long(), "labels": torch.zeros(8).long()}
Trainer(model=model, args=args, train_dataset=[one]).train()
"""

_LIT = """\
import torch, lightning
from torch import nn
class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(20)))
    def training_step(self, batch, index):
        return self.net(batch).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters())
"""

_FIT = """\
data = torch.utils.data.DataLoader(torch.randn(2, 4096, 256), batch_size=None)
trainer = lightning.Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Lit(), data)
"""


@dataclass(frozen=True, slots=True)
class _Case(Case):
    """What is asked of every argument."""

    framework: Framework


class FrameworkArguments(Rule):
    """Where a framework trains (transformers' Trainer and those built on it, Lightning,
    Accelerate), its own arguments are what to change: the precision, checkpointing, the size of a
    batch together with the number of batches whose gradients are added up, the optimizer.

    Each is tried by a dry run in which the framework's class is given the argument, also where it
    is called in another cell, with a dictionary or by a library. Adapters (LoRA) are told as a
    what-if: they train something else.
    """

    name: ClassVar[str] = "framework-arguments"
    problem: ClassVar[str] = "a training framework has an argument that saves memory"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            ('"no")', "\"no\", optim='adafactor')"),
            setup="import torch\nfrom transformers import GPT2Config, GPT2LMHeadModel\n"
            "from transformers import Trainer, TrainingArguments",
            before=_TRAINER,
            needs="transformers",
        ),
        mended(
            ("summary=False)", "summary=False, precision='16-mixed')"),
            setup=_LIT,
            before=_FIT,
            needs="lightning",
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        framework = framework_of(trace.lives)
        if framework is None:
            return
        here = _Case(trace, cell, names, framework)
        for knob, arguments in _candidates(here):
            if problem := _problem(here, knob):
                yield self._passing(here, knob, arguments, problem)
        if (problem := _problem(here, ADAPTERS)) and _may_have_adapters(here):
            advice = _advice(here, ADAPTERS, ADAPTERS.change, problem)
            yield self.propose(cell, advice, lambda: with_adapters(cell))

    def _passing(
        self, here: _Case, knob: Knob, arguments: tuple[Argument, ...], problem: str
    ) -> Advice:
        """The arguments written into the cell, or else as what a dry run passes."""
        by_class: dict[str, list[str]] = {}
        for one in arguments:
            kind = one.owner.rpartition(".")[2]
            by_class.setdefault(kind, []).append(f"{one.name}={one.value!r}")
        told = " and ".join(f"{', '.join(said)} to {kind}" for kind, said in by_class.items())
        advice = _advice(here, knob, f"{knob.change}: pass {told}", problem)
        try:
            edits = tuple(passed(here.cell, here.framework, arguments))
            source = applied(here.cell.source, edits)
        except UnsafeError as reason:
            change = f"{advice.change[:-1]} ({reason}; the dry run passes it there)."
            return replace(advice, change=change, arguments=arguments)
        return replace(advice, edits=edits, source=source)


def _candidates(here: _Case) -> Iterator[tuple[Knob, tuple[Argument, ...]]]:
    """What is not passed as yet."""
    owner, names = here.framework.owner, here.names
    device = here.trace.device
    bfloat16 = has_bfloat16(device.capability if device else None)
    if smaller := _smaller_batches(here):
        yield BATCH, smaller
    for knob in here.framework.knobs:
        values = knob.values_for(bfloat16)
        known = all(known_value(names, owner, name) == value for name, value in values.items())
        if not known and not _is_useless(here, knob):
            yield knob, tuple(Argument(owner, *item) for item in values.items())


def _is_useless(here: _Case, knob: Knob) -> bool:
    """Whether the cell does already what the arguments are for, or lacks what they need."""
    if knob.package and find_spec(knob.package) is None:
        return True
    if knob.half:
        return is_precise_already(here.lives, here.names, here.framework)
    if "gradient_checkpointing" in knob.values:
        return any(f.filename.endswith(CHECKPOINT) for stack in here.lives.stacks for f in stack)
    return False


def _smaller_batches(here: _Case) -> tuple[Argument, ...]:
    """The batch in parts, and as many more of them added up; none where the batch is not known."""
    framework = here.framework
    if framework.batch is None:
        return ()
    owner, _, name = framework.batch
    batch = known_value(here.names, owner, name)
    before = known_value(here.names, framework.owner, framework.steps) or 1
    if not isinstance(batch, int) or not isinstance(before, int):
        return ()
    pieces = next((count for count in _PIECES if batch % count == 0), None)
    if pieces is None:
        return ()
    return (
        Argument(owner, name, batch // pieces, was=batch),
        Argument(framework.owner, framework.steps, before * pieces),
    )


def _may_have_adapters(here: _Case) -> bool:
    models = here.names.modules.values()
    known = here.framework.runs_transformers and find_spec("peft") is not None
    return known and not any(facts.type.startswith("peft.") for facts in models)


def _problem(here: _Case, knob: Knob) -> str:
    """What the arguments make smaller, with its size; "" where that is little."""
    lives = here.lives
    held = lives.at_peak & lives.of(*knob.kinds) & (lives.birth >= 0)
    if knob.born_in:
        stacks = [any(f.function == knob.born_in for f in stack) for stack in lives.stacks]
        held &= np.array([*stacks, False], bool)[lives.stack]
    size, peak = lives.bytes(held), int(lives.levels().max())
    if size < max(MIB, _SHARE * peak):
        return ""
    line = heaviest_line(here.cell, lives, held)
    where = f" in line {line}" if line else ""
    return (
        f"{here.framework.title} runs{where}: {format_bytes(size)} of the peak "
        f"({100 * size / peak:.0f} %) are {knob.what}."
    )


def _advice(here: _Case, knob: Knob, change: str, problem: str) -> Advice:
    line = heaviest_line(here.cell, here.lives, here.lives.at_peak)
    return Advice(
        FrameworkArguments.name, problem, f"{change}.", line=line, price=knob.price, cost=knob.cost
    )
