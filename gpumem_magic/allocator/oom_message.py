"""The words of torch.OutOfMemoryError, as PyTorch 2.11 to 2.13 write them."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem_magic.allocator.driver import Process
from gpumem_magic.units import format_bytes_in_error as in_words

_HINT = (
    "If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    "  See documentation for Memory Management "
    " (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A block that there is no room for, and what holds the memory at that moment; in bytes.

    requested: what the program asked for. segment: what was asked of the device for it. total,
    free, processes: what the device says. allowed: the limit set by a memory fraction, or None.
    allocated, reserved: what the allocator holds.
    """

    requested: int
    segment: int
    device: int
    total: int
    free: int
    processes: tuple[Process, ...]
    allowed: int | None
    allocated: int
    reserved: int

    def text(self) -> str:
        """Tell it as torch does."""
        holders = "".join(_holder(process) for process in self.processes)
        limit = "" if self.allowed is None else f"{in_words(self.allowed)} allowed; "
        return (
            f"CUDA out of memory. Tried to allocate {in_words(self.segment)}. GPU {self.device} has"
            f" a total capacity of {in_words(self.total)} of which {in_words(self.free)} is free. "
            f"{holders}{limit}Of the allocated memory {in_words(self.allocated)} is allocated by "
            f"PyTorch, and {in_words(self.reserved - self.allocated)} is reserved by PyTorch but "
            f"unallocated. {_HINT}"
        )


class AllocationFailed(Exception):  # noqa: N818 - named after what happened, as torch's own is not
    """The device has no room for a block, even after the cache was released."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.text())


def _holder(process: Process) -> str:
    who = (
        "Including non-PyTorch memory, this process"
        if process.pid is None
        else f"Process {process.pid}"
    )
    return f"{who} has {in_words(process.used)} memory in use. "
