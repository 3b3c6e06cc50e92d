"""Layers that no optimizer changes, and that autograd works for all the same."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.gradient_flow import backward_calls
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.evidence.training_code import find_built, find_steps, receiver
from gpumem_magic.advice.evidence.untrained_calls import (
    UntrainedCall,
    given_for,
    thrown_gradients,
    untrained_calls,
)
from gpumem_magic.advice.evidence.unused_graphs import not_needed
from gpumem_magic.advice.rewrite import UnsafeError, insert_before, wrap_in_context
from gpumem_magic.advice.rule import Rule
from gpumem_magic.advice.rules.frozen_examples import EXAMPLES
from gpumem_magic.advice.tree import lines_of, root
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Edit, Example, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import BEFORE, Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_SHARE = 0.1
"""Of the peak, that layers in no optimizer save: less may be needed for what comes before them."""

_READS_GRADIENTS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")


class FrozenLayersRecord(Rule):
    """Layers that are not trained still record a graph and get gradients.

    To leave a part of a model out of the optimizer does not freeze it: its parameters require
    gradients, so its activations are saved, `backward()` goes through it, and each parameter gets a
    gradient as large as itself, which nothing ever reads (`optimizer.zero_grad()` does not even
    clear it). `part.requires_grad_(False)` before training ends all three, where the part comes
    before what is trained; elsewhere it ends the gradients. The results are the same. Give the
    optimizer only what is to change. Gradients that a pass makes and the next `zero_grad()` of
    another optimizer throws away unread are told of as well: a GAN's discriminator reads
    `fake.detach()`.
    """

    name: ClassVar[str] = "frozen-layers-record"
    problem: ClassVar[str] = "layers that no optimizer changes get gradients"
    joins: ClassVar[bool] = True
    examples: ClassVar[tuple[Example, ...]] = EXAMPLES

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        if next(backward_calls(cell), None) is None:
            return
        told: set[str] = set()
        frozen: list[_Frozen] = []
        if not _reads_gradients(cell):
            stepped = any(_is_stepped(cell, name) for name in names.optimizers)
            stepped = stepped and not _has_others(cell, names)
            named = _frozen(names) if stepped else _never_cleared(lives, cell, names)
            frozen = _outermost(named) if stepped else list(named)
        made = lives.bytes(lives.of(Category.GRADIENT) & (lives.birth >= 0))
        calls = [*untrained_calls(cell, lives, names)]
        through = [*self._through(trace, cell, [one for one in calls if not one.needed])]
        for name in dict.fromkeys(root(ast.parse(f.text, mode="eval").body) for f in frozen):
            own = [
                f for f in frozen if f.text == name or f.text.startswith((f"{name}.", f"{name}["))
            ]
            size = sum(f.gradients for f in own)
            older = lives.of(Category.GRADIENT) & (lives.line == BEFORE) & lives.named(f"{name}.")
            if not cell.reads(name) and lives.bytes(older) >= size:
                continue  # an earlier cell's, which this one does not use
            if size >= least_saving(trace) and made >= size:
                made -= size  # a model may have several names
                told.add(name)
                graph = max((one.saving or 0 for one in through if one.name == name), default=0)
                yield self._advice(cell, lives, name, own, size, graph)
        yield from (one for one in through if one.name not in told)
        calls = [one for one in calls if one.model not in told]
        untrained = any(not one.needed for one in calls)
        if not told and not untrained:
            thrown = [*self._thrown(trace, cell, names)]
            yield from (
                thrown or [*self._unread(trace, cell, calls)] or self._saved(trace, cell, names)
            )

    def _saved(self, trace: Trace, cell: Code, names: Names) -> Iterator[Advice]:
        """What layers save that are in no optimizer, whether a backward pass came yet or not."""
        lives = trace.lives
        peak = lives.recorded & lives.at_peak
        for text in _left_out(cell, names):
            own = peak & lives.ran_in(text)
            if lives.bytes(own) < least_saving(trace, _SHARE):
                continue
            frozen = [_Frozen(text, 0)]
            advice = replace(
                self._advice(cell, lives, root(ast.parse(text, mode="eval").body), frozen, 0, 0),
                problem=f"No optimizer changes {text}, but its weights require gradients: "
                f"{format_bytes(lives.bytes(own))} of what {text} computed are kept for these.",
                change=f"Call requires_grad_(False) on {text} before training: what it is given by "
                "nothing that is trained is then computed without a graph, as under "
                "torch.no_grad(), and no gradients of its weights are made.",
                size=lives.bytes(own),
                saving=lives.saved_at_peak(not_needed(own, lives)),
            )
            yield advice

    def _thrown(self, trace: Trace, cell: Code, names: Names) -> Iterator[Advice]:
        """What a pass makes for layers that another pass trains, which makes it anew."""
        lives = trace.lives
        for one in thrown_gradients(cell, lives, names):
            saving = lives.saved_at_peak(one.made)
            if one.size < least_saving(trace) or saving < least_saving(trace):
                continue
            yield Advice(
                self.name,
                problem=f"backward() on {cell.place(one.backward.lineno)} makes "
                f"{format_bytes(one.size)} of gradients that {cell.place(one.cleared.lineno)} "
                "throws away unread, "
                f"{cell.text(one.cleared)}: it goes through those layers for nothing.",
                change=_detached(one.backward),
                line=one.backward.lineno,
                size=one.size,
                saving=saving,
                known=Known.ESTIMATED,
            )

    def _unread(self, trace: Trace, cell: Code, calls: list[UntrainedCall]) -> Iterator[Advice]:
        """The same where memory ran out before anything was thrown away."""
        lives = trace.lives
        for one in calls if trace.oom is not None else ():
            lines = list(lines_of(one.backward))
            made = (lives.born == Phase.BACKWARD) & np.isin(lives.line, lines)
            made &= lives.of(Category.GRADIENT) & ~lives.named()
            if lives.bytes(made & lives.at_peak) < least_saving(trace):
                continue
            yield Advice(
                self.name,
                problem=f"backward() on {cell.place(one.backward.lineno)} goes through {one.model} "
                f"({cell.place(one.call.lineno)}), which the step of {one.optimizers[0]} does not "
                "change: it makes gradients there that nothing reads.",
                change=_detached(one.backward),
                line=one.backward.lineno,
                name=one.model,
                size=lives.bytes(made & lives.at_peak),
                saving=lives.saved_at_peak(made),
                known=Known.ESTIMATED,
            )
            return

    def _through(
        self, trace: Trace, cell: Code, untrained: list[UntrainedCall]
    ) -> Iterator[Advice]:
        for statement in dict.fromkeys(cell.statement(one.call) for one in untrained):
            here = [one for one in untrained if cell.statement(one.call) is statement]
            yield from self._of_calls(trace, cell, statement, here)

    def _of_calls(
        self, trace: Trace, cell: Code, statement: ast.stmt, untrained: list[UntrainedCall]
    ) -> Iterator[Advice]:
        """What a statement's graph costs that leads through models which the step leaves alone."""
        lives, one = trace.lives, untrained[0]
        own = lives.recorded & cell.born_in(statement, lives)
        alive = np.flatnonzero(own & lives.at_peak)
        size = int(lives.size[alive].sum())
        if not size:
            return
        spared = not_needed(own, lives)
        if lives.birth[alive].max() < lives.peak_event:  # then only its result would be there
            spared = own.copy()
            spared[_results(lives, own)] = False
        saving = lives.saved_at_peak(spared)
        if saving < least_saving(trace):
            return
        alone = all(each.alone for each in untrained)
        models = " and ".join(dict.fromkeys(each.model for each in untrained))
        calls = " and ".join(dict.fromkeys(cell.text(each.call) for each in untrained))
        called, of = (models, "") if alone else (calls, "its part of the ")
        advice = Advice(
            self.name,
            problem=f"backward() on {cell.place(one.backward.lineno)} goes through {called} "
            f"({cell.place(one.call.lineno)}), which the step of "
            f"{' and '.join(one.optimizers)} does not change: {of}{format_bytes(size)} of graph "
            f"{'' if alone else 'there '}at the peak, and the gradients, are for nothing.",
            change=f"Call {called} under torch.no_grad(){' here' if alone else ''}, or with "
            ".detach() behind the call: the values are the same.",
            line=one.call.lineno,
            name=models,
            size=size,
            saving=saving,
            known=Known.ESTIMATED,
        )
        yield self.propose(cell, advice, lambda: _without_graph(cell, statement, untrained))

    def _advice(
        self, cell: Code, lives: Lifetimes, name: str, own: list[_Frozen], size: int, graph: int
    ) -> Advice:
        texts = [f.text for f in own]
        listed = ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
        saving = max(graph, _saving(lives, tuple(texts), size))
        advice = Advice(
            self.name,
            problem=f"No optimizer changes {listed}, but backward() makes {format_bytes(size)} of "
            "gradients for it, which nothing reads, and goes through all of its activations, which "
            "are saved for that as well.",
            change=f"Call requires_grad_(False) on {listed} before training: saves the gradients "
            "at least, and the activations where nothing before it is trained.",
            name=texts[0] if len(texts) == 1 else name,
            line=next((call.lineno for call in backward_calls(cell)), None),
            size=size,
            saving=saving or None,
            known=Known.ESTIMATED,
        )
        return self.propose(cell, advice, lambda: _freezing(cell, name, texts))


