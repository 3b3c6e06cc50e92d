"""Temporaries of an optimizer's step that set the peak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.evidence.training_code import Built, find_built, optimizer_class
from gpumem_magic.advice.rewrite import set_keyword
from gpumem_magic.advice.rule import Rule
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Cost, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_FUSED = ("Adam", "AdamW", "SGD")
"""Optimizers whose fused kernel CUDA has (torch/optim/adam.py, adamw.py, sgd.py)."""
_FOREACH = (*_FUSED, "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "ASGD", "RMSprop", "Rprop")
"""Optimizers that on CUDA take all parameters at once unless told otherwise (foreach=None)."""

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(768, 768) for _ in range(12)]).cuda()
x = torch.randn(64, 768, device="cuda")
"""

_SCRIPT = """\
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4{})
for _ in range(2):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
final = loss.item()"""


class ForeachPeak(Rule):
    """The temporaries of the optimizer's step set the peak.

    On a GPU torch's optimizers take all parameters at once (`foreach`), which is fast and needs
    temporaries as large as all parameters together, or more. If memory peaks in the step,
    `fused=True` computes the update in one kernel without them (Adam, AdamW, SGD); its results
    differ in the last digits only. `foreach=False` goes from parameter to parameter: temporaries of
    one parameter at a time, the same numbers, and several small kernels for each parameter, which
    is slower for models of many small ones.
    """

    name: ClassVar[str] = "foreach-peak"
    problem: ClassVar[str] = "the temporaries of the optimizer's step set the peak"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_SETUP,
            before=_SCRIPT.format(""),
            after=_SCRIPT.format(", fused=True"),
            results=("final",),
        ),
        Example(
            setup=_SETUP,
            before=_SCRIPT.format(""),
            after=_SCRIPT.format(", foreach=False"),
            results=("final",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        step = _Step.failed(trace) or _Step.of(lives)
        if step.saving < least_saving(trace) or step.size < step.saving:
            return
        everything = find_built(cell)
        builts = [built for built in everything if _is_foreach(cell, built)]
        if len(builts) == 1:
            for option in _options(builts[0].kind):
                yield self._advice(cell, step, builts[0], option)
        elif not everything and (kind := _kind_of(names)):
            yield self._told(step, kind)

    def _advice(self, cell: Code, step: _Step, built: Built, option: _Option) -> Advice:
        name, _, value = option.text.partition("=")
        advice = Advice(
            self.name,
            step.problem,
            f"Build {built.target} with {option.text}.",
            line=built.call.lineno,
            name=built.target,
            size=step.saving,
            saving=step.saving if option.fused else step.all_but_largest,
            known=Known.ESTIMATED,
            price=option.price,
            cost=Cost.NOTHING if option.fused else Cost.TIME,
        )
        return self.propose(cell, advice, partial(set_keyword, cell, built.call, name, value))

    def _told(self, step: _Step, kind: str) -> Advice:
        options = _options(kind)
        return Advice(
            self.name,
            step.problem,
            f"Build the optimizer ({kind}) with {' or '.join(o.text for o in options)}.",
            line=max(step.line, 0) or None,
            size=step.saving,
            saving=step.saving if options[0].fused else step.all_but_largest,
            known=Known.ESTIMATED,
            price=options[0].price,
            cost=Cost.NOTHING if options[0].fused else Cost.TIME,
        )


@dataclass(frozen=True, slots=True)
class _Option:
    """An argument of an optimizer, and what it costs."""

    text: str
    price: str

    @property
    def fused(self) -> bool:
        """Whether no temporaries are left."""
        return self.text == "fused=True"


_FOREACH_OPERATORS = "aten._foreach_"
_ONE_BY_ONE = _Option("foreach=False", "A step takes longer: several kernels for each parameter.")
_ONE_KERNEL = _Option("fused=True", "Results differ in the last digits.")


@dataclass(frozen=True, slots=True)
class _Step:
    """The optimizer's step at the peak: its line, bytes of its temporaries then and of the largest
    of them, and how much lower the peak were without them. ran_out: memory did, as it made them."""

    line: int
    size: int
    largest: int
    saving: int
    ran_out: bool = False

    @classmethod
    def failed(cls, trace: Trace) -> _Step | None:
        """The one that memory ran out in, where an operator for all parameters at once asked for
        it: each makes a temporary as large as all gradients, of which other models have theirs
        from before the last step."""
        lives, oom = trace.lives, trace.oom
        if oom is None or not (oom.op or "").startswith(_FOREACH_OPERATORS):
            return None
        gradients = lives.of(Category.GRADIENT) & lives.alive(lives.events - 1)
        steps = (lives.born == Phase.OPTIMIZER) & (lives.step < lives.step[lives.birth.argmax()])
        anew = gradients & (lives.birth > lives.birth[steps].max(initial=-1))
        gradients = anew if anew.any() else gradients
        size, largest = lives.bytes(gradients), int(lives.size[gradients].max(initial=0))
        return cls(oom.line or 0, size, largest, size, ran_out=True)

    @classmethod
    def of(cls, lives: Lifetimes) -> _Step:
        """The one that the peak falls into; nothing of a size where it does not."""
        temporaries = (lives.born == Phase.OPTIMIZER) & lives.of(Category.TEMPORARY)
        here = temporaries & lives.at_peak
        line = int(lives.line[here][-1]) if here.any() else 0
        largest = int(lives.size[here].max(initial=0))
        return cls(line, lives.bytes(here), largest, lives.saved_at_peak(temporaries))

    @property
    def problem(self) -> str:
        where = f" on line {self.line}" if self.line > 0 else ""
        if self.ran_out:
            return (
                f"Memory ran out in the optimizer's step{where} as it made temporaries for all "
                f"parameters at once, {format_bytes(self.size)} each time."
            )
        return (
            f"At the peak, in the optimizer's step{where}, {format_bytes(self.size)} were "
            "temporaries of the step itself."
        )

    @property
    def all_but_largest(self) -> int:
        """What is left of the saving when one parameter at a time has its temporaries."""
        return max(self.saving - 2 * self.largest, 0)


def _options(kind: str) -> tuple[_Option, ...]:
    return (_ONE_KERNEL, _ONE_BY_ONE) if kind in _FUSED else (_ONE_BY_ONE,)


def _is_foreach(cell: Code, built: Built) -> bool:
    """Whether the optimizer takes all parameters at once; not known for what ** passes."""
    given = {keyword.arg: keyword.value for keyword in built.call.keywords}
    if None in given or built.kind not in _FOREACH:
        return False
    return all(cell.text(given[k]) == "None" for k in ("fused",) if k in given) and all(
        cell.text(given[k]) in ("None", "True") for k in ("foreach",) if k in given
    )


def _kind_of(names: Names) -> str:
    """The class of the notebook's only optimizer, if it takes all parameters at once."""
    found: Iterator[str] = (
        optimizer_class(facts.type)
        for facts in names.optimizers.values()
        if facts.options.get("foreach") is not False and not facts.options.get("fused")
    )
    kinds = list(found)
    return kinds[0] if len(kinds) == len(names.optimizers) == 1 and kinds[0] in _FOREACH else ""
