"""Which single change would have left room for an allocation that failed: measured, not guessed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.cell_flow import mentioned_later, names_only_set, names_set_first
from gpumem_magic.trace.levels import HeldSegments, Levels, find_held_segments
from gpumem_magic.trace.owners import CODE
from gpumem_magic.trace.peak import KnownBlocks
from gpumem_magic.units import MIB
from gpumem_magic.values.findings import LeftOver, OutOfMemory, Remedy, Way
from gpumem_magic.values.lifetimes import BEFORE, Lifetimes
from gpumem_magic.values.names import owner_of
from gpumem_magic.values.recording import Action, Category, Failure, Phase, Recording

_ROOT = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class _Moment:
    """A failure of a recording, and what is known of the blocks; alive: those that were alive."""

    recording: Recording
    failure: Failure
    known: KnownBlocks
    alive: NDArray[np.int64]

    def alive_as(self, category: Category) -> NDArray[np.int64]:
        """The living blocks of one kind."""
        is_kind: NDArray[np.bool_] = self.known.kind[self.alive] == CODE[category]
        return self.alive[is_kind]

    def size_of(self, blocks: NDArray[np.int64]) -> int:
        """Bytes of the blocks."""
        return int(self.known.lives.size[blocks].sum())


def _by_root(moment: _Moment) -> Mapping[str, NDArray[np.int64]]:
    """The living blocks that each of the notebook's names leads to."""
    recording, alive, owners = moment.recording, moment.alive, moment.known.owners
    found: dict[str, list[int]] = {}
    for block in alive[owners.naming[alive] >= 0].tolist():
        root = _ROOT.match(recording.labels[owners.naming[block]].name or "")
        if root:
            found.setdefault(root.group(), []).append(block)
    return {root: np.array(blocks, np.int64) for root, blocks in found.items()}


BLOCK = 512  # kMinBlockSize: the allocator hands out multiples of it (c10/core/AllocatorConfig.h)

OUTPUT_HISTORY = re.compile(r"(?:_{1,3}|_\d+|_oh|Out)(?:\b|\[|\.|$)")
"""Names under which the notebook keeps what cells showed."""

_VARIABLES = 3  # the largest ones

_LEAST = 0.05
"""Of what was held: a remedy that frees less helps this one request, and not the cell."""

_RANK = (True, None, False)


def find_remedies(
    oom: OutOfMemory, recording: Recording, failure: Failure, levels: Levels, known: KnownBlocks
) -> tuple[Remedy, ...]:
    """Changes that concern this failure, those first that would have been enough."""
    if oom.requested is None:
        return ()
    moment = _Moment(recording, failure, known, known.lives.alive(failure.position - 1))
    segments = find_held_segments(recording, levels, failure.position)
    found = [*_outside(oom), *_expandable(oom, recording)]
    calling = _calling_line(moment)
    line = calling if calling != oom.line else None
    for way, name, blocks in _droppable(oom, moment, calling):
        enough = _makes_room(oom, moment, blocks, segments)
        before = line if way is Way.UNUSED else None
        found.append(Remedy(way, moment.size_of(blocks), enough, name, before))
    worth = [one for one in found if one.size >= _LEAST * sum(oom.held.values())]
    return tuple(sorted(worth, key=lambda remedy: (_RANK.index(remedy.enough), -remedy.size)))


