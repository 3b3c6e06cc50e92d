"""How many times each line ran, told from its events and from the loops of the source; which pass
made what."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.attribution import Attribution, find_runs
from gpumem_magic.trace.cell_flow import Flow, Repeats, parse_cell
from gpumem_magic.trace.owners import CODE, Owners
from gpumem_magic.trace.pairing import Pairing
from gpumem_magic.trace.stacks import user_line
from gpumem_magic.values.findings import Line
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Action, Category, Frame, Phase, Recording, Stack


@dataclass(frozen=True, slots=True)
class Visits:
    """The events of the lines of one source, in order: columns of equal length.

    line: its line, 0 for an event that only shows that another source's line ran in between.
    row: the row of Stacks that answers for it. run: the number of its line's uninterrupted run.
    word: what happened, a number for each distinct allocating stack, -1 for what is no sign of a
    pass. fate: the same, and what became of the block: a pass may reach one stack several times,
    but seldom with the same fate. once: what an optimizer does, in the first pass often more.
    """

    line: NDArray[np.int32]
    row: NDArray[np.int64]
    run: NDArray[np.int64]
    word: NDArray[np.int64]
    fate: NDArray[np.int64]
    once: NDArray[np.bool_]

    def __getitem__(self, rows: NDArray[np.int64] | slice) -> Visits:
        """The visits in these rows."""
        return Visits(*(getattr(self, column)[rows] for column in self.__slots__))


def find_visits(
    recording: Recording,
    attribution: Attribution,
    lives: Pairing,
    owners: Owners,
    kind: NDArray[np.int8],
) -> Visits:
    """Every birth and death on a line of the cell; a birth is the sign, a workspace none."""
    events = recording.events
    moves = (events.action == Action.ALLOC) | (events.action == Action.FREE)
    moments = np.flatnonzero(moves & (attribution.line > 0))
    line, row = attribution.line[moments], attribution.row[moments]
    block = lives.of_event[moments]
    regular = (events.action[moments] == Action.ALLOC) & (block >= 0)
    regular[regular] = kind[block[regular]] != CODE[Category.WORKSPACE]
    word = np.where(regular, events.stack[moments], -1).astype(np.int64)
    return Visits(
        line=line,
        row=row,
        run=find_runs(line, row, np.zeros(len(moments), np.int64), attribution.nesting),
        word=word,
        fate=np.where(regular, _fates(recording, lives, owners, block), -1),
        once=attribution.phase[moments] == Phase.OPTIMIZER,
    )


def _fates(
    recording: Recording, lives: Pairing, owners: Owners, block: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A number for each combination of birth stack, death stack and having a name. What an error
    gave back, as it left the blocks around it, was there as long as the passes ran."""
    if not len(lives):
        return np.full(len(block), -1, np.int64)
    stack = np.append(recording.events.stack, -2).astype(np.int64)  # -2: never freed, or never born
    birth = np.where(lives.birth < 0, len(stack) - 1, lives.birth)
    failure, many = recording.failure, len(recording.stacks) + 2
    last = len(stack) - 1 if failure is None else failure.position - 1
    death = np.where(lives.death > last, len(stack) - 1, lives.death)
    fate = ((stack[birth] + 2) * many + stack[death] + 2) * 2 + (owners.naming >= 0)
    return np.asarray(fate[block], np.int64)


_LAGS_TRIED = 200  # repetitions inside one pass beyond which no period is looked for

_GLANCE = 64  # events compared before a whole run is


def count_passes(
    visits: Visits, flow: Flow | None, repeated: NDArray[np.bool_], raised: bool
) -> dict[int, int]:
    """For each line how many times it ran.

    repeated: for each row of Stacks, whether a loop may be what runs it. raised: the cell failed,
    so the last line that allocated may not have got through.
    An uninterrupted run of events on a line is one pass, unless it may be a loop that no other line
    interrupts: then it is as many as its sequence of allocations repeats. Lines that the source
    always runs together ran equally often, whether or not each pass left an event.
    """
    last = int(visits.line[visits.word >= 0][-1]) if (visits.word >= 0).any() else 0
    by_line = _split(visits)
    counts = {n: int(np.count_nonzero(np.diff(own.run))) + 1 for n, own in by_line.items()}
    inside = Counter(region for n in counts for region in flow.around(n)) if flow else Counter()
    repeating = [
        n
        for n, own in by_line.items()
        if _may_repeat(n, counts[n], flow, inside, bool(repeated[own.row].any()))
    ]
    for number in repeating:
        passes = _repetitions(by_line[number], raised and number == last)
        counts[number] = max(counts[number], passes)
    return counts if flow is None else _together(counts, flow, raised)


