"""What survives from one pass of a loop to the next: how much in each, where it was made, who holds
it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.cell_flow import parse_cell
from gpumem_magic.trace.stacks import user_line
from gpumem_magic.units import MIB
from gpumem_magic.values.findings import Growth, Line, OutOfMemory, Way
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category, Frame, Held, Phase, Recording, Stack

_PASSES = 3
"""Passes that have to survive: what a loop made last, and before that, always does."""

_SHARE = 0.05
"""Of what was allocated: less is no growth worth a word."""

_MOST = 20_000
"""Storages that are looked at, the largest; some 50 ms."""

_RISING = 0.4
"""Share of the passes in which a block that is made anew has to be larger than before."""

_OFTEN = 8
"""New heights that do as well, where several blocks of a pass come from one place."""

_LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MODULE = "torch/nn/modules/module.py"
_CALLS = ("_call_impl", "_wrapped_call_impl")
GRADIENTS = "'s gradients"
"""What the gradients of a model are called, where they hold a graph."""

_BETWEEN = re.compile(r"\[(?:\d+|'[^']*'|\"[^\"]*\")\]")
_VALUES = re.compile(r"list\((.+)\.(?:values|keys)\(\)\)")
"""How a place in a dictionary is written whose keys are objects."""

_OWNED = (Category.WORKSPACE, Category.OPTIMIZER_STATE)


def find_growth(
    recording: Recording, lives: Lifetimes, lines: tuple[Line, ...]
) -> tuple[Growth, ...]:
    """Growth up to the failure, or else up to the peak; what grew most first."""
    failure = recording.failure
    event = failure.position - 1 if failure is not None else lives.peak_event
    own = lives.alive(event) & (lives.birth >= 0) & (lives.stack >= 0)
    own &= (lives.born != Phase.OPTIMIZER) & ~lives.of(*_OWNED)
    if failure is None:
        own &= lives.freed != Phase.BACKWARD  # it waited for a pass that came
    rows = np.flatnonzero(own)
    stacks, counts = np.unique(lives.stack[rows], return_counts=True)
    rows = rows[np.isin(lives.stack[rows], stacks[counts >= _PASSES])]
    level = lives.bytes(lives.alive(event))
    least = max(MIB, int(_SHARE * level))
    if len(rows) > _MOST:
        rows = np.sort(rows[np.argpartition(-lives.size[rows], _MOST)[:_MOST]])
    passes = _Passes(recording, lives, lines)
    found = [
        each
        for holder, group in _by_holder(recording, lives, rows)
        for each in _grown(passes, holder, group)
    ]
    found += [one for one in _risen(passes, own, event) if one.holder not in _holders(found)]
    return tuple(sorted((g for g in found if g.size >= least), key=lambda g: -g.size))


def longer_than(oom: OutOfMemory, growth: tuple[Growth, ...]) -> OutOfMemory:
    """The failure without what drops less than what grew: that would only put it off."""
    grown = sum(one.size for one in growth)
    drops = (Way.GRADIENTS, Way.HISTORY, Way.UNUSED)
    kept = [one for one in oom.remedies if one.way not in drops or one.size >= grown]
    return replace(oom, remedies=tuple(kept))


def _holders(growth: list[Growth]) -> set[str]:
    return {one.holder for one in growth if one.holder}


def pattern(path: str) -> str:
    """The way with all places taken for the same: "outputs[*].grad_fn"."""
    return _BETWEEN.sub("[*]", path)


_Group = list[tuple[int, Held | None]]
"""Rows of storages, each with the way to it, where that is known."""


def _by_holder(
    recording: Recording, lives: Lifetimes, rows: NDArray[np.int64]
) -> Iterator[tuple[str, _Group]]:
    """Rows by the pattern of the way to them; those that nothing is known to hold together."""
    held = {one.address: one for one in recording.held}
    groups: dict[str, _Group] = {}
    for row in rows.tolist():
        one = held.get(int(lives.address[row])) if lives.death[row] >= lives.events else None
        groups.setdefault(_root(one.path) if one else "", []).append((row, one))
    yield from groups.items()


def _root(path: str) -> str:
    """What holds: the way up to its first place in a container; the gradients of a model."""
    if ".grad." in path:
        return re.split(r"[.\[]", path, maxsplit=1)[0] + GRADIENTS
    head = _VALUES.sub(r"\1", pattern(path)).removesuffix(".grad_fn")
    place = head.find("[*]")
    return head if place < 0 else head[: place + 3]


@dataclass(frozen=True)
class _Passes:
    """Tells the passes of a loop apart by what they allocated."""

    recording: Recording
    lives: Lifetimes
    lines: tuple[Line, ...]

    @cached_property
    def in_module(self) -> NDArray[np.bool_]:
        """For each stack whether a module was running; the last row is for no stack."""
        found = [any(map(_calls_module, stack)) for stack in self.lives.stacks]
        return np.array([*found, False], bool)

    @cached_property
    def calls(self) -> NDArray[np.int64]:
        """For each storage how many were born outside of any module before it: what lies between
        two of them belongs to one call of a module, or to several in a row."""
        order = np.argsort(self.lives.birth, kind="stable")
        number = np.zeros(len(self.lives), np.int64)
        number[order] = np.cumsum(~self.in_module[self.lives.stack][order])
        return number

    @cached_property
    def comprehended(self) -> frozenset[int]:
        """Lines of the cell's comprehensions: loops whose passes no line of their own begins."""
        tree = parse_cell(self.recording.cell)
        made = (n for n in ast.walk(tree) if isinstance(n, _LOOPS)) if tree else ()
        return frozenset(n for one in made for n in range(one.lineno, (one.end_lineno or 0) + 1))

    @cached_property
    def by_stack(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The cell's storages in the order of their stacks, and these stacks."""
        rows = np.flatnonzero(self.lives.birth >= 0)
        rows = rows[np.argsort(self.lives.stack[rows], kind="stable")]
        return rows, self.lives.stack[rows]

    def born_on(self, stack: int) -> NDArray[np.int64]:
        """The storages of a stack, in the order of their birth."""
        rows, stacks = self.by_stack
        begin, end = np.searchsorted(stacks, [stack, stack + 1])
        return rows[begin:end]

    def numbers(self, stack: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The storages of a stack, in order, and the number of the pass that made each, from 0."""
        rows = self.born_on(stack)
        if self.lives.born[rows[0]] == Phase.BACKWARD:
            units = self.lives.step[rows]
        elif self.in_module[stack]:
            units = self.calls[rows]
        else:
            return rows, np.arange(len(rows))
        number = np.unique(units, return_inverse=True)[1].reshape(-1)
        if number[-1] == 0 and self.lives.born[rows[0]] == Phase.FORWARD:
            number = np.arange(len(rows)) * self._told(rows) // len(rows)
        return rows, number

    def _told(self, rows: NDArray[np.int64]) -> int:
        """How often the line ran that called the module, as the trace counts: calls may follow each
        other. A line inside the module runs once for each of its layers, too."""
        line, elsewhere = self.line_of(int(rows[0]))
        line = int(self.lives.line[rows[0]]) if elsewhere else line
        beside = (self.lives.line == line) & (self.lives.birth >= 0)
        if (beside & ~self.in_module[self.lives.stack]).any():
            return 1  # else one of those would lie between two passes
        inner = sum(frame.function == _CALLS[0] for frame in self.lives.frames(int(rows[0]))) > 1
        if inner and self.recording.failure is not None and line not in self.comprehended:
            return 1  # equal layers of a pass that failed look like passes
        count = next((each.count for each in self.lines if each.number == line), 1)
        return min(max(count, 1), len(rows))

    def line_of(self, row: int) -> tuple[int | None, str]:
        """The line that called a module, or made the storage, and the cell it lies in ("" for the
        one that was measured)."""
        line, cell = user_line(self.recording, _outside(self.lives.frames(row)))
        if line is not None:
            return line, cell
        return int(self.lives.line[row]) or None, ""


def _grown(passes: _Passes, holder: str, group: _Group) -> Iterator[Growth]:
    """What grew of the storages of one holder; of those without one, line by line."""
    lives = passes.lives
    if holder:
        found = _of_group(passes, holder, group)
        if found is not None:
            yield found
        return
    by_line: dict[tuple[int | None, str], _Group] = {}
    counts = (lives.born == Phase.FORWARD) & ~lives.of(Category.PARAMETER)
    for row, _ in group:
        if counts[row]:
            by_line.setdefault(passes.line_of(row), []).append((row, None))
    for rows in by_line.values():
        found = _of_group(passes, holder, rows)
        if found is not None:
            yield found


def _of_group(passes: _Passes, holder: str, group: _Group) -> Growth | None:
    lives = passes.lives
    rows = np.array([row for row, _ in group], np.int64)
    if all(one and one.path.endswith(".grad") for _, one in group):
        return None  # of each parameter there is one, however often its model is run
    kinds = [one.kind for _, one in group if one]
    graphs = [one.graph for _, one in group if one]
    survived, first, ran = _survived(passes, rows)
    numbered, keyed = _entries(group)
    models = _models(passes, group)
    least = 1 if ran > survived and any("[" in model for model in models) else _PASSES
    if max(survived, numbered) < least or 0 < len(models) < least:
        return None
    entries = numbered or keyed
    survived = entries if entries >= _PASSES else survived
    if len(models) >= _PASSES:
        survived = ran = len(models)
    if 0 < len(models) < _PASSES:  # whole models, and the next one is being made
        holder = min(models) if len(models) == 1 else holder
        survived, first, ran = len(models), 1, len(models) + 1
    else:
        holder = _place(group) or holder
    size = int(lives.size[rows].sum())
    largest = int(rows[np.argmax(lives.size[rows])])
    line, cell = passes.line_of(largest)
    return Growth(
        holder=holder,
        graph=any(graphs) if holder else bool(lives.graph[rows].any()),
        rows=tuple(rows.tolist()),
        kind=kinds[0] if kinds else "",
        size=size,
        each=size // survived,
        passes=survived,
        first=first,
        ran=max(ran, survived),
        line=line,
        cell=cell,
    )


def _risen(passes: _Passes, own: NDArray[np.bool_], event: int) -> Iterator[Growth]:
    """Blocks that were made anew in each pass, larger by as much: `torch.cat` in a loop."""
    lives = passes.lives
    held = {one.address: one for one in passes.recording.held}
    large = np.flatnonzero(own & (lives.size >= MIB))
    for stack in np.unique(lives.stack[large]).tolist():
        rows = passes.born_on(stack)
        rows = rows[lives.birth[rows] <= event]
        steps = np.diff(lives.size[rows])
        if len(rows) <= _PASSES or not _rises(steps, int(lives.size[rows[-1]])):
            continue
        last = int(rows[-1]) if own[rows[-1]] else int(rows[own[rows]][-1])
        one = held.get(int(lives.address[last])) if lives.death[last] >= lives.events else None
        line, cell = passes.line_of(last)
        kept = [r for r in rows[own[rows]].tolist() if int(lives.address[r]) in held]
        yield Growth(
            holder=_root(one.path) if one else "",
            graph=bool(one and one.graph),
            kind=one.kind if one else "",
            size=int(lives.size[kept or [last]].sum()),
            each=int(steps.mean()),
            passes=len(rows),
            first=1,
            ran=len(rows),
            line=line,
            cell=cell,
            anew=True,
        )


def _rises(steps: NDArray[np.int64], last: int) -> bool:
    """Whether blocks grew pass by pass; each may be up to 1 MiB larger than what was asked for."""
    highest = np.maximum.accumulate(np.cumsum(steps))
    slack = (steps < -MIB).any() or steps.max() > last // 2
    often = np.count_nonzero(np.diff(highest)) >= _OFTEN or (steps > 0).mean() >= _RISING
    return bool(often and not slack and 2 * int(steps.sum()) >= last)


def _survived(passes: _Passes, rows: NDArray[np.int64]) -> tuple[int, int, int]:
    """How many passes left something, the first of them, and how many ran: as most bytes say."""
    lives = passes.lives
    votes: list[tuple[int, int, int, int]] = []
    alive = np.zeros(len(lives), bool)
    alive[rows] = True
    for stack in np.unique(lives.stack[rows]).tolist():
        own, number = passes.numbers(stack)
        kept = alive[own]
        left = np.unique(number[kept])
        size = int(lives.size[own[kept]].sum())
        votes.append((len(left), int(left[0]) + 1, int(number[-1]) + 1, size))
    votes.sort()
    half, total = sum(vote[3] for vote in votes) / 2, 0
    for survived, first, ran, size in votes:
        total += size
        if total >= half:
            return survived, first, ran
    return 0, 1, 0


def _entries(group: _Group) -> tuple[int, int]:
    """In how many places of a container something is held: numbered ones, and those with keys."""
    numbers: dict[int, set[str]] = {}
    keys: dict[int, set[str]] = {}
    for _, one in group:
        for level, match in enumerate(_BETWEEN.finditer(one.path if one else "")):
            (numbers if match[0][1].isdigit() else keys).setdefault(level, set()).add(match[0])
    numbered, keyed = (max(map(len, each.values()), default=0) for each in (numbers, keys))
    return numbered, keyed


def _models(passes: _Passes, group: _Group) -> set[str]:
    """The ways to the models that hold all of the parameters; empty where there are none, or
    something else holds some."""
    rows = [row for row, _ in group]
    owned = passes.lives.of(Category.PARAMETER, Category.BUFFER)[rows].any()
    models = {one.module for _, one in group if one}
    return set() if "" in models or not owned else models


def _place(group: _Group) -> str:
    """The container whose places differ: "self.cbs[0].outputs[*]"; "" where none do."""
    paths = {one.path for _, one in group if one and ".grad." not in one.path}
    split = [_BETWEEN.split(path) for path in paths]
    if len({parts[0] for parts in split}) != 1:
        return ""
    places = [_BETWEEN.findall(path) for path in paths]
    for level, found in enumerate(zip(*places, strict=False)):
        if len({parts[level] for parts in split}) > 1:
            return ""
        if len(set(found)) > 1:
            between = zip(split[0], places[0][:level], strict=False)
            head = "".join(text for pair in between for text in pair) + split[0][level]
            return _VALUES.sub(r"\1", f"{head}[*]")
    return ""


def _calls_module(frame: Frame) -> bool:
    """Or makes a copy of one, layer by layer."""
    path = frame.filename.replace("\\", "/")
    copies = frame.function == "deepcopy" and path.endswith("/copy.py")
    return copies or (frame.function in _CALLS and path.endswith(_MODULE))


def _outside(stack: Stack) -> Stack:
    """The frames around the outermost call of a module; all, where there is none."""
    last = max((i for i, frame in enumerate(stack) if _calls_module(frame)), default=-1)
    return stack[last + 1 :]
