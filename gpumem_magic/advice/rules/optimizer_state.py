"""Optimizer state that is the largest part of the memory at the peak."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.evidence.training_code import (
    Built,
    are_kept,
    find_built,
    find_steps,
    optimizer_class,
    states_by_hand,
    trained_here,
)
from gpumem_magic.advice.rewrite import UnsafeError, applied, remove_keyword, set_keyword
from gpumem_magic.advice.rewrite import replace as put
from gpumem_magic.advice.rule import Rule
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Cost, Edit, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import BEFORE, Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_ADAMS = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")
_WORDS = {2: "two", 3: "three"}
_RIVALS = tuple(set(Category) - {Category.OPTIMIZER_STATE, Category.TEMPORARY})

_SETUP = """\
import torch
from torch import nn, optim
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
x = torch.randn(64, 1024, device="cuda")
"""

_SCRIPT = """\
optimizer = {}
for _ in range(2):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())"""

_CLASS = """\
class Learner:
    def __init__(self, model, lr):
        groups = [{{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1}},
                  {{"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}}]
        self.model = model
        self.opt = {}

    def step(self, batch):
        loss = self.model(batch).square().mean()
        loss.backward()
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        return loss

learner = Learner(model, 1e-3)
for part in x.chunk(2):
    learner.step(part)"""


@dataclass(frozen=True, slots=True)
class _Alternative:
    """Another optimizer: what of its constructor changes, and what it costs. takes: keywords that
    it understands. without: names of states that it does not keep."""

    kind: str
    options: tuple[tuple[str, str], ...]
    takes: frozenset[str]
    without: tuple[str, ...]
    price: str


_SGD_CODE, _ADAM_CODE = "sgd.py", {"adam.py", "adamw.py", "nadam.py", "radam.py"}
LBFGS_CODE = "lbfgs.py"
_OF_PEAK = 0.1  # that states of an optimizer written by hand have at least
_HISTORY = 100  # what LBFGS takes for history_size where nothing else is given
_COMMON = frozenset({"params", "lr", "weight_decay", "maximize", "foreach"})
_SGD = _Alternative(
    "SGD",
    (("momentum", "0.9"),),
    _COMMON | {"fused", "differentiable"},
    ("exp_avg_sq", "max_exp_avg_sq", "exp_inf"),
    "Another algorithm: it needs a learning rate of its own, and trains some models, transformers "
    "above all, less well. It keeps one number for each parameter.",
)
_ADAFACTOR = _Alternative(
    "Adafactor",
    (),
    _COMMON,
    ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf"),
    "Another algorithm, without momentum: it needs a learning rate of its own. It keeps a row and "
    "a column of numbers for each matrix. From torch 2.5 on.",
)


class OptimizerState(Rule):
    """The optimizer's state is the largest part of the memory at the peak.

    Adam and its kin keep two numbers for every trained parameter, in float32 8 bytes beside the 4
    of the parameter. What keeps less: SGD with momentum (one number), Adafactor (`torch.optim`, a
    row and a column of each matrix; Shazeer and Stern 2018), Adam in 8 bits (`AdamW8bit` of the
    package bitsandbytes: about a quarter of the bytes; Dettmers et al. 2022), or the same state
    spread over several GPUs (ZeRO: `torch.distributed.optim.ZeroRedundancyOptimizer`, FSDP).
    `foreach` and `fused` change the temporaries of the step, not the state. All but the last two
    are other algorithms: the learning rate has to be found anew.
    """

    name: ClassVar[str] = "optimizer-state"
    problem: ClassVar[str] = "the optimizer's state is the largest part of the memory at the peak"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_SETUP,
            before=_SCRIPT.format("optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95))"),
            after=_SCRIPT.format("optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)"),
        ),
        Example(
            setup=_SETUP,
            before=_CLASS.format("torch.optim.Adam(groups, lr=lr, eps=1e-6)"),
            after=_CLASS.format("torch.optim.Adafactor(groups, lr=lr)"),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        yield from (first := tuple(self._first_step(trace)) or tuple(self._by_hand(trace, cell)))
        lives = trained_here(cell, trace.lives)
        if not _is_largest(trace, lives) or are_kept(trace):
            return
        if line := line_of_state(lives, {LBFGS_CODE}):
            yield self._of_history(lives, names, line)
            return
        built = [b for b in find_built(cell) if b.kind in _ADAMS]
        if len(built) == 1:
            yield from self._other_constructors(cell, lives, built[0], trace)
            if not first:
                yield self._others(lives, built[0].kind, built[0].call.lineno)
            return
        steps = list(find_steps(cell, names))
        stepped = {step.optimizer for step in steps} & names.optimizers.keys()
        facts = [names.optimizers[name] for name in stepped or names.optimizers]
        kinds = {optimizer_class(each.type) for each in facts}
        if not (built or first) and len(kinds) == 1 and steps and (kind := kinds.pop()) in _ADAMS:
            yield self._others(lives, kind, steps[0].line)
        elif not first and trace.oom is not None and (line := line_of_state(lives, _ADAM_CODE)):
            yield self._others(lives, "Adam", line)  # whatever it is wrapped in

    def _by_hand(self, trace: Trace, cell: Code) -> Iterator[Advice]:
        """States of an optimizer that is no torch.optim.Optimizer."""
        lives, own = trace.lives, states_by_hand(cell, trace.lives)
        size = lives.bytes(own)
        if size < _OF_PEAK * (trace.peak.allocated or 0) or size < least_saving(trace):
            return
        lines = sorted({*lives.line[own].tolist()} - {0, BEFORE})
        made = f" (made in {cell.place(lines[0])})" if lines else ""
        yield Advice(
            self.name,
            f"An optimizer written by hand keeps {format_bytes(size)} of state{made} beside "
            f"{format_bytes(lives.bytes(lives.of(Category.PARAMETER) & lives.at_peak))} of "
            "weights: its momenta, or whatever else it has for each.",
            "Each step needs that much, whatever the batch: fewer such numbers to a weight, "
            "numbers in bfloat16, or fewer trained weights (frozen layers, LoRA) take less. "
            "Updates in place, such as p.add_(m, alpha=-lr) for p -= lr * m, and addcmul_() and "
            "addcdiv_(), make no tensors of a weight's size besides.",
            line=lines[0] if lines else None,
            size=size,
            saving=lives.saved_at_peak(own),
            known=Known.ESTIMATED,
        )

    def _first_step(self, trace: Trace) -> Iterator[Advice]:
        """Memory ran out while the first step() made the state, tensor by tensor."""
        lives, oom = trace.lives, trace.oom
        if oom is None or not (lives.at_peak & (lives.birth >= 0)).any():
            return
        alive = lives.alive(lives.events - 1)
        made = alive & _state(lives) & (lives.birth >= 0)
        gradients = lives.bytes(alive & lives.of(Category.GRADIENT) & _of_same(lives, made))
        size = lives.bytes(made)
        many = _numbers(lives, made)
        last = int(lives.birth[made].max(initial=-1))
        later = (lives.birth > last) & (lives.born != Phase.OPTIMIZER)
        whole = many * gradients
        if not made.any() or later.any() or not 0 < size + (oom.requested or 0) <= whole:
            return
        number = "one number" if many == 1 else f"{_WORDS.get(many, many)} numbers"
        smaller = "SGD with momentum keeps one number, " if many > 1 else "plain SGD keeps none, "
        yield Advice(
            self.name,
            f"Memory ran out in the first step(), which makes the optimizer's state: "
            f"{format_bytes(size)} of about {format_bytes(whole)}, {number} for each parameter "
            "that has a gradient.",
            f"Each step needs {format_bytes(whole)} of state, whatever the batch: {smaller}"
            "Adafactor a row and a column, Adam in 8 bits a quarter; fewer trained parameters "
            "(frozen layers, LoRA) need less of all.",
            line=oom.line,
            size=size,
            saving=max(whole - gradients, gradients),
            known=Known.ESTIMATED,
        )  # no cost: it tells why memory ran out, and each way out has its own

    def _other_constructors(
        self, cell: Code, lives: Lifetimes, built: Built, trace: Trace
    ) -> Iterator[Advice]:
        advice = Advice(
            self.name, _problem(lives, built.kind), "", line=built.call.lineno, name=built.target,
            size=lives.bytes(_state(lives) & lives.at_peak), known=Known.ESTIMATED,
            cost=Cost.ACCURACY,
        )  # fmt: skip
        if any(k.arg == "amsgrad" and cell.text(k.value) == "True" for k in built.call.keywords):
            yield self.propose(
                cell,
                replace(
                    advice,
                    change="Leave out amsgrad=True, which keeps a third number.",
                    saving=lives.saved_at_peak(_state(lives, ("max_exp_avg_sq",))),
                    price="The variant's guarantee of convergence; results are others.",
                ),
                partial(remove_keyword, cell, built.call, "amsgrad"),
            )
        for other in (_SGD, _ADAFACTOR):
            saving = lives.saved_at_peak(_state(lives, other.without))
            if saving < least_saving(trace):
                continue
            options = ", ".join(f"{name}={value}" for name, value in other.options)
            wanted = f"torch.optim.{other.kind}({options})"
            proposal = replace(
                advice, change=f"Train with {wanted}.", saving=saving, price=other.price
            )
            yield self.propose(cell, proposal, partial(_exchanged, cell, built, other))

    def _of_history(self, lives: Lifetimes, names: Names, line: int) -> Advice:
        """LBFGS keeps two vectors, as long as all its parameters, of each of its last steps."""
        sizes = [o.options.get("history_size") for o in names.optimizers.values()]
        given = next((int(size) for size in sizes if size), _HISTORY)
        made = np.flatnonzero(_state(lives) & lives.at_peak)
        most = int(lives.size[made].max())
        vectors = int(np.count_nonzero(2 * lives.size[made] > most))
        whole = 2 * given * most
        return Advice(
            self.name,
            f"{_problem(lives, 'LBFGS')} It keeps two vectors, as long as all parameters together, "
            f"of each of its last {given} steps (history_size): up to {format_bytes(whole)}, of "
            f"which {vectors} vectors are there by now.",
            "Give LBFGS(...) a smaller history_size (5 to 20 is common), or use an optimizer that "
            "keeps no history.",
            line=line,
            size=lives.bytes(_state(lives) & lives.at_peak),
            cost=Cost.ACCURACY,
            price="Its steps are less well chosen.",
        )

    def _others(self, lives: Lifetimes, kind: str, line: int) -> Advice:
        size = lives.bytes(_state(lives) & lives.at_peak)
        return Advice(
            self.name,
            _problem(lives, kind),
            f"bitsandbytes' {kind if kind == 'AdamW' else 'Adam'}8bit, the same algorithm, would "
            f"keep about {format_bytes(size // 4)} of state instead of {format_bytes(size)}; "
            f"ZeRO or FSDP over N GPUs keeps an N-th on each ({format_bytes(size // 2)} on each of "
            "two). foreach and fused change nothing about it.",
            line=line,
            size=size,
            price="A further package, or more GPUs.",
        )


def line_of_state(lives: Lifetimes, files: set[str]) -> int:
    """The line whose calls made most of the state, where one of these files made it; else 0."""
    rows = np.flatnonzero(_state(lives) & lives.at_peak & (lives.birth >= 0))
    stacks = [lives.stacks[i] for i in np.unique(lives.stack[rows]).tolist() if i >= 0]
    code = {Path(f.filename).name for s in stacks for f in s if "torch/optim/" in f.filename}
    lines = Counter(lives.line[rows].tolist())
    return int(lines.most_common(1)[0][0]) if code & files else 0


def _numbers(lives: Lifetimes, made: NDArray[np.bool_]) -> int:
    """How many large states each parameter gets. Those that have no names as yet are two, but for
    SGD, which names its one when all of them are made; Adam's second may not have been begun."""
    sizes = Counter[str]()
    for row in np.flatnonzero(made).tolist():
        sizes[(lives.name(row) or "").rpartition("[")[2]] += int(lives.size[row])
    del sizes[""]
    last = lives.frames(int(np.flatnonzero(made)[-1])) if made.any() else ()
    code = {frame.filename.rpartition("torch/optim/")[2] for frame in last}
    if not sizes:
        return 1 if _SGD_CODE in code else 2
    large = [name for name, size in sizes.items() if 2 * size >= max(sizes.values())]
    return max(len(large), 2 if code & _ADAM_CODE else 1)


def _of_same(lives: Lifetimes, made: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which storages are of the models that these states are of; all where no name says it."""
    owners = lives.by_owner(made).keys() - {""}
    owned = lives.by_owner(lives.of(Category.GRADIENT))
    own = [row for owner in owners & owned.keys() for row in owned[owner]]
    return lives.rows(own) if own else np.ones(len(lives), bool)


def _problem(lives: Lifetimes, kind: str) -> str:
    peak, state = lives.at_peak, _state(lives)
    size, parameters = lives.bytes(state & peak), lives.bytes(lives.of(Category.PARAMETER) & peak)
    return (
        f"The state of {kind} is the largest part of the peak: {format_bytes(size)} beside "
        f"{format_bytes(parameters)} of parameters."
    )


def _is_largest(trace: Trace, lives: Lifetimes) -> bool:
    """By a tenth, so that it is no matter of a few small buffers. The step's own temporaries grow
    with the state, so they do not compete with it; those of other code do."""
    peak = lives.at_peak
    size = lives.bytes(_state(lives) & peak)
    passing = lives.of(Category.TEMPORARY) & peak & (lives.born != Phase.OPTIMIZER)
    most = max(lives.bytes(passing), *(lives.bytes(lives.of(kind) & peak) for kind in _RIVALS))
    return size > 1.1 * most and size >= least_saving(trace)


def _state(lives: Lifetimes, names: tuple[str, ...] = ()) -> NDArray[np.bool_]:
    """The states of these names ("exp_avg"); all without any. Those that nobody named count as
    evenly spread over Adam's two."""
    state = lives.of(Category.OPTIMIZER_STATE)
    if not names:
        return state
    found = np.zeros(len(lives), bool)
    for i in np.flatnonzero(state):
        found[i] = (lives.name(int(i)) or "").endswith(tuple(f"[{name!r}]" for name in names))
    return found


def _exchanged(cell: Code, built: Built, other: _Alternative) -> Iterator[Edit]:
    """The constructor of another optimizer, with what it understands of the arguments: one edit,
    since no other change of the old constructor makes sense for it.

    Raises UnsafeError where arguments have no names.
    """
    call = built.call
    start, end = cell.span(call)
    changed = applied(cell.source, _pieces(cell, built, other))
    yield Edit(start, end, changed[start : len(changed) - (len(cell.source) - end)])


def _pieces(cell: Code, built: Built, other: _Alternative) -> Iterator[Edit]:
    call = built.call
    if len(call.args) > 2 or any(k.arg is None for k in call.keywords):
        raise UnsafeError(f"the arguments of {built.kind} have no names")
    yield from put(cell, call.func, _class_of(cell, call.func, other.kind))
    for keyword in call.keywords:
        if keyword.arg not in other.takes:
            yield from remove_keyword(cell, call, str(keyword.arg))
    for option, value in other.options:
        yield from set_keyword(cell, call, option, value)


def _class_of(cell: Code, function: ast.expr, kind: str) -> str:
    """How the notebook writes another class of torch.optim."""
    if isinstance(function, ast.Attribute) and cell.dotted(function.value) == "torch.optim":
        return f"{cell.text(function.value)}.{kind}"
    if torch := cell.spelling("torch"):
        return f"{torch}.optim.{kind}"
    raise UnsafeError("torch has no name here")
