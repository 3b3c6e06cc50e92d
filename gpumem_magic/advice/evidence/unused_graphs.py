"""Finds forward passes that saved activations for a backward pass that never came."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code, called
from gpumem_magic.advice.evidence.accumulations import is_read_as_number
from gpumem_magic.advice.evidence.gradient_flow import (
    GradientFlow,
    backward_lines,
    used_statements,
    went_backward,
)
from gpumem_magic.advice.evidence.shortage import last_moment, least_of_rise
from gpumem_magic.advice.tree import FUNCTIONS, LOOPS, defined, header, lines_of
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.values.advice import Advice, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names, SkippedBackward
from gpumem_magic.values.recording import Phase

READ_AT_ONCE = 2  # further results while one lives that only an expression holds: a * b + c * d

WITHOUT_GRAPH = ("torch.no_grad", "torch.inference_mode", "torch.set_grad_enabled")

_UNTRAINED = "Run it under torch.no_grad() if nothing is to go backward; nothing did in this cell."
_SHARE = 0.02  # of the line that saves most: lines with less are not worth a wrapper

_LOSS = re.compile(r"loss|criterion|cross_entropy", re.IGNORECASE)
"""What a loss, or what computes one, is called."""

NEEDED_ANYWAY = 2
"""Outputs that exist at a time without a graph, too: what a layer reads and what it writes."""


@dataclass(frozen=True, slots=True)
class UnusedGraph:
    """Statements of one block whose forward passes saved `size` bytes at the peak for nothing.

    statements: none where the cell has not their text. saved: all storages that they saved.
    saving: how much lower the peak would be without them. in_evaluation: the model was set to
    evaluation, by `eval()`, on line `eval_line` of the cell if it was there. skipped: they lie in a
    function that may go backward.
    """

    statements: tuple[ast.stmt, ...]
    saved: NDArray[np.bool_] = field(compare=False)
    size: int
    saving: int
    in_evaluation: bool = False
    eval_line: int | None = None
    skipped: SkippedBackward | None = None

    @property
    def line(self) -> int:
        """The first line."""
        return self.statements[0].lineno

    @property
    def last_line(self) -> int:
        """The last line."""
        return self.statements[-1].end_lineno or self.line

    @property
    def place(self) -> str:
        """The lines, in words: "line 3", "lines 3-5"."""
        if self.last_line == self.line:
            return f"line {self.line}"
        return f"lines {self.line}-{self.last_line}"

    def advice(self, rule: str) -> Advice:
        """What is wrong, with its numbers."""
        size = format_bytes(self.size)
        if self.skipped is not None:
            problem = (
                f"{self.skipped.whole}, but not in the pass that ran out of memory "
                f"({self.skipped.why}): {size} of activations were saved for nothing."
            )
        else:
            problem = (
                f"The forward pass on {self.place} saved {size} of activations, and no backward "
                "pass used them."
            )
        return Advice(
            rule,
            problem=problem,
            change="",
            line=self.line if self.statements else None,
            size=self.size,
            saving=self.saving,
            known=Known.ESTIMATED,
        )


def find_unused_graphs(trace: Trace, cell: Code, names: Names) -> tuple[UnusedGraph, ...]:
    """Unused graphs in the order of their lines; looked for once, for all rules that ask."""
    return cell.once(_all_unused, trace, names)


def _all_unused(cell: Code, trace: Trace, names: Names) -> tuple[UnusedGraph, ...]:
    if names.skipped is not None:
        return tuple(_of_skipped(trace, cell, names.skipped))
    return tuple(_find(trace, cell, names))


def if_untrained(lives: Lifetimes, names: Names) -> str:
    """What there is to say of a graph that no backward pass goes through; "" where one may."""
    skipped = names.skipped
    if skipped is not None:
        why = f"{skipped.whole}, but not in that pass ({skipped.why})"
        return f"{why}: evaluate under torch.no_grad()."
    return "" if bool((lives.born == Phase.BACKWARD).any()) else _UNTRAINED


def _of_skipped(trace: Trace, cell: Code, skipped: SkippedBackward) -> Iterator[UnusedGraph]:
    """What a function that trains and evaluates saved, which ran out of memory as it evaluated."""
    lives = trace.lives
    last = lives.birth[lives.born == Phase.BACKWARD].max(initial=-1)
    saved = lives.recorded & lives.at_peak & (lives.birth > last)
    for growth in trace.growth:
        saved[list(growth.rows)] = False
    size = lives.bytes(saved)
    if size >= least_of_rise(trace):
        lines = cell.calling_lines(lives)
        blocks = list(_blocks(cell, _weighty(lines, lives, saved & (lines > 0))))
        alone = tuple(blocks[0]) if len(blocks) == 1 else ()
        yield UnusedGraph(alone, saved, size, lives.saved_at_peak(saved), skipped=skipped)


def _find(trace: Trace, cell: Code, names: Names) -> Iterator[UnusedGraph]:
    """Each block of neighbouring statements that saved activations for nothing.

    A statement whose value a `backward()` of the cell reads, or may read, did not; nor did one
    whose value is left for one that may yet come, in the next cell.
    """
    lives = trace.lives
    if not _records(lives, names):
        return
    lines = cell.calling_lines(lives)
    saved = lives.recorded & (lines > 0)
    unused = _lines_outside(cell, np.unique(lines[saved]).tolist(), went_backward(cell, lives))
    saved &= np.isin(lines, unused)
    highest = lives.alive(last_moment(trace))
    if lives.bytes(saved & highest) < MIB:
        return
    needed = used_statements(cell, lives, names) | left_for_later(trace, cell, names)
    needed |= {cell.statement(call) for call in cell.calls(".backward")}
    needed |= _about_to_be_used(cell, names) if trace.error is not None else set()
    saved &= np.isin(lines, _lines_outside(cell, unused, needed))
    if trace.error is not None:
        saved &= _surely_inference(trace, cell, names)[lives.stack]
    at_peak = saved & highest
    by_line = np.bincount(lines[at_peak], lives.size[at_peak])
    for group in _blocks(cell, _weighty(lines, lives, saved)):
        first, last = group[0].lineno, group[-1].end_lineno or group[-1].lineno
        size = int(by_line[first : last + 1].sum())
        if size < MIB:
            continue
        here = saved & (lines >= first) & (lines <= last)
        outputs = _needed_anyway(here, lives) - (trace.oom is not None)  # one was to be the next
        spared = not_needed(here, lives, outputs, highest)
        saving = lives.saved_at_peak(spared)
        if trace.oom is not None:  # what was asked for then would have been above the peak
            saving = max(saving, lives.bytes(spared & highest))
        if saving >= least_of_rise(trace):
            evaluated, at = _in_evaluation(cell, names, group[0])
            yield UnusedGraph(tuple(group), here, size, saving, evaluated, at)


def _needed_anyway(here: NDArray[np.bool_], lives: Lifetimes) -> int:
    """Of an expression in the text, a * x + b * y, both sides as well as their sum."""
    stacks = (lives.stacks[one] for one in np.unique(lives.stack[here]).tolist() if one >= 0)
    layers = any("/torch/nn/" in f.filename.replace("\\", "/") for s in stacks for f in s)
    return NEEDED_ANYWAY if layers else NEEDED_ANYWAY + 1


def _lines_outside(cell: Code, lines: list[int], needed: set[ast.stmt]) -> list[int]:
    """Those of some lines on which no needed statement is, nor is held by the one there."""
    used = {n for s in needed if not hasattr(s, "body") for n in lines_of(s)}  # a; b; c of one line
    statements = ((n, cell.statement_at(n)) for n in lines if n not in used)
    return [n for n, s in statements if s is not None and not _holds(cell, s, needed)]


def _records(lives: Lifetimes, names: Names) -> bool:
    """Whether a graph can be recorded at all: where nothing tells of it, some model must train."""
    if lives.sees_graphs:
        return bool(lives.graph.any())
    known = [m for m in names.modules.values() if m.parameters]
    return not known or any(module.trainable for module in known)


def left_for_later(trace: Trace, cell: Code, names: Names) -> set[ast.stmt]:
    """Statements that made what a later cell may call `backward()` on.

    A cell that calls it itself leaves none for later, nor does a loop that makes its value anew in
    each pass. A model that was set to evaluation, or that no optimizer trains, makes no such value,
    unless it is a loss; nor is a sum or a list one that the cell itself reads as numbers.
    """
    lives = trace.lives
    if backward_lines(lives) or cell.calls(".backward"):
        return set()
    numbers = functools.cache(lambda name: is_read_as_number(cell, name))
    left = {s for name, s in _assigned_at_top(cell) if _is_left(cell, names, name, s, numbers)}
    values = [value for statement in left for value in header(statement)]
    return left | GradientFlow(cell, names).origin(values).statements


def _is_left(
    cell: Code, names: Names, name: str, statement: ast.stmt, numbers: Callable[[str], bool]
) -> bool:
    """Whether the name's value is left for a `backward()` that may yet come."""
    tensor = names.tensors.get(name)
    has_graph = tensor.has_graph if tensor else names.containers.get(name)
    if not has_graph or _made_anew(cell, statement, name):
        return False
    if _in_evaluation(cell, names, statement)[1] is not None:
        return False
    if cell.loop(statement) is None and tensor is not None and not tensor.shape:
        return True  # a loss
    training = bool(names.optimizers) and not _all_in_evaluation(names)
    if tensor is None and _are_left_out(cell, names):
        return False
    return training and not numbers(name)


