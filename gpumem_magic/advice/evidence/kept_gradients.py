"""Finds gradients that lie in memory while nothing will read them any more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.training_code import Step, find_steps, reads_gradients
from gpumem_magic.advice.evidence.untrained_calls import trained_words, words_of
from gpumem_magic.advice.tree import lines_of
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import BEFORE, Lifetimes
from gpumem_magic.values.names import Names, variable_of
from gpumem_magic.values.recording import Category, Phase

_BACKWARD = (".backward", "torch.autograd.backward")


@dataclass(frozen=True, slots=True)
class KeptGradients:
    """Gradients that were alive at the peak after the last reader. size, saving: bytes.

    line: where the peak was. step: the statement that read them last; None where that was in
    another cell. freed_lines: where they went in the end, if they did. owners: names of the models
    that they belong to. forward: lines that made what backward passes freed. rows: which they are.
    """

    size: int
    saving: int
    line: int
    step: Step | None
    freed_lines: tuple[int, ...] = ()
    owners: tuple[str, ...] = ()
    forward: frozenset[int] = frozenset()
    rows: tuple[int, ...] = ()


def find_finished(trace: Trace, cell: Code, names: Names) -> KeptGradients | None:
    """Gradients at the peak of a forward pass that no later backward pass adds to.

    Nothing is found where code reads gradients itself, or the peak lies between a backward pass and
    the step that reads its gradients.
    """
    lives = trace.lives
    if reads_gradients(cell) or not _is_forward(lives):
        return None
    peak, passes = lives.peak_event, events_of(lives, Phase.BACKWARD)
    coming = passes[np.searchsorted(passes, peak, side="right") :]
    following = int(coming[0]) if len(coming) else lives.events
    done = lives.of(Category.GRADIENT) & lives.at_peak & (lives.death <= following)
    if not done.any():
        return None
    line = line_of_peak(lives, cell)
    step = None
    if (lives.line[done] != BEFORE).any():
        done &= lives.line != BEFORE
        step = _reader(int(lives.line[done][-1]), cell, names)
        if step is None or _is_before_step(line, int(lives.line[done][-1]), step, cell):
            return None
        of_step = gradients_of(step.optimizer, lives, cell, names)
        done &= of_step
        saving = _saved_by_release(lives, of_step)
    else:
        saving = lives.saved_at_peak(done)
    freed = tuple(np.unique(lives.freed_line[done & (lives.death < lives.events)]).tolist())
    size = lives.bytes(done)
    owners, rows = _owners(lives, done), tuple(np.flatnonzero(done).tolist())
    return KeptGradients(size, saving, line, step, freed, owners, rows=rows)


def gradients_of(name: str, lives: Lifetimes, cell: Code, names: Names) -> NDArray[np.bool_]:
    """The gradients that zero_grad() of a model or an optimizer clears, as far as their names tell
    of another's."""
    gradients = lives.of(Category.GRADIENT)
    words = {name} if name in names.modules else trained_words(cell, names, name)
    if not words:
        return gradients
    rows = np.flatnonzero(gradients & lives.named()).tolist()
    others = [row for row in rows if not words_of(lives.name(row) or "") & words]
    if len(others) == len(rows):
        return gradients  # they go by another name
    return gradients & ~lives.rows(others)


def find_zeroed(trace: Trace, cell: Code) -> KeptGradients | None:
    """Gradients that were alive at the peak of a forward pass, or the start of a backward pass,
    and that the backward pass added to, as to zeros; or when memory ran out in a forward pass."""
    lives = trace.lives
    busy = cell.calling_lines(lives)[(lives.born != Phase.FORWARD) & (lives.birth >= 0)]
    if trace.oom is not None and trace.oom.line is not None and trace.oom.line not in busy:
        size = lives.bytes(lives.of(Category.GRADIENT) & lives.at_end)
        return KeptGradients(size, size, trace.oom.line or 0, None) if size else None
    gradients = lives.of(Category.GRADIENT) & lives.at_peak
    now = lives.step[lives.birth == lives.peak_event]
    phase = lives.born[lives.birth == lives.peak_event]
    if not len(now) or phase[0] == Phase.OPTIMIZER:
        return None
    older = gradients & (lives.step < now[0])
    passes = events_of(lives, Phase.BACKWARD)
    coming = passes[np.searchsorted(passes, lives.peak_event, side="right") :]
    if not older.any() or not len(coming):
        return None
    added = older & (lives.death > coming[0])
    forward = (lives.freed == Phase.BACKWARD) & (lives.born == Phase.FORWARD)
    return KeptGradients(
        lives.bytes(added),
        _saved_by_births(lives, added),
        line_of_peak(lives, cell),
        None,
        forward=frozenset(cell.calling_lines(lives)[forward].tolist()),
    )


