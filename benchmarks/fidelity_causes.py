"""Why dry runs are off where they are: found by aligning what the two allocators were asked."""

from __future__ import annotations

from dataclasses import dataclass

ADDRESSES = (
    "Where the driver places a new segment decides which of two equally large free blocks is "
    "lower, and so which is used first. With each segment above the last on both sides it is gone"
)


@dataclass(frozen=True, slots=True)
class Cause:
    """workloads and sizes: where it shows; text: what it is."""

    workloads: tuple[str, ...]
    sizes: tuple[str, ...]
    text: str


CAUSES: tuple[Cause, ...] = (
    Cause(
        ("pinn",),
        ("reserved",),
        "What a backward pass with create_graph computes is numbered by the thread that computes "
        "it: autograd's own on CUDA, where the numbers begin at 0, so that the next pass goes "
        "through the graph in another order. Here it is the thread of the cell.",
    ),
    Cause(
        ("pinn",),
        ("allocated", "end"),
        "LBFGS ends its steps at once where kernels compute nothing, as gradients are zero, and "
        "keeps no history. Predictions fill it, as a GPU that computes does.",
    ),
)


def cause_of(workload: str, size: str) -> str | None:
    """The text, or None where no cause is known."""
    found = [cause.text for cause in CAUSES if workload in cause.workloads and size in cause.sizes]
    return " ".join(found) or None
