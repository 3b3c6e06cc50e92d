"""Which line of the cell ran when: the strip above the timeline, arithmetic only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Run:
    """Points start <= i < stop of a timeline, in which the lines first..last ran."""

    start: int
    stop: int
    first: int
    last: int

    @property
    def label(self) -> str:
        """ "4", or "4-6" for several lines."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def runs_of(line: NDArray[np.int32]) -> tuple[Run, ...]:
    """Stretches of one line each; points of no known line (0) leave gaps."""
    if not len(line):
        return ()
    edges = np.flatnonzero(np.diff(line)) + 1
    starts = np.concatenate([[0], edges]).tolist()
    stops = np.concatenate([edges, [len(line)]]).tolist()
    return tuple(
        Run(start, stop, int(line[start]), int(line[start]))
        for start, stop in zip(starts, stops, strict=True)
        if line[start]
    )


def group(runs: tuple[Run, ...], fits: Callable[[Run], bool]) -> tuple[Run, ...]:
    """Join neighbours while the labels of both do not fit, and then those with equal labels."""
    groups = _join(runs, lambda a, b: not fits(a) and not fits(b))
    return tuple(_join(groups, lambda a, b: a.label == b.label))


def _join(runs: Iterable[Run], alike: Callable[[Run, Run], bool]) -> list[Run]:
    groups: list[Run] = []
    for run in runs:
        before = groups[-1] if groups else run
        if before.stop == run.start and alike(before, run):
            groups[-1] = _joined(before, run)
        else:
            groups.append(run)
    return groups


def _joined(a: Run, b: Run) -> Run:
    return Run(a.start, b.stop, min(a.first, b.first), max(a.last, b.last))
