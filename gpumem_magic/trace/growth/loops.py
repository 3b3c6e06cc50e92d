"""What survives from one pass of a loop to the next: how much in each, where it was made, who holds
it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.sources.objects.last_error import ERROR
from gpumem_magic.trace.growth.copies import copies_of_weights, sets_of_weights
from gpumem_magic.trace.growth.entries import are_models, are_of_calls, are_of_layers, count_entries
from gpumem_magic.trace.growth.ways import (
    BETWEEN,
    GRAPH,
    PASSES,
    SEVERAL,
    Group,
    alike,
    holder_of,
    hooks_of,
    known_ways,
    of_layers,
    only_way,
    optimizer_of,
    place_of,
    root_of,
)
from gpumem_magic.trace.passes import LoopPasses
from gpumem_magic.units import MIB
from gpumem_magic.values.findings import Growth, Line
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category, Held, Phase, Recording

_SHARE = 0.05
"""Of what was allocated: less is no growth worth a word."""

_MOST = 20_000
"""Storages that are looked at, the largest; some 50 ms."""

_RISING = 0.4
"""Share of the passes in which a block that is made anew has to be larger than before."""

_OFTEN = 8
"""New heights that do as well, where several blocks of a pass come from one place."""

_BESIDE = 256
"""Times that the largest storage is larger than all others where one operator made them."""

_BY_A_PASS = 0.8
"""Of all of it, from which on a pass is said to have made it, and as much to have been there."""

_OWNED = (Category.WORKSPACE, Category.OPTIMIZER_STATE)


def left_by_passes(
    recording: Recording, lives: Lifetimes, lines: tuple[Line, ...]
) -> tuple[Growth, ...]:
    """Growth up to the failure, or else up to the peak; what grew most first."""
    failure = recording.failure
    event = lives.last_event(failure)
    own = lives.alive(event) & (lives.birth >= 0) & (lives.stack >= 0)
    own &= (lives.born != Phase.OPTIMIZER) & ~lives.of(*_OWNED)
    own &= ~copies_of_weights(lives, event)
    if failure is None:
        own &= lives.freed != Phase.BACKWARD  # it waited for a pass that came
    rows = np.flatnonzero(own)
    stacks, counts = np.unique(lives.stack[rows], return_counts=True)
    rows = rows[np.isin(lives.stack[rows], stacks[counts >= PASSES])]
    least = max(MIB, int(_SHARE * lives.bytes(lives.alive(event))))
    if len(rows) > _MOST:
        rows = np.sort(rows[np.argpartition(-lives.size[rows], _MOST)[:_MOST]])
    passes = LoopPasses(recording, lives, lines)
    risen = _risen(passes, own, event)
    rows = rows[~np.isin(rows, [row for one in risen for row in one.rows])]
    found = [
        each
        for holder, group in _by_holder(recording, lives, rows)
        for each in _grown(passes, holder, group)
    ]
    found += [one for one in risen if one.holder not in _holders(found)]
    found = [g for g in found if g.holder or g.size > _held_of(found, g)]  # else the pass that ran
    found = _with_states(lives, event, found)
    return tuple(sorted((g for g in found if g.size >= least), key=lambda g: -g.size))


def _holders(growth: list[Growth]) -> set[str]:
    return {one.holder for one in growth if one.holder}


def _held_of(found: list[Growth], growth: Growth) -> int:
    """Bytes, made on the same line, of which it is known what holds them."""
    place = growth.line, growth.cell
    return sum(one.size for one in found if one.holder and (one.line, one.cell) == place)


def _by_holder(
    recording: Recording, lives: Lifetimes, rows: NDArray[np.int64]
) -> Iterator[tuple[str, Group]]:
    """Rows by the pattern of the way to them; those that nothing is known to hold together."""
    ways = known_ways(recording, lives)
    weights = np.flatnonzero(lives.of(Category.PARAMETER) & (lives.death >= lives.events))
    layers = {root_of(ways[row].path) for row in weights.tolist() if row in ways}
    owned = lives.of(Category.PARAMETER, Category.BUFFER, Category.GRADIENT)
    groups: dict[str, Group] = {}
    for row in rows.tolist():
        one = ways.get(row)
        if one and one.path.startswith(ERROR):
            continue  # it is over, and left this behind in one pass
        holder = of_layers(one, () if owned[row] else layers) or holder_of(one) if one else ""
        groups.setdefault(holder, []).append((row, one))
    for holder, group in alike(groups).items():
        yield from _inside_of_one(holder, group)


def _inside_of_one(holder: str, group: Group) -> Iterator[tuple[str, Group]]:
    """The same rows; where all lie in one place of a container, by what holds them in there."""
    paths = [one.path for _, one in group if one]
    places = [BETWEEN.search(path) if holder.endswith("[*]") else None for path in paths]
    begins = {path[: place.end()] for path, place in zip(paths, places, strict=True) if place}
    if len(begins) != 1 or None in places:
        yield holder, group
        return
    begin = begins.pop()
    inner: dict[str, Group] = {}
    for row, one in group:
        rest = root_of(one.path.removeprefix(begin)) if one else ""
        inner.setdefault(f"{begin}{rest}", []).append((row, one))
    yield from inner.items()


def _with_states(lives: Lifetimes, event: int, found: list[Growth]) -> list[Growth]:
    """With the states of optimizers in the same containers: they are told of by their names."""
    rows: dict[str, list[int]] = {one.holder: [] for one in found if one.holder.endswith("[*]")}
    if not rows:
        return found
    states = lives.alive(event) & lives.of(Category.OPTIMIZER_STATE) & (lives.birth >= 0)
    for row in np.flatnonzero(states).tolist():
        rows.get(root_of(lives.name(row) or ""), []).append(row)
    return [_with(lives, g, rows[g.holder]) if g.holder in rows else g for g in found]


def _with(lives: Lifetimes, growth: Growth, rows: list[int]) -> Growth:
    more = int(lives.size[rows].sum())
    each = growth.each + more // growth.passes
    return replace(growth, size=growth.size + more, each=each, rows=(*growth.rows, *rows))


def _grown(passes: LoopPasses, holder: str, group: Group) -> Iterator[Growth]:
    """What grew of the storages of one holder; of those without one, line by line."""
    lives = passes.lives
    if holder:
        found = _of_group(passes, holder, group)
        if found is not None:
            yield found
        return
    by_line: dict[tuple[int | None, str], Group] = {}
    counts = (lives.born == Phase.FORWARD) & (~lives.of(Category.PARAMETER) | _of_models(lives))
    gradients = (lives.born == Phase.BACKWARD) & lives.of(Category.GRADIENT)
    for row, _ in group:
        if counts[row] or (gradients[row] and lives.name(row) is None):
            by_line.setdefault(passes.line_of(row), []).append((row, None))
    for rows in by_line.values():
        found = _of_group(passes, holder, rows)
        if found is not None:
            yield found


def _of_models(lives: Lifetimes) -> NDArray[np.bool_]:
    """Parameters of models that one place makes again and again, with a backward pass between."""
    made = lives.of(Category.PARAMETER) & (lives.birth >= 0) & (lives.stack >= 0)
    steps = int(lives.step.max(initial=0)) + 2
    places = np.unique(lives.stack[made].astype(np.int64) * steps + lives.step[made])
    stacks, counts = np.unique(places // steps, return_counts=True)
    return np.asarray(made & np.isin(lives.stack, stacks[counts >= PASSES]), bool)


def _of_group(passes: LoopPasses, holder: str, group: Group) -> Growth | None:
    lives = passes.lives
    rows = np.array([row for row, _ in group], np.int64)
    own = [row for row, g in group if g and not g.path.endswith(GRAPH)] or rows.tolist()
    at_once = bool((lives.born[own] == Phase.BACKWARD).all()) and not np.ptp(lives.step[own])
    models = _models(passes, group)
    one_set = _is_one_set(lives, group, rows, own if at_once else [], models)
    if one_set or _is_replaced(passes.recording, lives, rows):
        return None
    graphs = [one.path.endswith(GRAPH) for _, one in group if one]
    survived, first, ran = _survived(passes, rows)
    if not holder and lives.all_of(rows, Category.PARAMETER):  # of each model there are several
        survived = ran = len(np.unique(lives.step[rows]))
        first = 1
    layers = max(holder.count("[*]") - 1, 0)  # entries that one call made are no passes
    numbered, keyed = (0, 0) if at_once else count_entries(group, survived, layers)
    if (hooks := hooks_of(group)) > survived:
        numbered, first, ran = hooks, 1, hooks  # all of them ran in the last pass
    least = 1 if ran > survived and any("[" in model for model in models) else PASSES
    few = max(survived, numbered) < least or 0 < len(models) < least
    if few or (survived < PASSES and are_of_layers(passes, rows, numbered)):
        return None
    many = numbered or keyed
    if many >= PASSES and not are_of_calls(passes, rows, survived, many):
        survived = many
    sets, begun, of_set = sets_of_weights(lives, rows)
    if sets >= PASSES:
        survived, first, ran = sets, 1, begun
    if len(models) >= PASSES:
        survived, first, ran = len(models), 1, len(models)
    if 0 < len(models) < PASSES:  # whole models, and the next one is being made
        holder = min(models) if len(models) == 1 else holder
        survived, first, ran = len(models), 1, len(models) + 1
    else:
        nested = holder.partition("[*]")[2].startswith(".")  # of layers, by one name
        holder = holder if nested else place_of(group) or only_way(group) or holder
        if any(graphs) and 1 < numbered < PASSES and holder.endswith("[*]"):
            holder = f"{holder[:-3]}{SEVERAL}{numbered - 1}]"  # a state of several, not a list
    size = int(lives.size[rows].sum())
    largest = int(rows[np.argmax(lives.size[rows])])
    rest = size - int(lives.size[largest])
    if (2 * rest < size and not holder) or (_BESIDE * rest < size and "[" not in holder):
        return None  # results of one operator: passes leave as much each
    line, cell = passes.line_of(largest)
    return Growth(
        holder=holder,
        graph=any(graphs) if holder else bool(lives.graph[rows].any()),
        recorded=any(one.graph for _, one in group if one),
        rows=tuple(rows.tolist()),
        kind=next((one.kind for _, one in group if one), ""),
        size=size,
        each=of_set if sets >= PASSES else size // survived,
        passes=survived,
        first=first,
        ran=max(ran, survived),
        line=line,
        cell=cell,
        shown=sum(one.shown for _, one in group if one),
        lines=passes.lines_of(rows, cell),
    )


def _is_one_set(
    lives: Lifetimes,
    group: Group,
    rows: NDArray[np.int64],
    gradients: list[int],
    models: set[str],
) -> bool:
    """Whether it is the weights of one model, made by hand, or their gradients: those of one
    backward pass, but for their graph, or what is in `.grad`, however often the model is run."""
    if 2 * int(lives.size[gradients].sum()) >= int(lives.size[rows].sum()):
        return True
    if all(one and one.gradient and one.path.endswith(".grad") for _, one in group):
        return True
    by_hand = lives.all_of(rows, Category.PARAMETER) and not (models or are_models(lives, rows))
    return by_hand and not np.ptp(lives.step[rows])


def _is_replaced(recording: Recording, lives: Lifetimes, rows: NDArray[np.int64]) -> bool:
    """Whether one pass made all of it, or what the one before made and it has not replaced as yet,
    and as much from the same places was there before: an average of the weights, say."""
    size = lives.size[rows]
    steps, place = np.unique(lives.step[rows], return_inverse=True)
    sizes = np.bincount(place, size)
    last = np.isin(lives.step[rows], steps[np.argsort(sizes)[-2:]])
    like = np.isin(lives.stack, lives.stack[rows[last]])
    before = like & lives.alive(int(lives.birth[rows[last]].min()) - 1)
    most = _BY_A_PASS * int(size.sum())
    failure = recording.failure
    left = lives.at_end if failure is None else lives.alive(lives.last_event(failure))
    as_much = lives.bytes(before) >= max(most, lives.bytes(like & left))
    return as_much and int(size[last].sum()) >= most


def _risen(passes: LoopPasses, own: NDArray[np.bool_], event: int) -> list[Growth]:
    """Blocks that were made anew in each pass, larger by as much: `torch.cat` in a loop, for one
    tensor or for several, such as the keys and values of each layer."""
    lives = passes.lives
    ways = known_ways(passes.recording, lives)
    large = np.flatnonzero(own & (lives.size >= MIB))
    found: dict[tuple[object, ...], Growth] = {}
    for stack in np.unique(lives.stack[large]).tolist():
        rows = passes.born_on(stack)
        rows = rows[lives.birth[rows] <= event]
        steps = np.diff(lives.size[rows])
        if len(rows) <= PASSES or not _rises(steps, int(lives.size[rows[-1]])):
            continue
        alive = rows[own[rows]].tolist()
        kept = {row: ways[row] for row in alive if row in ways}
        several = _at_once(lives, rows)
        last = alive[-1]
        one = kept.get(last) if several == 1 else _most_common(list(kept.values()))
        line, cell = passes.line_of(last)
        newest = alive[-several:] if several > 1 else list(kept) or [last]
        made = Growth(
            holder=holder_of(one) if one else "",
            graph=bool(one and one.graph),
            kind=one.kind if one else "",
            size=int(lives.size[newest].sum()),
            each=int(steps.mean() * several**2),  # of each of them, so many times in a pass
            passes=len(rows) // several,
            first=1,
            ran=len(rows) // several,
            line=line,
            cell=cell,
            anew=True,
            rows=tuple(alive) if several > 1 else (),
        )
        key = made.holder, made.line, made.cell, made.passes
        same = found.get(key)
        size, each, together = (same.size, same.each, same.rows) if same else (0, 0, ())
        found[key] = replace(
            made, size=size + made.size, each=each + made.each, rows=(*together, *made.rows)
        )
    return list(found.values())


def _at_once(lives: Lifetimes, rows: NDArray[np.int64]) -> int:
    """How many blocks of one place there are at a time: as many as are made in the life of one."""
    gone = np.flatnonzero(lives.death[rows] < lives.events)
    later = np.searchsorted(lives.birth[rows], lives.death[rows[gone]])
    return max(int(np.median(later - gone - 1)), 1) if len(gone) > len(rows) // 2 else 1


def _most_common(ways: list[Held]) -> Held | None:
    """One of those that lead through the same container: a variable of the loop is one of them."""
    roots = [holder_of(one) for one in ways]
    return max(ways, key=lambda one: roots.count(holder_of(one)), default=None)


def _rises(steps: NDArray[np.int64], last: int) -> bool:
    """Whether blocks grew pass by pass; each may be up to 1 MiB larger than what was asked for."""
    highest = np.maximum.accumulate(np.cumsum(steps))
    slack = (steps < -MIB).any() or steps.max() > last // 2
    up = steps[steps > 0]
    mostly = len(up) >= _RISING * len(steps) and 2 * int(steps.sum()) >= int(up.sum())
    often = mostly or np.count_nonzero(np.diff(highest)) >= _OFTEN
    return bool(often and not slack and 2 * int(steps.sum()) >= last)


def _survived(passes: LoopPasses, rows: NDArray[np.int64]) -> tuple[int, int, int]:
    """How many passes left something, the first of them, and how many ran: as most bytes say. One
    place may have two stacks, one after the other, as torch finds a shorter way."""
    lives = passes.lives
    found: dict[object, tuple[int, int, int, int]] = {}
    ends: dict[object, int] = {}
    alive = np.zeros(len(lives), bool)
    alive[rows] = True
    for stack in np.unique(lives.stack[rows]).tolist():
        own, number = passes.numbers(stack)
        kept = np.bincount(number, lives.size[own] * alive[own])
        left = np.flatnonzero(kept)
        place: object = lives.stacks[stack]
        if ends.get(place, -1) > lives.birth[own[0]]:
            place = stack
        many, first, ran, size = found.get(place, (0, int(left[0]) + 1, 0, 0))
        more = int(number[-1]) + 1
        found[place] = many + len(left), first, ran + more, size + int(kept.sum())
        ends[place] = int(lives.birth[own[-1]])
    votes = sorted(found.values())
    half, total = sum(vote[3] for vote in votes) / 2, 0
    for survived, first, ran, size in votes:
        total += size
        if total >= half:
            return survived, first, ran
    return 0, 1, 0


def _models(passes: LoopPasses, group: Group) -> set[str]:
    """The ways to the models that hold all of the parameters; empty where there are none, or
    something else holds some."""
    models = {one.module or optimizer_of(one) for _, one in group if one}
    if not models or "" in models:
        return set()
    owned = passes.lives.of(Category.PARAMETER, Category.BUFFER)
    return models if owned[[row for row, _ in group]].any() else set()
