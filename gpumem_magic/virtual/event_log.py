"""The allocator's events of one cell, collected while it runs, each with the Python stack that
caused it."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter  # the clock itself: a dry run replaces the name in its module
from types import FrameType

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from gpumem_magic.sources.collected import Row, events_of
from gpumem_magic.sources.stacks.callstacks import CallStacks
from gpumem_magic.sources.summing import LEFT_OUT, changes_of, outlast, peak_missing
from gpumem_magic.values.recording import (
    Action,
    Events,
    Expansion,
    Failure,
    Phase,
    Stack,
    Tensor,
)
from gpumem_magic.virtual.gpu import VirtualGPU

MAX_EVENTS = 1_000_000
"""Events of a cell that are kept, some 300 bytes of host memory each; the older half is summed up
where there are more."""

_LARGE = 1 << 20
"""Elements from which a result is compared with what it was made of."""

_TOLD = 16 << 10
"""Bytes of a storage from which it is noted what it was made for."""

_ELEMENT_SIZES = (1, 2, 4, 8, 16)
_TIMES = 4
_MOST = 10_000


class EventLog:
    """The allocator's events of one cell, each with the Python stack that caused it: `rows`.

    most: how many are kept; None: all. summed_up: how many of the first are kept as sums.
    """

    def __init__(self, gpu: VirtualGPU, most: int | None = None) -> None:
        self._gpu = gpu
        self.rows: list[Row] = []
        self.summed_up = 0
        self._most = most or sys.maxsize
        self._room = self._most
        self._kept: list[int] = []  # the first rows, by the number of events before them
        self._summing = threading.Lock()
        self._expansions: list[Expansion] = []
        self._placed: list[tuple[int, int, int]] = []  # position, address, what it was made for
        self._results: dict[tuple[torch.Size, torch.dtype], int] = {}
        self._stacks = CallStacks()
        self._clock = 0.0
        self._last: tuple[str | None, torch.Size] = None, torch.Size(())
        self._refusal: Failure | None = None
        self._fault: Exception | None = None
        self._heard: Callable[[int, int, int, int], None] | None = None
        self.repeats: int | None = None  # the stack of an event that happens once more

    def __len__(self) -> int:
        return self.summed_up + len(self.rows) - len(self._kept)

    def to_rows(self, positions: ArrayLike) -> NDArray[np.int64]:
        """The rows before which so many events had happened, one for each position."""
        wanted = np.asarray(positions, np.int64)
        after = wanted - self.summed_up + len(self._kept)
        return np.where(wanted < self.summed_up, np.searchsorted(self._kept, wanted), after)

    @property
    def places(self) -> int:
        """How many distinct stacks there were so far."""
        return len(self._stacks)

    def begin(self, outermost: FrameType | None = None) -> None:
        """Listen to the allocator from here on. Stacks end above `outermost`."""
        self._stacks.begin(sys._getframe(1), outermost)
        self._clock = perf_counter()
        self._heard = self._listener()
        self._gpu.storages.listen(self._heard)
        self._gpu.tracker.on_result = self._compare
        self._gpu.storages.on_placed = self._note

    def end(self) -> float:
        """Stop listening; the seconds since `begin`."""
        if self._heard is not None:
            self._gpu.storages.unlisten(self._heard)
        self._gpu.tracker.on_result = None
        self._gpu.storages.on_placed = None
        self._stacks.end()
        return perf_counter() - self._clock

    def _listener(self) -> Callable[[int, int, int, int], None]:
        """A function rather than a method: it runs twice for every tensor of the cell."""
        rows, capture = self.rows, self._stacks.capture
        append = rows.append
        graph_task, now, frame = torch._C._current_graph_task_id, perf_counter, sys._getframe
        completed, oom, clock = Action.FREE_COMPLETED, Action.OOM, self._clock
        alloc, tracker = Action.ALLOC, self._gpu.tracker

        def hear(action: int, address: int, size: int, requested: int) -> None:
            if action is completed:
                return  # at once after FREE, but for other streams' blocks: no level changes
            try:
                if action is oom:
                    if (told := self._gpu.storages.on_refusal) is not None:
                        told()
                    self._refusal = self._refused(requested)
                if (stack := self.repeats) is None:
                    stack = capture((action is alloc and tracker.caller) or frame(3))
                append(
                    (
                        +action,  # a plain number: it keeps no row among the collector's objects
                        address,
                        size,
                        requested,
                        stack,
                        graph_task() != -1,
                        now() - clock,
                        tracker.records_graph,
                    )
                )
                if len(rows) >= self._room:
                    self._sum_up()
            except Exception as error:  # in the midst of the user's operator: told at the end
                self._fault = error

        return hear

    def _sum_up(self) -> None:
        """Let the older half of the rows go but for what outlasts it.

        Had it gone higher than what is left of it shows, a block of the bytes that miss stands for
        them, by the stack that reached the peak.
        """
        if not self._summing.acquire(blocking=False):  # another thread is about it
            return
        try:
            old = self.rows[: len(self.rows) // 2]
            action, address, size = np.array([row[:3] for row in old], np.int64).T
            kept = outlast(action.astype(np.int8), address)
            missing = peak_missing(changes_of(action, size), kept)
            until = self.summed_up + len(old) - len(self._kept)
            numbers = [*self._kept, *range(self.summed_up, until)]
            found = [(numbers[i], old[i]) for i in np.flatnonzero(kept).tolist()]
            if missing is not None:
                found = _with_peak(found, numbers[missing[0]], old[missing[0]], missing[1])
            self.rows[: len(old)] = [row for _, row in found]
            self._kept, self.summed_up = [number for number, _ in found], until
            self._room = max(self._most, len(self.rows) + self._most // 2)
            known, noted = set(self._kept), len(self._placed)
            self._placed[:noted] = [
                one for one in self._placed[:noted] if one[0] > until or one[0] - 1 in known
            ]
        finally:
            self._summing.release()

    def _compare(self, op: str, operands: list[torch.Tensor] | None, shape: torch.Size) -> None:
        """Note a result that is large beside its operands, of which a factory has none; those that
        are expanded count once; windows that overlap are told of as the elements that they show."""
        if shape.numel() < _LARGE:
            return
        self._last = self._gpu.tracker.operator, shape
        if operands is None or len(self._expansions) >= _MOST:
            return
        given = (min(t.numel(), t.untyped_storage().nbytes() // t.itemsize) for t in operands)
        if shape.numel() >= _TIMES * sum(given):
            shapes = tuple(
                (t.untyped_storage().nbytes() // t.itemsize,) if _overlaps(t) else tuple(t.shape)
                for t in operands
            )
            self._expansions.append(Expansion(len(self), op, tuple(shape), shapes))

    def _note(self, tensor: torch.Tensor, address: int) -> None:
        """Note what the youngest block at an address was made for, unless that is small."""
        size = tensor.untyped_storage().nbytes()
        if size >= _TOLD and tensor.numel() * tensor.itemsize == size:
            made, after = (tensor.shape, tensor.dtype), 0
            if self.repeats is not None:  # it was taken some events ago: the last ones there
                back = enumerate(reversed(self.rows))
                after = next((n for n, row in back if row[1] == address), 0)
            kind = self._results.setdefault(made, len(self._results))
            self._placed.append((len(self) - after, address, kind))

    def _refused(self, requested: int) -> Failure:
        allocator = self._gpu.allocator
        free = [b.size for s in allocator.snapshot() for b in s.blocks if b.state == "inactive"]
        operator = self._gpu.tracker.operator
        return Failure(
            requested=requested,
            segment=None,
            device_free=allocator.driver.free,
            position=len(self),
            stack=self._stacks.capture(sys._getframe(2)),
            phase=Phase.BACKWARD if torch._C._current_graph_task_id() != -1 else Phase.FORWARD,
            op=operator and f"aten.{operator}",
            message="",
            reserved_free=sum(free),
            largest_free=max(free, default=0),
            shape=self._shape_of(requested),
        )

    def _shape_of(self, requested: int) -> tuple[int, ...] | None:
        """The shape of the result that was refused; None where it was scratch memory, or small."""
        operator, shape = self._last
        size, rest = divmod(requested, shape.numel() or 1)
        known = operator == self._gpu.tracker.operator and not rest and size in _ELEMENT_SIZES
        return tuple(shape) if known else None

    def expansions(self) -> tuple[Expansion, ...]:
        """Large results of little, of which the events are kept."""
        if not self.summed_up:  # each is at its row: there may be as many as operators
            return tuple(self._expansions)
        rows = self.to_rows([one.position for one in self._expansions])
        pairs = zip(self._expansions, rows.tolist(), strict=True)
        return tuple(replace(one, position=row) for one, row in pairs)

    def failure(self, message: str) -> Failure | None:
        """The last refusal, if there was one, with the text of its error."""
        segment = self._gpu.storages.refused_segment
        if self._refusal is None:
            return None
        row = int(self.to_rows(self._refusal.position))
        return replace(self._refusal, message=message, segment=segment, position=row)

    def stacks(self) -> tuple[Stack, ...]:
        """The distinct stacks of all events."""
        return self._stacks.stacks()

    def results(self) -> tuple[Tensor, ...]:
        """What blocks were made for, as `Events.made` counts them."""
        return tuple((tuple(s), str(d).removeprefix("torch.")) for s, d in self._results)

    def events(self, stacks: tuple[Stack, ...]) -> Events:
        """The events as columns. Raises what collecting them has raised, or the allocator."""
        if (fault := self._fault or self._gpu.storages.fault) is not None:
            raise fault
        events = events_of(self.rows, stacks)
        made = np.full(len(events), -1, np.int32)
        position, address, kind = np.array(self._placed, np.int64).reshape(-1, 3).T
        rows = self.to_rows(position) - 1
        born = (rows >= 0) & (events.address[rows] == address)
        born &= events.action[rows] == Action.ALLOC
        made[rows[born]] = kind[born]
        alike = np.array([*self._stacks.first_alike(), -1], np.int32)
        return replace(events, made=made, stack=alike[events.stack])


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether it shows elements again that lie beside each other, as expand() does not."""
    own = tensor.untyped_storage().nbytes() // tensor.itemsize
    steps = (n for n, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    return tensor.numel() > own and all(steps)


def _with_peak(
    rows: list[tuple[int, Row]], number: int, top: Row, size: int
) -> list[tuple[int, Row]]:
    """The numbered rows, and a block of this size that comes and goes where `top` was reached."""
    place = bisect_left(rows, number + 1, key=lambda row: row[0])
    who = top[4:]
    born = (int(Action.ALLOC), LEFT_OUT, size, size, *who)
    freed = (int(Action.FREE), LEFT_OUT, size, size, *who)
    return [*rows[:place], (number, born), (number, freed), *rows[place:]]
