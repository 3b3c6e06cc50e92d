"""Puts together what the stages of a trace know of every storage that lived."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.events import Phase, Recording
from gpumem_magic.trace.attribution import Attribution
from gpumem_magic.trace.lifetimes import BEFORE, Lifetimes
from gpumem_magic.trace.lives import Lives
from gpumem_magic.trace.owners import Owners


def find_lifetimes(
    recording: Recording,
    attribution: Attribution,
    lives: Lives,
    owners: Owners,
    kind: NDArray[np.int8],
) -> Lifetimes:
    """Put together what the stages of a trace know of each storage."""
    end = len(recording.events)
    birth = np.where(lives.birth < 0, end, lives.birth)
    line = np.append(attribution.line, np.int32(BEFORE))
    freed_line = np.append(attribution.line, np.int32(0))
    stack = np.append(recording.events.stack, np.int32(-1))
    step = np.append(attribution.step, -1)
    born = np.append(attribution.phase, np.int8(Phase.FORWARD))
    freed = np.append(attribution.phase, np.int8(-1))
    graph = recording.events.graph
    recorded = np.append(np.zeros(end, bool) if graph is None else graph, False)
    return Lifetimes(
        events=end,
        address=lives.address,
        size=lives.size,
        birth=lives.birth,
        death=lives.death,
        line=line[birth],
        freed_line=freed_line[lives.death],
        category=kind,
        born=born[birth],
        freed=freed[lives.death],
        step=step[birth],
        freed_step=step[lives.death],
        stack=stack[birth],
        label=np.where(owners.naming >= 0, owners.naming, owners.shaping),
        graph=owners.graph | recorded[birth],
        stacks=recording.stacks,
        labels=recording.labels,
        sees_graphs=graph is not None,
    )