@dataclass(frozen=True, slots=True)
class _Frozen:
    """A model or a part of one that gets gradients and is in no optimizer."""

    text: str
    gradients: int


def _detached(backward: ast.Call) -> str:
    retained = any(keyword.arg == "retain_graph" for keyword in backward.keywords)
    then = " Its retain_graph=True is then not needed for that." if retained else ""
    return (
        "Compute that loss with .detach() of what those layers made, as a GAN's discriminator "
        f"reads fake.detach().{then}"
    )


def _left_out(cell: Code, names: Names) -> Iterator[str]:
    """Models, and parts of models, that require gradients, and that no optimizer has: where all
    that are built and stepped have names, and the cell says nothing of freezing."""
    known = names.optimizers.keys()
    told = {step.optimizer for step in find_steps(cell, names)}
    if not told or not told | {one.target for one in find_built(cell)} <= known:
        return
    if "requires_grad" in cell.source or _has_others(cell, names):
        return
    if _reads_gradients(cell):
        return
    if cell.calls(".add_param_group") or not all(o.parameters for o in names.optimizers.values()):
        return
    for name, module in names.modules.items():
        if module.trainable and not module.optimized:
            yield name
            continue
        for part in module.parts if module.optimized else ():
            if part.trainable and not part.optimized and not part.path.isdigit():
                yield f"{name}.{part.path}"


