"""A recording written by hand: who allocates, frees and owns what, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gpumem_magic.values.recording import (
    Action,
    Category,
    Cell,
    Device,
    Events,
    Failure,
    Frame,
    Label,
    LiveBlocks,
    Phase,
    Reading,
    Recording,
    Stack,
)

CELL = "<cell>"


def module(name: str = "linear") -> tuple[Frame, ...]:
    """Frames of a module's forward, innermost first."""
    return (
        Frame(f"/lib/torch/nn/modules/{name}.py", 125, "forward"),
        Frame("/lib/torch/nn/modules/module.py", 1553, "_call_impl"),
    )


ENGINE = (
    Frame("/lib/torch/autograd/graph.py", 823, "_engine_run_backward"),
    Frame("/lib/torch/autograd/__init__.py", 353, "backward"),
    Frame("/lib/torch/_tensor.py", 625, "backward"),
)
ROOT = (Frame("/lib/torch/autograd/__init__.py", 200, "_make_grads"), *ENGINE[1:])
MOVED = (Frame("/lib/torch/nn/modules/module.py", 927, "_apply"),)


@dataclass
class Script:
    """Blocks go by keys; each gets an address of its own unless told to reuse one."""

    source: str = ""
    cells: dict[str, Cell] = field(default_factory=dict)
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    stacks: dict[Stack, int] = field(default_factory=dict)
    live: dict[str, tuple[int, int]] = field(default_factory=dict)
    old: list[tuple[int, int]] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    allocated: int = 0
    reserved: int = 0
    start: tuple[int, int] = (0, 0)
    failure: Failure | None = None
    addresses: int = 1 << 20

    def initial(self, key: str, size: int) -> None:
        self.live[key] = (self._address(), size)
        self.old.append(self.live[key])
        self.allocated += size
        self.start = (self.allocated, self.reserved)

    def alloc(
        self,
        key: str,
        size: int,
        line: int = 0,
        inner: tuple[Frame, ...] = (),
        phase: Phase = Phase.FORWARD,
        at: int | None = None,
    ) -> None:
        self.live[key] = (self._address() if at is None else at, size)
        self.allocated += size
        self._row(Action.ALLOC, *self.live[key], line, inner, phase)

    def free(
        self,
        key: str,
        line: int = 0,
        inner: tuple[Frame, ...] = (),
        phase: Phase = Phase.FORWARD,
    ) -> None:
        address, size = self.live.pop(key)
        self.allocated -= size
        self._row(Action.FREE, address, size, line, inner, phase)

    def segment(self, size: int, line: int = 0, at: int | None = None) -> int:
        """Reserve `size` bytes (give them back if negative) and say where."""
        address = self._address(abs(size)) if at is None else at
        action = Action.SEGMENT_ALLOC if size > 0 else Action.SEGMENT_FREE
        self.reserved += size
        self._row(action, address, abs(size), line, (), Phase.FORWARD)
        return address

    def label(
        self,
        key: str,
        category: Category | None = None,
        name: str | None = None,
        graph: bool = False,
        **more: Any,
    ) -> None:
        address = self.live[key][0]
        self.labels.append(Label(len(self.rows), address, category, name, has_graph=graph, **more))

    def fail(self, requested: int, line: int = 0, **more: Any) -> None:
        position, stack = len(self.rows), self._stack(line, ())
        known = {"segment": None, "device_free": None, "op": None, "message": "out of memory"}
        self.failure = Failure(
            requested=requested, position=position, stack=stack, phase=Phase.FORWARD, **known | more
        )
        self._row(Action.OOM, 0, requested, line, (), Phase.FORWARD)

    def recording(self, **changes: Any) -> Recording:
        columns = np.array(self.rows, np.int64).reshape(-1, 5).T
        action, address, size, stack, phase = columns
        old = np.array(self.old, np.int64).reshape(-1, 2).T
        values: dict[str, Any] = {
            "device": Device("Tesla T4", 0, 16 << 30, (7, 5), True),
            "cell": Cell(self.source, CELL, 7),
            "started": 1.0,
            "seconds": float(len(self.rows)),
            "before": Reading(*self.start, None, None),
            "after": Reading(self.allocated, self.reserved, None, None),
            "events": Events(
                action=action.astype(np.int8),
                address=address,
                size=size,
                requested=size,
                stack=stack.astype(np.int32),
                phase=phase.astype(np.int8),
                time=np.arange(1.0, len(action) + 1),
            ),
            "stacks": tuple(self.stacks),
            "initial": LiveBlocks(old[0], old[1], old[1]),
            "labels": tuple(self.labels),
            "cells": self.cells,
            "failure": self.failure,
        }
        return Recording(**values | changes)

    def _address(self, room: int = 1 << 20) -> int:
        self.addresses += room
        return self.addresses - room

    def _stack(self, line: int, inner: tuple[Frame, ...]) -> int:
        stack = (*inner, Frame(CELL, line, "<module>")) if line else inner
        return self.stacks.setdefault(stack, len(self.stacks)) if stack else -1

    def _row(
        self,
        action: Action,
        address: int,
        size: int,
        line: int,
        inner: tuple[Frame, ...],
        phase: Phase,
    ) -> None:
        self.rows.append((action, address, size, self._stack(line, inner), phase))


@pytest.fixture(scope="session")
def script() -> type[Script]:
    return Script


@pytest.fixture(scope="session")
def frames() -> Any:
    """The stacks of torch's own code that tests put below a line."""

    class Frames:
        module = staticmethod(module)
        engine, root, moved = ENGINE, ROOT, MOVED

    return Frames
