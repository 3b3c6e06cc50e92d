"""The cards that can be simulated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GPUModel:
    key: str
    name: str
    total: int
    capability: tuple[int, int]
    context: int
    multiprocessors: int
    source: str


def lookup(name: str) -> GPUModel:
    return GPUModel("T4", "Tesla T4", 15828320256, (7, 5), 110 << 20, 40, "")