def _has_others(cell: Code, names: Names) -> bool:
    """Whether a function makes an optimizer, or is given one: by its name the notebook may know
    another."""
    given = (
        given_for(cell, cell.function(step.statement), step.optimizer) not in names.optimizers
        for step in find_steps(cell, names)
        if step.optimizer in names.optimizers
    )
    built = (one for one in find_built(cell) if one.target in names.optimizers)
    return any(given) or any(cell.function(one.statement) for one in built)


def _frozen(names: Names) -> Iterator[_Frozen]:
    for name, module in names.modules.items():
        if module.gradients and module.trainable and not module.optimized:
            if any(o.parameters for o in names.optimizers.values()):
                yield _Frozen(name, module.gradients)
            continue
        for part in module.parts:
            if part.gradients and part.trainable and not part.optimized and module.optimized:
                index = part.path.isdigit()
                text = f"{name}[{part.path}]" if index else f"{name}.{part.path}"
                yield _Frozen(text, part.gradients)


def _saving(lives: Lifetimes, texts: tuple[str, ...], size: int) -> int:
    """Bytes that the peak is lower by without the gradients; without the activations, too, where
    only these gradients were computed from what was freed after the first of them."""
    gradients = lives.of(Category.GRADIENT)
    saving = min(size, lives.saved_at_peak(gradients))
    begins = tuple(text + then for text in texts for then in ".[")
    rows = np.flatnonzero(gradients & (lives.born == Phase.BACKWARD)).tolist()
    own = [row for row in rows if (lives.name(row) or "").startswith(begins)]
    if not own:
        return saving
    step, first = lives.step[own].min(), lives.birth[own].min()
    after = gradients & (lives.step == step) & (lives.birth > first)
    after[own] = False
    if after.any():  # others were made after them: their way may lead through
        return saving
    waiting = lives.recorded & (lives.freed == Phase.BACKWARD)
    freed = waiting & (lives.freed_step == step) & (lives.death > first)
    alike = waiting & np.isin(lives.stack, lives.stack[freed])
    return max(saving, min(lives.bytes(freed), lives.saved_at_peak(alike)))


