"""What the events of a Recording mean: pure functions on its columns, put together here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.trace.attribution import attribute
from gpumem_magic.trace.categories import categorise
from gpumem_magic.trace.cell_flow import Parse, find_evaluations, parse_cell
from gpumem_magic.trace.enlarged import find_enlarged
from gpumem_magic.trace.failure import complete_failure, explain_failure
from gpumem_magic.trace.growth import find_growth
from gpumem_magic.trace.levels import (
    NO_TIMELINE,
    choose_moments,
    find_levels,
    find_timeline,
    name_gaps,
    name_losses,
)
from gpumem_magic.trace.lifetimes import find_lifetimes
from gpumem_magic.trace.lines import find_lines
from gpumem_magic.trace.owners import find_owners
from gpumem_magic.trace.pairing import Pairing, pair_events
from gpumem_magic.trace.passes import find_visits
from gpumem_magic.trace.peak import (
    KnownBlocks,
    by_category,
    find_blocks,
    find_call_tree,
    find_peak,
)
from gpumem_magic.trace.remedies import find_left_over, without_the_useless
from gpumem_magic.trace.stacks import read_stacks
from gpumem_magic.values.findings import Level, Survivors, Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Reading, Recording

__all__ = ["Trace", "build_trace"]


def build_trace(recording: Recording, parse: Parse = parse_cell) -> Trace:
    """Derive from a Recording all that can be told of it; what cannot is None and in `unknown`.

    Of an incomplete recording only the counters before and after count: its events would understate
    every sum.
    """
    stacks = read_stacks(recording)
    levels = find_levels(recording)
    lives = pair_events(recording.events, recording.initial)
    failure = recording.failure
    oom = explain_failure(recording, failure, stacks, levels, lives) if failure else None
    before, after = _level(recording.before), _level(recording.after)
    if not recording.complete:
        nothing = Level(None, None, None)
        return Trace(
            *(before, nothing, after, (), (), {}, {}, NO_TIMELINE, oom, name_losses(recording)),
            device=recording.device,
            error=recording.error,
            machine=recording.machine,
        )
    attribution = attribute(recording, stacks)
    owners = find_owners(recording.labels, lives, len(recording.events))
    kind = categorise(recording, stacks, attribution, lives, owners)
    known = KnownBlocks(lives, owners, kind, attribution)
    visits = find_visits(recording, attribution, lives, owners, kind)
    moments = choose_moments(levels, *([failure.position] if failure else []))
    timeline = find_timeline(recording, attribution, levels, lives, kind, moments)
    if failure and oom:
        point = int(np.searchsorted(moments, failure.position))
        oom = replace(oom, point=point, held=by_category(timeline.by_category[point]))
        oom = complete_failure(oom, recording, failure, levels, known)
    lifetimes = find_lifetimes(recording, attribution, lives, owners, kind)
    lines = find_lines(recording, stacks, attribution, levels, visits, parse)
    growth = find_growth(recording, lifetimes, lines)
    oom = oom and without_the_useless(oom, sum(g.size for g in growth), recording.device.total)
    highest = int(np.argmax(levels.allocated)) - 1
    peak = find_peak(recording, levels)
    return Trace(
        before=before,
        peak=peak,
        after=after,
        lines=lines,
        blocks=find_blocks(recording, known, highest),
        at_peak=by_category(timeline.by_category[timeline.peak]),
        at_end=by_category(timeline.by_category[-1]),
        timeline=timeline,
        oom=oom,
        unknown=name_gaps(recording, levels, peak),
        survivors=_survivors(lives, kind),
        device=recording.device,
        error=recording.error,
        machine=recording.machine,
        lifetimes=lifetimes,
        growth=growth,
        call_tree=find_call_tree(recording, known, highest),
        enlarged=find_enlarged(recording, lifetimes),
        left_over=find_left_over(recording, lifetimes),
        evaluations=_evaluations(recording, lifetimes),
        fits=recording.fits,
    )


def _evaluations(recording: Recording, lives: Lifetimes) -> frozenset[int]:
    """Asked only of a cell that failed: of others the whole way is known."""
    if recording.error is None:
        return frozenset()
    return find_evaluations(recording.cell, recording.cells, lives.stacks)


def _survivors(lives: Pairing, kind: NDArray[np.int8]) -> Survivors:
    alive = lives.alive(int(lives.death.max(initial=0)) - 1)
    return Survivors(lives.address[alive], kind[alive])


def _level(reading: Reading) -> Level:
    return Level(reading.allocated, reading.reserved, reading.device_used)
