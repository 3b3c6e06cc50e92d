"""What is to be predicted: a cell, and everything that its dry run goes by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpumem_magic.values.advice import Argument
from gpumem_magic.values.recording import Cell

TIMEOUT = 120.0
"""Seconds after which a dry run that comes to nothing new is ended."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cell and what it is predicted with.

    namespace: the cell's globals. gpu: a card ("T4", "A100-80GB"), a size ("24GiB"), "cuda" or
    "cuda:1"; None: the card in use, a T4 where there is none. cells: others of the notebook by the
    file name of their frames. optimizer_steps: end every loop after so many steps of its
    optimizers. values: variables to set, in place of what the cell, or else the namespace, gives
    them. arguments: to be passed to training frameworks. limited: the card has no more memory than
    it has; without limit the cell never runs out of it. again: the cell ran already; what it left
    on the device is not there. headroom: the share of the card that stays free. timeout: seconds
    after which a dry run that comes to nothing new is ended. assume: libraries that are taken as
    installed. worst_batch: a loader that begins with its largest batch. compiled: whether
    torch.compile compiles; if not, all code runs as it is written.
    """

    cell: Cell
    namespace: dict[str, Any]
    gpu: str | None = None
    cells: Mapping[str, Cell] = field(default_factory=dict)
    optimizer_steps: int | None = None
    values: Mapping[str, int] = field(default_factory=dict)
    arguments: tuple[Argument, ...] = ()
    limited: bool = True
    again: bool = False
    timeout: float = TIMEOUT
    headroom: float = 0.0
    assume: tuple[str, ...] = ()
    worst_batch: str | None = None
    compiled: bool = True

    def with_values(self, values: Mapping[str, int]) -> Scenario:
        """The same with these values of variables."""
        return replace(self, values=values)

    def with_source(self, source: str, code: str) -> Scenario:
        """The same with a changed cell."""
        return replace(self, cell=replace(self.cell, source=source, code=code))