def _results(lives: Lifetimes, own: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The last of these that each forward pass made: what came of it."""
    rows = np.flatnonzero(own)[::-1]
    _, first = np.unique(lives.step[rows], return_index=True)
    return rows[first]


def _never_cleared(lives: Lifetimes, cell: Code, names: Names) -> Iterator[_Frozen]:
    """A part of an object, which names of the notebook do not tell of: it kept the gradients of a
    backward pass when zero_grad() of the only optimizer freed the others of that pass."""
    calls = cell.calls(".zero_grad")
    steps = {step.optimizer for step in find_steps(cell, names)}
    if len(steps) != 1 or {receiver(call, cell) for call in calls} != steps:
        return
    made = lives.of(Category.GRADIENT) & (lives.born == Phase.BACKWARD) & lives.named()
    freed = made & np.isin(lives.freed_line, [call.lineno for call in calls])
    kept = made & (lives.death == lives.events) & np.isin(lives.step, lives.step[freed])
    others = [_way(lives, row) for row in np.flatnonzero(freed).tolist()]
    ways = [_way(lives, row) for row in np.flatnonzero(kept).tolist()]
    if len(ways) < 2:
        return
    alike = itertools.takewhile(lambda steps: len(set(steps)) == 1, zip(*ways, strict=False))
    shared = [steps[0] for steps in alike]
    if shared and all(way[: len(shared)] != shared for way in others):
        yield _Frozen("".join(shared), lives.bytes(kept))


def _way(lives: Lifetimes, row: int) -> list[str]:
    """The steps of a tensor's name: "agent", ".target", "[0]", ".weight", ".grad"."""
    return re.findall(r"\.?[^.\[]+|\[[^\]]*\]", lives.name(row) or "")


def _outermost(found: Iterable[_Frozen]) -> list[_Frozen]:
    """Parts of models, and models that are not a part of another under a name of their own."""
    each = list(found)
    parts = [one for one in each if not one.text.isidentifier()]
    sizes = {one.gradients for one in parts}
    return parts + [o for o in each if o.text.isidentifier() and o.gradients not in sizes]


def _reads_gradients(cell: Code) -> bool:
    """Whether the cell reads or changes gradients itself: then they may be wanted."""
    if cell.calls(*_READS_GRADIENTS, "torch.autograd.grad", ".unscale_"):
        return True
    return any(n.attr == "grad" for n in cell.nodes(ast.Attribute))


def _is_stepped(cell: Code, optimizer: str) -> bool:
    """Whether the cell steps the optimizer, itself or by way of a scaler."""
    return bool(cell.reads(optimizer))


def _without_graph(
    cell: Code, statement: ast.stmt, untrained: list[UntrainedCall]
) -> tuple[Edit, ...]:
    if not isinstance(statement, ast.Assign) or not all(one.alone for one in untrained):
        raise UnsafeError("the line does more than that")
    return wrap_in_context(cell, [statement], "no_grad()")


def _freezing(cell: Code, name: str, texts: list[str]) -> Iterator[Edit]:
    """Lines before the first statement that uses the model for training."""
    places = [_at_top(cell, call) for call in backward_calls(cell)]
    users = [s for s in places if s is not None]
    if not users:
        raise UnsafeError("it is not seen where training begins")
    first = min(users, key=lambda s: s.lineno)
    made = [s for s in cell.assigned(name) if cell.function(s) is None and s.lineno >= first.lineno]
    if made:
        raise UnsafeError(f"{name} is made anew later in the cell")
    for text in texts:
        yield from insert_before(cell, first, f"{text}.requires_grad_(False)")


def _at_top(cell: Code, call: ast.Call) -> ast.stmt | None:
    """The statement of the cell's own level from which a call is reached."""
    function = cell.function(call)
    if function is None:
        return next((s for s in cell.tree.body if call.lineno in lines_of(s)), None)
    calls = [c for c in cell.walk() if isinstance(c, ast.Call) and _calls(c, function.name)]
    outside = [c for c in calls if cell.function(c) is not function]
    return _at_top(cell, min(outside, key=lambda c: c.lineno)) if outside else None


def _calls(call: ast.Call, name: str) -> bool:
    called = call.func
    return (isinstance(called, ast.Name) and called.id == name) or (
        isinstance(called, ast.Attribute) and called.attr == name
    )
