"""Activations that wait for the backward pass."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.changes.checkpointing import CHECKPOINT, checkpointed, repeated_path
from gpumem_magic.advice.changes.frameworks import framework_of
from gpumem_magic.advice.changes.in_place import in_place, overwritable
from gpumem_magic.advice.changes.micro_batches import PIECES, in_pieces
from gpumem_magic.advice.changes.mixed_precision import (
    AUTOCAST,
    has_bfloat16,
    in_mixed_precision,
    is_covered,
    under_the_same,
)
from gpumem_magic.advice.changes.named_loss import of_plain, with_named_loss
from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.casts import casts_of_parameters
from gpumem_magic.advice.evidence.passes import grown, is_after_training
from gpumem_magic.advice.evidence.training_pass import (
    TrainingPass,
    find_pass,
    heaviest_line,
    model_of,
)
from gpumem_magic.advice.evidence.unused_graphs import find_unused_graphs
from gpumem_magic.advice.rewrite import UnsafeError, wrap_in_context
from gpumem_magic.advice.rule import Case, Rule
from gpumem_magic.advice.rules.activation_examples import EXAMPLES
from gpumem_magic.advice.rules.computed_weights import computed_weights
from gpumem_magic.sources.objects.last_error import ERROR
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.values.advice import Advice, Cost, Edit, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import ModuleFacts, Names
from gpumem_magic.values.recording import Category, Phase

_SHARE = 0.25
"""Of the peak: from there on the largest category is what to begin with."""

_FOLLOWING = (Category.ACTIVATION, Category.TEMPORARY, Category.WORKSPACE)
"""What goes with the activations: their gradients are temporary."""

_MAPPED = "torch/_functorch/"
_SMALLER_PARTS = (
    "Checkpoint smaller parts: all that one checkpoint() is around is computed again at once, so "
    "put it around each block, as checkpoint_sequential(model, n, x) does around n parts."
)
_INPUTS = "The input of each part is kept."
_LEAST = 0.01
_LONGEST = ("True", "'longest'", '"longest"')
_SAVE_ON_CPU = "torch.autograd.graph.save_on_cpu"


@dataclass(frozen=True, slots=True)
class _Case(Case):
    """What all the changes ask of: the activations at the peak and where they come from. named: the
    cell with a name for its loss, of which `found` is a part."""

    held: NDArray[np.bool_]
    named: Code
    found: TrainingPass | None
    reason: str
    model: tuple[str, ModuleFacts] | None

    @property
    def size(self) -> int:
        return self.lives.bytes(self.held)

    @property
    def share(self) -> float:
        return self.size / max(1, int(self.lives.levels().max()))

    def start(self) -> ast.stmt | None:
        """The statement of the cell that begins the forward pass, if any is known to."""
        if self.found is not None:
            return self.cell.statement_at(self.found.forward[0].lineno)
        return self.cell.statement_at(heaviest_line(self.cell, self.lives, self.held))

    def place(self) -> TrainingPass:
        """Where the training step is. Raises UnsafeError where it was not found."""
        if self.found is None:
            raise UnsafeError(self.reason)
        return self.found


class Activations(Rule):
    """In training, every layer keeps what its backward pass will read: the activations. They grow
    with the batch and the length of the input, and often set the peak.

    Five changes make them smaller, and each has its price. Mixed precision computes and keeps most
    of them in 16 bits. Checkpointing keeps the input of each block alone and computes the rest once
    more in the backward pass. Gradient accumulation takes the batch in pieces, which gives the same
    gradients unless layers look across the batch, as BatchNorm does. Activation functions in place
    spare a copy; of ReLU after a linear layer they spare none, because that copy is freed anyway.
    `save_on_cpu` moves what is kept to the host and back. They can be combined.
    """

    name: ClassVar[str] = "activations"
    problem: ClassVar[str] = "activations set the peak in training"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = EXAMPLES

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        framework = framework_of(lives)
        if framework is not None and framework.runs_loop:
            return
        held = _waiting(trace, cell, names)
        others = [category for category in Category if category not in _FOLLOWING]
        own = lives.at_peak & ((lives.born != Phase.BACKWARD) | lives.named())  # else in between
        at_peak = [lives.bytes(own & lives.of(category)) for category in others]
        size, peak = lives.bytes(held), int(lives.levels().max())
        if size < max(MIB, _SHARE * peak, *at_peak):
            return
        case = _case(trace, cell, names, held)
        for change in (_precision, _checkpoint, _pieces, _in_place, _offload):
            for advice, code, edits in change(case):
                proposed = self.propose(code, _evident(case, advice), edits)
                if code is not cell:
                    proposed = of_plain(cell, proposed)
                if proposed.source is None:  # nobody can say what a person makes of it
                    proposed = replace(proposed, saving=None, known=None)
                if proposed.saving is None or proposed.saving >= max(MIB, _LEAST * peak):
                    yield proposed


_Changes = Iterator[tuple[Advice, Code, Callable[[], Iterable[Edit]]]]


def _waiting(trace: Trace, cell: Code, names: Names) -> NDArray[np.bool_]:
    """Activations at the peak that a backward pass read, or would have read."""
    lives = trace.lives
    kept = lives.of(Category.ACTIVATION) & lives.at_peak & (lives.birth >= 0)
    code, whole = cell.joined() or (cell, trace) if kept.any() else (cell, trace)
    for _, made in code.once(computed_weights, whole.lives):
        kept &= ~made  # no smaller batch makes them smaller
    if trace.error is None:
        read = lives.bytes(kept & (lives.freed == Phase.BACKWARD))
        return kept & (2 * read >= lives.bytes(kept))  # the rest are outputs, with a name
    if trace.oom is not None and is_after_training(cell, trace.oom.line):
        return np.zeros(len(lives), bool)
    for growth in grown(cell, trace):  # what is held from pass to pass waits for nothing
        kept[list(growth.rows)] = False
        if growth.anew and growth.line and not growth.cell:
            kept &= cell.calling_lines(lives) != growth.line  # nor what it was a pass before
    kept &= ~lives.named(ERROR) & ~_mapped_back(lives)
    for graph in find_unused_graphs(trace, cell, names):
        kept &= ~graph.saved
    begun = bool(np.any(lives.born == Phase.BACKWARD))
    return kept & (begun or bool(cell.calls(".backward")))


def _mapped_back(lives: Lifetimes) -> NDArray[np.bool_]:
    """What backward passes made inside torch.func, such as the rows of a Jacobian."""
    backward: NDArray[np.bool_] = lives.born == Phase.BACKWARD
    return backward & _stacks_within(lives, _MAPPED)[lives.stack]


def _stacks_within(lives: Lifetimes, part: str) -> NDArray[np.bool_]:
    """For each stack, and for none, whether a file of such a name was running."""
    found = [any(part in f.filename.replace("\\", "/") for f in s) for s in lives.stacks]
    return np.array([*found, False], bool)


def _untold() -> Iterable[Edit]:
    raise UnsafeError("it is not seen which parts there are")


def _case(trace: Trace, cell: Code, names: Names, held: NDArray[np.bool_]) -> _Case:
    found, reason, named = None, "", cell
    try:
        named = with_named_loss(cell)
        found = find_pass(named, trace.lives, held)
    except UnsafeError as error:
        reason = str(error)
    return _Case(trace, cell, names, held, named, found, reason, model_of(cell, names))


def _evident(case: _Case, advice: Advice) -> Advice:
    """The advice with its evidence."""
    line = heaviest_line(case.cell, case.lives, case.held)
    name = case.model[0] if case.model else None
    where = f" of line {line}" if line else ""
    return replace(
        advice,
        problem=f"Activations{where} that wait for the backward pass are "
        f"{format_bytes(case.size)} of the peak ({100 * case.share:.0f} %).",
        line=line,
        name=name,
        size=case.size,
        known=None if advice.saving is None else Known.ESTIMATED,
    )


def _advice(change: str, saving: int | None, cost: Cost, price: str) -> Advice:
    return Advice(Activations.name, "", change, saving=saving, price=price, cost=cost)


def _precision(case: _Case) -> _Changes:
    cell, names, lives = case.cell, case.names, case.lives
    half = any(set(facts.dtypes) & {"float16", "bfloat16"} for facts in names.modules.values())
    casts = casts_of_parameters(lives)
    if half or casts.any() or framework_of(lives) or not _casts_most(case):
        return
    if cell.calls(*AUTOCAST):
        yield from _autocast_of_less(case)
        return
    device = case.trace.device
    bfloat16 = has_bfloat16(device.capability if device else None)
    kind = "bfloat16" if bfloat16 else "float16, with a GradScaler"
    copies = lives.bytes(lives.of(Category.PARAMETER) & lives.at_peak) // 2
    yield (
        _advice(
            f"Compute the forward pass and the loss under torch.autocast in {kind}.",
            case.size // 2 - copies,
            Cost.ACCURACY,
            "Results differ in the third digit; matrix products are faster."
            if bfloat16
            else "Results differ in the third digit; steps whose gradients overflow are skipped.",
        ),
        case.named,
        lambda: in_mixed_precision(case.named, names, case.place(), bfloat16),
    )


def _casts_most(case: _Case) -> bool:
    """Whether autocast would take most of it: it leaves float64 as it is."""
    double = [i for i in np.flatnonzero(case.held) if case.lives.tensor(int(i))[1] == "float64"]
    return 2 * int(case.lives.size[double].sum()) < case.size


def _autocast_of_less(case: _Case) -> _Changes:
    """The cell's autocast, where the forward pass runs outside of it."""
    cell, lives = case.cell, case.lives
    used = [c for c in cell.calls(*AUTOCAST) if isinstance(cell.statement(c), ast.With)]
    forward = cell.statement_at(heaviest_line(cell, lives, case.held))
    if len(used) != 1 or forward is None or is_covered(cell, forward):
        return
    call = used[0]
    yield (
        _advice(
            f"Compute the forward pass, too, under autocast: the one on {cell.place(call.lineno)} "
            "is around what comes after it.",
            case.size // 2,
            Cost.NOTHING,
            "",
        ),
        case.named,
        lambda: under_the_same(case.named, case.place(), call),
    )