def events_of(lives: Lifetimes, phase: Phase) -> NDArray[np.int64]:
    """The events of a phase, in order."""
    ends = lives.death[(lives.freed == phase) & (lives.death < lives.events)]
    return np.sort(np.concatenate([lives.birth[(lives.born == phase) & (lives.birth >= 0)], ends]))


def line_of_peak(lives: Lifetimes, cell: Code) -> int:
    """The line of the cell that reached the peak; 0 where none is known."""
    at = np.flatnonzero(lives.birth == lives.peak_event)
    return max(int(cell.calling_lines(lives)[at[0]]), 0) if len(at) else 0


def _owners(lives: Lifetimes, gradients: NDArray[np.bool_]) -> tuple[str, ...]:
    """The first word of each gradient's name: "model" of "model[0].weight.grad"."""
    named = (lives.name(int(i)) or "" for i in np.flatnonzero(gradients))
    return tuple(dict.fromkeys(variable_of(name) for name in named))


def _is_forward(lives: Lifetimes) -> bool:
    phase = lives.born[lives.birth == lives.peak_event]
    return bool(len(phase)) and lives.peak_event >= 0 and phase[0] == Phase.FORWARD


def _reader(line: int, cell: Code, names: Names) -> Step | None:
    """The first step of an optimizer below the `backward()` on a line, in the same function."""
    calls = [call for call in cell.calls(*_BACKWARD) if line in lines_of(call)]
    if not calls:
        return None
    function = cell.function(calls[0])
    below = (s for s in find_steps(cell, names) if s.line >= line)
    return next((s for s in below if cell.function(s.call) is function), None)


def _is_before_step(peak: int, backward: int, step: Step, cell: Code) -> bool:
    """Whether the peak came after the backward pass, but before the step."""
    return backward <= peak <= step.line or peak == 0


def _saved_by_release(lives: Lifetimes, of_step: NDArray[np.bool_]) -> int:
    """How much lower the peak were if these gradients went after the last pass or step of their
    life."""
    busy = np.concatenate([events_of(lives, p) for p in (Phase.BACKWARD, Phase.OPTIMIZER)])
    busy.sort()
    gradients = np.flatnonzero(of_step & (lives.line != BEFORE))
    last = np.searchsorted(busy, lives.death[gradients]) - 1
    change = np.zeros(lives.events + 2, np.int64)
    released = np.maximum(busy[np.maximum(last, 0)], lives.birth[gradients])
    np.subtract.at(change, released + 1, lives.size[gradients])
    np.add.at(change, lives.death[gradients] + 1, lives.size[gradients])
    levels = lives.levels()
    return int(levels.max() - (levels + np.cumsum(change)[: lives.events + 1]).max())


def _saved_by_births(lives: Lifetimes, gradients: NDArray[np.bool_]) -> int:
    """How much lower the peak were if every backward pass made its gradients anew, one by one."""
    levels = lives.levels()
    size = lives.bytes(gradients)
    missing = np.full(lives.events + 1, size, np.int64)
    stretches, begins = np.unique(lives.step, return_index=True)  # storages lie in order of birth
    ends = np.append(begins[1:], len(lives)) - 1
    for begin, end in zip(begins[stretches >= 0], ends[stretches >= 0], strict=True):
        first, last = int(lives.birth[begin]), int(lives.birth[end])
        if lives.born[begin] == Phase.OPTIMIZER:
            missing[first : last + 2] = 0
        elif lives.born[begin] == Phase.BACKWARD:
            missing[first + 1 : last + 2] = np.linspace(size, 0, last + 1 - first, dtype=np.int64)
    missing[: int(lives.birth[gradients].max()) + 2] = 0  # not yet made, or just being made
    return int(levels.max() - (levels - missing).max())