def _are_left_out(cell: Code, names: Names) -> bool:
    """Whether no optimizer has parameters of the models that the cell speaks of by name."""
    spoken = [names.modules[name] for name in cell.spoken() & names.modules.keys()]
    models = [module for module in spoken if module.trainable]
    return bool(models) and not any(module.optimized for module in models)


def _about_to_be_used(cell: Code, names: Names) -> set[ast.stmt]:
    """Statements of a cell that failed which a backward pass was to come after: a model called for
    what it notes itself, in a function that goes backward; and what a loss is computed of that the
    cell reads nowhere, so that it is for a later one."""
    backwards = cell.calls(".backward")
    if backwards:
        noted = ((node, cell.function(node)) for node in cell.nodes(ast.Expr))
        return {
            node
            for node, within in noted
            if any(c.lineno > node.lineno and cell.function(c) is within for c in backwards)
        }
    found: set[ast.stmt] = set()
    training = bool(names.optimizers) and not _all_in_evaluation(names)
    for name, statement in _assigned_at_top(cell) if training else ():
        calls = (c for part in header(statement) for c in cell.nodes(ast.Call, within=part))
        is_loss = any(_LOSS.search(word) for word in (name, *map(called, calls)))
        left = is_loss and cell.loop(statement) is None and not cell.reads(name)
        if left and not _in_evaluation(cell, names, statement)[0]:
            found |= {statement, *GradientFlow(cell, names).origin(header(statement)).statements}
    return found