def _checkpoint(case: _Case) -> _Changes:
    cell, model = case.cell, case.model
    within = _stacks_within(case.lives, CHECKPOINT)
    if within.any():
        again = case.held & (case.lives.born == Phase.BACKWARD) & within[case.lives.stack]
        if 2 * case.lives.bytes(again) >= case.size:
            yield _advice(_SMALLER_PARTS, case.size // 2, Cost.NOTHING, _INPUTS), cell, _untold
        return
    if model is None:
        return
    name, facts = model
    path = repeated_path(name, facts)
    if path is None:
        return
    yield (
        _advice(
            f"Checkpoint the repeated blocks of {path}: keep the input of each, and compute the "
            "rest again in the backward pass.",
            case.size // 2,
            Cost.TIME,
            "One more forward pass of these blocks in every step.",
        ),
        cell,
        lambda: checkpointed(cell, case.start(), name, facts),
    )


def _pieces(case: _Case) -> _Changes:
    names, model = case.names, case.model
    if model is None or any("BatchNorm" in kind for kind in model[1].kinds):
        return
    if case.found is not None and _is_micro_batch(case.named, case.found):
        return
    if _has_few_samples(case):
        return
    facts = model[1]
    yield (
        _advice(
            f"Take the batch in {PIECES} pieces and add up their gradients.{_padded(case.cell)}",
            case.size * (PIECES - 1) // PIECES,
            Cost.TIME,
            f"{PIECES} smaller passes in place of one, which use the device less well.",
        ),
        case.named,
        lambda: in_pieces(case.named, names, case.place(), facts),
    )


def _padded(cell: Code) -> str:
    """What there is to say of sequences that are padded to the longest."""
    given = (k for call in cell.nodes(ast.Call) for k in call.keywords if k.arg == "padding")
    if cell.calls_of("pad_sequence") or any(cell.text(k.value) in _LONGEST for k in given):
        return (
            " All sequences of a batch are padded to the longest: batches of like lengths, or a "
            "limit to the length, take less where lengths differ."
        )
    return ""


def _has_few_samples(case: _Case) -> bool:
    """Whether most of what waits is made of fewer samples than there are to be pieces."""
    shapes = {row: case.lives.tensor(row)[0] for row in np.flatnonzero(case.held).tolist()}
    few = [row for row, shape in shapes.items() if shape and len(shape) > 1 and shape[0] < PIECES]
    return 2 * int(case.lives.size[few].sum()) > case.size


def _is_micro_batch(cell: Code, found: TrainingPass) -> bool:
    """Whether the step is not in the innermost loop: gradients are added up already."""
    steps = [cell.statement(call) for call in cell.calls(".step")]
    loop = cell.loop(found.backward)
    return bool(steps) and all(
        cell.block(step) is not cell.block(found.backward) and loop is not None for step in steps
    )


def _in_place(case: _Case) -> _Changes:
    cell, lives = case.cell, case.lives
    spared = lives.bytes(overwritable(lives) & case.held)
    if spared >= max(MIB, _LEAST * case.size):
        yield (
            _advice(
                "Let the activation functions overwrite their input (inplace=True).",
                spared,
                Cost.NOTHING,
                "The input of the activation function is gone: hooks cannot read it.",
            ),
            cell,
            lambda: in_place(cell),
        )


def _offload(case: _Case) -> _Changes:
    cell = case.cell
    frames = (frame for stack in case.lives.stacks for frame in stack)
    offloaded = any(frame.function == "unpack_from_cpu" for frame in frames)
    if offloaded or cell.calls(_SAVE_ON_CPU):
        return
    yield (
        _advice(
            "Keep the activations in the memory of the host (save_on_cpu).",
            case.size // 2,
            Cost.SLOW,
            f"{format_bytes(case.size)} or more of host memory, copied there and back in "
            "every step: slow.",
        ),
        case.named,
        lambda: wrap_in_context(
            case.named, case.place().forward, "autograd.graph.save_on_cpu(pin_memory=True)"
        ),
    )
