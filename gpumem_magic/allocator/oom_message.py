"""The words of torch.OutOfMemoryError, as PyTorch 2.11 to 2.13 write them."""

from __future__ import annotations

from gpumem_magic.allocator.driver import Driver, Process
from gpumem_magic.units import format_bytes_in_error as in_words

_HINT = (
    "If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    "  See documentation for Memory Management "
    " (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


class AllocationFailed(Exception):  # noqa: N818 - named after what happened, as torch's own is not
    """The device has no room for a block, even after the cache was released; the text is torch's.

    requested: bytes the program asked for. segment: bytes asked of the device for it.
    device_total, device_free, allocated, reserved: bytes at that moment. allowed: the limit set by
    a memory fraction, or None.
    """

    def __init__(
        self,
        *,
        requested: int,
        segment: int,
        device: int,
        driver: Driver,
        allowed: int | None,
        allocated: int,
        reserved: int,
    ) -> None:
        self.requested = requested
        self.segment = segment
        self.device_total = driver.total
        self.device_free = driver.free
        self.allowed = allowed
        self.allocated = allocated
        self.reserved = reserved
        holders = "".join(_holder(process) for process in driver.processes())
        limit = "" if allowed is None else f"{in_words(allowed)} allowed; "
        self.message = (
            f"CUDA out of memory. Tried to allocate {in_words(segment)}. GPU {device} has a total "
            f"capacity of {in_words(driver.total)} of which {in_words(driver.free)} is free. "
            f"{holders}{limit}Of the allocated memory {in_words(allocated)} is allocated by "
            f"PyTorch, and {in_words(reserved - allocated)} is reserved by PyTorch but unallocated."
            f" {_HINT}"
        )
        super().__init__(self.message)


def _holder(process: Process) -> str:
    who = (
        "Including non-PyTorch memory, this process"
        if process.pid is None
        else f"Process {process.pid}"
    )
    return f"{who} has {in_words(process.used)} memory in use. "