def _assigned_at_top(cell: Code) -> Iterator[tuple[str, ast.stmt]]:
    for node in cell.nodes(ast.stmt):
        if cell.function(node) is None:
            for name in defined(node):
                yield name, node


def _made_anew(cell: Code, statement: ast.stmt, name: str) -> bool:
    """Whether a loop gives the name a new value in each pass, whatever it was before."""
    if cell.loop(statement) is None or not isinstance(statement, ast.Assign):
        return False
    assigns = any(isinstance(t, ast.Name) and t.id == name for t in statement.targets)
    return assigns and not cell.reads(name, within=statement.value)


def _surely_inference(trace: Trace, cell: Code, names: Names) -> NDArray[np.bool_]:
    """For each stack (and -1) whether the cell itself called the model there, or a function of
    another cell that only evaluates: others that failed may have been about to go backward."""
    own = cell.cell.filename
    stacks = [tuple(frame.filename for frame in stack) for stack in trace.lives.stacks]
    found = [_calls_model(files, own) or i in trace.evaluations for i, files in enumerate(stacks)]
    evaluated = _all_in_evaluation(names)
    return np.array([*(here or evaluated for here in found), False], bool)


def _calls_model(files: tuple[str, ...], own: str) -> bool:
    if own not in files:
        return False
    inside = files[files.index(own) - 1] if files.index(own) else own
    return inside == own or "/torch/" in inside.replace("\\", "/")


def _holds(cell: Code, statement: ast.stmt, needed: set[ast.stmt]) -> bool:
    """Whether a statement is one of these, or wrapping it would wrap one of them."""
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return True
    return any(node in needed for node in cell.nodes(ast.stmt, within=statement))