def without_the_useless(oom: OutOfMemory, grown: int, total: int) -> OutOfMemory:
    """The failure without what only puts it off: what drops less than the `grown` bytes that passes
    of a loop left; and all of it where the one request is more than the card's `total` bytes, or
    most of them and more than everything together leaves free."""
    drops = (Way.GRADIENTS, Way.HISTORY, Way.UNUSED)
    kept = [one for one in oom.remedies if one.way not in drops or one.size >= grown]
    whole = min(total, oom.allowed or total)
    free = (oom.device_free or 0) + (oom.reserved_free or 0)
    most = max(free + sum(one.size for one in kept), whole // 2)
    asked = oom.requested or 0
    too_large = 0 < whole < asked or (not grown and oom.device_free is not None and asked > most)
    return replace(oom, too_large=too_large, remedies=() if too_large else tuple(kept))


def _outside(oom: OutOfMemory) -> Iterator[Remedy]:
    """What other processes give back goes to the device as it is."""
    if oom.others and oom.missing and oom.allowed is None:
        yield Remedy(Way.OTHERS, oom.others, oom.others >= oom.missing)


def _expandable(oom: OutOfMemory, recording: Recording) -> Iterator[Remedy]:
    """Segments that grow leave no gaps at their ends, but they may leave others."""
    if oom.reserved_free is None or oom.requested is None or oom.fragmented is None:
        return
    if (recording.events.action == Action.SEGMENT_MAP).any():
        return  # they are in use
    if oom.fragmented:
        yield Remedy(Way.EXPANDABLE, oom.reserved_free, None)


def _calling_line(moment: _Moment) -> int | None:
    """The line of the cell itself, rather than of a function, that was running."""
    recording, failure = moment.recording, moment.failure
    stack = recording.stacks[failure.stack] if failure.stack >= 0 else ()
    own = [frame.line for frame in stack if frame.filename == recording.cell.filename]
    return own[-1] if own else recording.error_line


def _droppable(
    oom: OutOfMemory, moment: _Moment, line: int | None
) -> Iterator[tuple[Way, str | None, NDArray[np.int64]]]:
    """Sets of living blocks that the rest of the cell can do without."""
    gradients = moment.alive_as(Category.GRADIENT)
    if moment.failure.phase == Phase.FORWARD and len(gradients) and _are_used_up(moment, gradients):
        yield Way.GRADIENTS, None, gradients
    named = _by_root(moment)
    history = [blocks for root, blocks in named.items() if OUTPUT_HISTORY.match(root)]
    if history:
        yield Way.HISTORY, None, np.concatenate(history)
    found = _unused(moment, named, line)
    sizes = {names: moment.size_of(blocks) for names, blocks in found.items()}
    for names in sorted(found, key=lambda names: -sizes[names])[:_VARIABLES]:
        yield Way.UNUSED, names, found[names]


def _are_used_up(moment: _Moment, gradients: NDArray[np.int64]) -> bool:
    """Whether an optimizer stepped after the gradients came to be, and none was about to."""
    recording, failure = moment.recording, moment.failure
    stack = recording.stacks[failure.stack] if failure.stack >= 0 else ()
    if any(frame.function == "step" for frame in stack):
        return False
    phases = recording.events.phase[: failure.position]
    steps = np.flatnonzero(phases == Phase.OPTIMIZER)
    return len(steps) > 0 and int(steps[-1]) > int(moment.known.lives.birth[gradients].max())


def _unused(
    moment: _Moment, named: Mapping[str, NDArray[np.int64]], line: int | None
) -> Mapping[str, NDArray[np.int64]]:
    """Blocks that go with all names that hold them, none of which is used any more, where nothing
    else holds them: by these names. None where it is not known who holds what."""
    recording, address = moment.recording, moment.known.lives.address
    holders = recording.names.holders
    used = mentioned_later(recording.cell, line, recording.cells)
    if used is None or holders is None:
        return {}
    held = {block: holders.get(int(address[block])) for block in moment.alive.tolist()}
    groups: dict[frozenset[str], str] = {}
    for root, blocks in named.items():
        if root in used or OUTPUT_HISTORY.match(root):
            continue
        tied = frozenset({root}.union(*(held[block] or () for block in blocks.tolist())))
        group = frozenset({root}) if tied & used else tied
        groups.setdefault(group, ", ".join((root, *sorted(group - {root}))))
    found: dict[str, NDArray[np.int64]] = {}
    for group, names in groups.items():
        gone = np.array([b for b, by in held.items() if by is not None and by <= group], np.int64)
        if len(gone):
            found[names] = gone
    return found


def _makes_room(
    oom: OutOfMemory, moment: _Moment, dropped: NDArray[np.int64], segments: HeldSegments | None
) -> bool | None:
    """Whether the request finds a gap, or the device enough free segments, without `dropped`."""
    lives = moment.known.lives
    needed = -(-(oom.requested or 0) // BLOCK) * BLOCK
    segment, free = oom.segment or needed, oom.device_free or 0
    if segments is not None:
        left = np.setdiff1d(moment.alive, dropped, assume_unique=True)
        if segments.largest_gap(lives, left) >= needed:
            return True
        return oom.allowed is None and segments.empty(lives, left) + free >= segment
    if int(lives.size[dropped].max(initial=0)) >= needed:
        return True
    rest = moment.size_of(dropped) + (oom.reserved_free or 0) + free
    return None if rest >= needed else False


def find_left_over(recording: Recording, lives: Lifetimes) -> LeftOver | None:
    """Names with at least 1 MiB; None where there are none, memory was not short, or the source
    cannot tell."""
    failure = recording.failure
    alive = lives.alive(lives.last_event(failure))
    short = failure is not None or recording.fits is False
    if not short and 2 * lives.bytes(alive) < recording.device.total:
        return None
    used = mentioned_later(recording.cell, 1, recording.cells)
    if used is None:
        return None
    alive &= (lives.line == BEFORE) & ~lives.of(Category.WORKSPACE)
    first = {label.address: label for label in lives.labels if label.position == 0}
    renamed, older = names_only_set(recording.cell), used - names_set_first(recording.cell)
    graphs = {_root_of(label.name) for label in first.values() if label.has_graph}
    sizes: dict[str, int] = {}
    unnamed = 0
    for row in np.flatnonzero(alive).tolist():
        label = first.get(int(lives.address[row]))
        name = (label.name if label else _only_holder(recording, int(lives.address[row]))) or ""
        if label and _root_of(lives.name(row)) in renamed - {_root_of(name)}:
            name = lives.name(row) or ""  # `old = model`, and a new model after that
        owner = owner_of(name)
        if owner and _is_reached(recording, int(lives.address[row]), owner, used - renamed, older):
            continue
        if graphs & used and (recording.names.holders or {}).get(int(lives.address[row])) is None:
            continue  # the graph of what the cell uses may hold it
        if owner and not OUTPUT_HISTORY.match(name):
            sizes[owner] = sizes.get(owner, 0) + int(lives.size[row])
        elif label is None and not name:
            unnamed += int(lives.size[row])
    used -= renamed
    left = {name: size for name, size in sizes.items() if name not in used and size >= MIB}
    names = tuple(sorted(left, key=lambda name: -left[name]))
    held = unnamed if graphs and graphs <= set(left) else 0  # what their graphs hold has no name
    alone = not graphs and unnamed > max(MIB, sum(left.values()))
    if alone and not _may_hold(recording, used):
        return LeftOver((), unnamed)
    return LeftOver(names, sum(left.values()) + held) if left else None


def _may_hold(recording: Recording, used: frozenset[str]) -> bool:
    """Whether an object that the cell speaks of may hold what no name is known to lead to."""
    kinds = recording.names.others
    return any(kinds.get(name, "torch.device") != "torch.device" for name in used)


def _is_reached(
    recording: Recording, address: int, name: str, used: frozenset[str], objects: frozenset[str]
) -> bool:
    """Whether a name that the cell speaks of leads to a block of `name`'s, or may: what an older
    object of the user's holds, or the data set of a loader, has names of its own besides."""
    names = recording.names
    if (holders := (names.holders or {}).get(address)) is not None:
        return not used.isdisjoint(holders)
    loaded = name not in names.modules and name not in names.optimizers
    if any(address in names.loaded.get(one, ()) for one in used):
        return True
    return any(
        kind.startswith("__main__.") or (loaded and kind.endswith(".DataLoader"))
        for kind in (names.others.get(one, "") for one in objects - {name} - names.loaded.keys())
    )


def _only_holder(recording: Recording, address: int) -> str:
    """The one name that leads to a block without an owner, such as an exception's variable."""
    names = (recording.names.holders or {}).get(address)
    return next(iter(names)) if names and len(names) == 1 else ""


def _root_of(name: str | None) -> str:
    found = _ROOT.match(name or "")
    return found[0] if found else ""