def _split(visits: Visits) -> dict[int, Visits]:
    """The visits of each line, in order."""
    ordered = visits[np.argsort(visits.line, kind="stable")]
    lines = ordered.line
    numbers = np.unique(lines[lines > 0])
    begins = np.searchsorted(lines, numbers).tolist()
    ends = np.searchsorted(lines, numbers, side="right").tolist()
    return {
        number: ordered[begin:end]
        for number, begin, end in zip(numbers.tolist(), begins, ends, strict=True)
    }


def _may_repeat(
    line: int, count: int, flow: Flow | None, inside: Counter[int], repeated: bool
) -> bool:
    """Whether one run of events on the line may be several passes.

    inside: how many lines with events run in every pass of each region.
    """
    place = flow.places.get(line) if flow else None
    if flow is None or place is None:
        return count == 1
    repeats = flow.regions[place.region].repeats
    if repeats is Repeats.NEVER:
        return False
    if repeats is Repeats.CALL and (count > 1 or not repeated):
        return False  # whoever calls it has events of its own in between, or called it once
    return inside[place.region] <= (place.region in flow.around(line))  # none but itself


def _repetitions(visits: Visits, unfinished: bool) -> int:
    """How often the allocations of one line repeat, over all its runs."""
    visits = visits[np.flatnonzero(visits.word >= 0)]
    if not len(visits.word):
        return 1
    begins = np.flatnonzero(np.diff(visits.run, prepend=-1))
    lengths = np.diff(begins, append=len(visits.run))
    start = begins[np.argmax(lengths)]
    run = visits[np.arange(start, start + lengths.max())]
    period = _period(run, unfinished)
    if not period:
        return _rarest(visits)
    words, in_pass = np.unique(run.word[-period:], return_counts=True)
    total = np.bincount(visits.word, minlength=int(words[-1]) + 1)[words]
    return int((-(-total // in_pass)).max() if unfinished else (total // in_pass).min())


def _rarest(visits: Visits) -> int:
    """How often the rarest stack occurs: in an irregular line each pass has it at least once."""
    regular = visits.word[~visits.once]
    words = regular if len(regular) else visits.word
    return int(np.unique(words, return_counts=True)[1].min())


def _period(run: Visits, unfinished: bool) -> int:
    """After how many events the run repeats itself, 0 where it does not.

    A first pass may differ from the others, hence the second look, at the later half only. In the
    last whole pass fates differ, because what it made is still alive.
    """
    for skipped in (0, len(run.word) // 2):
        word, fate = run.word[skipped:], run.fate[skipped:]
        lags = len(word) - 1 - np.flatnonzero(word[:-1] == word[-1])[::-1]
        for lag in lags[lags <= len(word) // 2][:_LAGS_TRIED].tolist():
            glance = min(_GLANCE, len(word) - lag)
            settled = max(len(word) - lag * (1 + unfinished), 0)
            if (
                np.array_equal(word[-glance:], word[-glance - lag : -lag])
                and np.array_equal(word[lag:], word[:-lag])
                and np.array_equal(fate[lag:settled], fate[: max(settled - lag, 0)])
            ):
                return int(lag)
    return 0


def _together(counts: dict[int, int], flow: Flow, raised: bool) -> dict[int, int]:
    """Let lines that run together agree: an earlier one ran no less than a later one."""
    agreed = dict(counts)
    by_region: dict[int, list[int]] = {}
    for line in sorted(counts):
        place = flow.places.get(line)
        if place is not None and place.always and place.body:
            by_region.setdefault(place.region, []).append(line)
    for number, lines in by_region.items():
        region = flow.regions[number]
        if region.repeats not in (Repeats.LOOP, Repeats.CALL):
            continue
        most = max((counts[n] for n in lines), default=0) if region.straight and not raised else 0
        for line in reversed(lines):
            most = max(most, counts[line])
            agreed[line] = most
    return agreed


_LOOPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_AT_ONCE = 64
"""Parts of a batch or of a model, each of its own size, that a comprehension goes through at most
in each pass of the loop around it."""

_NEARLY_ALL = 0.95
"""Of what was made, from which on the other lines that did are not told."""

_MODULE = "torch/nn/modules/module.py"
_CALLS = ("_call_impl", "_wrapped_call_impl")


@dataclass(frozen=True)
class LoopPasses:
    """Which pass of its loop made each storage of a recording."""

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
        """Lines of the cell's comprehensions, and of list() of a generator: loops whose passes no
        line of their own begins."""
        tree = parse_cell(self.recording.cell)
        made = (n for n in ast.walk(tree) if _is_loop(n)) if tree else ()
        return frozenset(n for one in made for n in range(one.lineno, (one.end_lineno or 0) + 1))

    @cached_property
    def by_stack(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The cell's storages in the order of their stacks, and where those of each stack begin."""
        rows = np.flatnonzero(self.lives.birth >= 0)
        stacks = self.lives.stack[rows]
        each = np.bincount(stacks + 1, minlength=len(self.lives.stacks) + 1)
        return rows[np.argsort(stacks, kind="stable")], np.cumsum(each)

    def born_on(self, stack: int) -> NDArray[np.int64]:
        """The storages of a stack, in the order of their birth."""
        rows, begins = self.by_stack
        return rows[begins[stack] : begins[stack + 1]]

    def numbers(self, stack: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The storages of a stack, in order, and the number of the pass that made each, from 0."""
        rows = self.born_on(stack)
        if self.lives.born[rows[0]] == Phase.BACKWARD:
            units = self.lives.step[rows]
        elif self.in_module[stack]:
            units = self.calls[rows]
        else:
            return rows, np.arange(len(rows)) // self._at_once(rows)
        number = np.unique(units, return_inverse=True)[1].reshape(-1)
        if number[-1] == 0 and self.lives.born[rows[0]] == Phase.FORWARD:
            number = np.arange(len(rows)) * self._told(rows) // len(rows)
        return rows, number

    def _at_once(self, rows: NDArray[np.int64]) -> int:
        """How many of these follow each other at a time, such as a batch and its labels, each moved
        by one `to()`, or what one operator returns and keeps, or what a comprehension makes of
        parts of several sizes; 1 where that differs."""
        begins = np.flatnonzero(np.diff(self.lives.birth[rows], prepend=-3) > 2)
        many = np.diff(begins, append=len(rows))
        if len(begins) > 2 and (many[:-1] == many[0]).all() and 1 < many[0] >= many[-1]:
            return int(many[0])
        size, line = self.lives.size[rows], self.line_of(int(rows[0]))
        if line[1] or line[0] not in self.comprehended or not np.ptp(size):
            return 1
        tried = range(2, min(_AT_ONCE, len(rows) // 2) + 1)
        return next((n for n in tried if (size[n:] == size[:-n]).all()), 1)

    def _told(self, rows: NDArray[np.int64]) -> int:
        """How often the line ran that called the module, as the trace counts: calls may follow each
        other. A line inside the module runs once for each of its layers, too."""
        line, elsewhere = self.line_of(int(rows[0]))
        line = int(self.lives.line[rows[0]]) if elsewhere else line
        beside = (self.lives.line == line) & (self.lives.birth >= 0)
        if (beside & ~self.in_module[self.lives.stack]).any():
            return 1  # else one of those would lie between two passes
        inner = sum(frame.function == _CALLS[0] for frame in self.lives.frames(int(rows[0]))) > 1
        frames, own = self.lives.frames(int(rows[0])), self.recording.cell.filename
        lines = {line} | {frame.line for frame in frames if frame.filename == own}
        if inner and self.recording.failure is not None and not lines & self.comprehended:
            return 1  # equal layers of a pass that failed look like passes
        count = next((each.count for each in self.lines if each.number == line), 1)
        return min(max(count, 1), len(rows))

    def line_of(self, row: int) -> tuple[int | None, str]:
        """The line that called a module, or made the storage, and the cell it lies in ("" for the
        one that was measured)."""
        line, cell = self._caller(int(self.lives.stack[row]))
        return (int(self.lives.line[row]) or None, "") if line is None else (line, cell)

    def lines_of(self, rows: NDArray[np.int64], cell: str) -> tuple[int, ...]:
        """The fewest lines of a cell that made nearly all that it made of these storages."""
        sizes: Counter[int] = Counter()
        for stack in np.unique(self.lives.stack[rows]).tolist():
            own = rows[self.lives.stack[rows] == stack]
            line, place = self.line_of(int(own[0]))
            if line and place == cell:
                sizes[line] += int(self.lives.size[own].sum())
        found, left = [], sizes.total()
        for line, size in sizes.most_common():
            if left <= (1 - _NEARLY_ALL) * sizes.total():
                break
            found.append(line)
            left -= size
        return tuple(sorted(found))

    @cached_property
    def _caller(self) -> Callable[[int], tuple[int | None, str]]:
        """For a stack, or -1 for none, the user's line outside of any module; read once."""
        stacks = (*self.lives.stacks, ())
        return cache(lambda stack: user_line(self.recording, _outside(stacks[stack])))


def _is_loop(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether an expression goes through others, one by one: list() of more than a name does."""
    if not isinstance(node, ast.Call):
        return isinstance(node, _LOOPS)
    gathers = isinstance(node.func, ast.Name) and node.func.id in ("list", "tuple")
    return gathers and any(isinstance(each, ast.Call) for each in node.args)


@lru_cache(maxsize=4096)
def _calls_module(frame: Frame) -> bool:
    """Or makes a copy of one, layer by layer."""
    path = frame.filename.replace("\\", "/")
    copies = frame.function == "deepcopy" and path.endswith("/copy.py")
    return copies or (frame.function in _CALLS and path.endswith(_MODULE))


def _outside(stack: Stack) -> Stack:
    """The frames around the outermost call of a module; all, where there is none."""
    last = max((i for i, frame in enumerate(stack) if _calls_module(frame)), default=-1)
    return stack[last + 1 :]