def _weighty(lines: NDArray[np.int32], lives: Lifetimes, unused: NDArray[np.bool_]) -> list[int]:
    """The lines that most of the bytes were saved on."""
    sizes = np.bincount(lines[unused], lives.size[unused])
    return np.flatnonzero((sizes > 0) & (sizes >= _SHARE * sizes.max(initial=0))).tolist()


def not_needed(
    here: NDArray[np.bool_],
    lives: Lifetimes,
    outputs: int = NEEDED_ANYWAY,
    highest: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """Without the largest outputs of the peak, and what has a name at the end: they stay, as do
    those that had the name before, one of them until its name has the next, and what was gone as
    soon as it was read."""
    alive = np.flatnonzero(here & (lives.at_peak if highest is None else highest))
    named = here & lives.named()
    births = lives.birth[lives.recorded]
    later = np.searchsorted(births, lives.death) - np.searchsorted(births, lives.birth, "right")
    mask = here & ~named & ((later > READ_AT_ONCE) | lives.at_end)
    for stack in np.unique(lives.stack[named]).tolist():
        alike = lives.stack == stack
        if np.count_nonzero(alike[alive]) <= np.count_nonzero(alike & named) + 1:
            mask &= ~alike
    by_size = alive[np.argsort(lives.size[alive], kind="stable")]
    mask[by_size[-outputs:]] = False
    return mask


def _all_in_evaluation(names: Names) -> bool:
    evaluated = [m for m in names.modules.values() if m.parameters]
    return bool(evaluated) and not any(module.training for module in evaluated)


def _in_evaluation(cell: Code, names: Names, statement: ast.stmt) -> tuple[bool, int | None]:
    """Whether the model was in evaluation mode there, and the line of the `eval()` that did it."""
    function = cell.function(statement)
    calls = cell.calls(".eval", ".train")
    last = next(
        (
            c
            for c in reversed(calls)
            if c.lineno <= statement.lineno and cell.function(c) is function
        ),
        None,
    )
    if last is None:
        return _all_in_evaluation(names), None
    assert isinstance(last.func, ast.Attribute)
    off = bool(last.args) and isinstance(last.args[0], ast.Constant) and not last.args[0].value
    evaluated = last.func.attr == "eval" or off
    return evaluated, last.lineno if evaluated else None


def _blocks(cell: Code, lines: list[int]) -> Iterator[list[ast.stmt]]:
    """Statements on these lines, neighbours of one block together."""
    group: list[ast.stmt] = []
    for line in lines:
        statement = cell.statement_at(line)
        if statement is None or cell.is_under(statement, *WITHOUT_GRAPH):
            continue
        if group and statement is group[-1]:
            continue
        if group and _next_to(cell, group[-1], statement):
            group.append(statement)
            continue
        if group:
            yield group
        group = [statement]
    if group:
        yield group


def _next_to(cell: Code, one: ast.stmt, other: ast.stmt) -> bool:
    if isinstance(one, LOOPS) or isinstance(other, LOOPS):
        return False
    return cell.block(one) is cell.block(other) and cell.index(other) == cell.index(one) + 1


def freed_by_backward(lives: Lifetimes, also: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """When each storage would die if the first backward pass after its birth freed what a forward
    pass recorded (and `also` these storages); others die when they do: int64 events."""
    held = lives.recorded if also is None else lives.recorded | also
    born, freed = lives.born == Phase.BACKWARD, lives.freed == Phase.BACKWARD
    moments = np.concatenate([lives.birth[born], lives.death[freed]])
    steps = np.concatenate([lives.step[born], lives.freed_step[freed]])
    order = np.argsort(moments, kind="stable")
    moments, steps = moments[order], steps[order]
    ends = np.full(int(steps.max(initial=0)) + 1, -1, np.int64)
    np.maximum.at(ends, steps, moments)
    death = lives.death.copy()
    place = np.searchsorted(moments, lives.birth)
    rows = np.flatnonzero(held & ~freed & (place < len(moments)))
    death[rows] = np.minimum(death[rows], ends[steps[place[rows]]] + 1)
    return death
