"""What an exception says of memory that could not be had, and which event of the history it was."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gpumem_magic.events import Action, Failure, Phase
from gpumem_magic.sources.blocks import Rules, round_size, segment_size
from gpumem_magic.sources.history import Columns
from gpumem_magic.units import parse_bytes

_TEXT = re.compile(r"(?:CUDA|HIP) out of memory\. Tried to allocate ([\d.]+ \w+)")
_DEVICE = re.compile(r"\bGPU (\d+)")
_OUTSIDE = (
    *("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "CUSOLVER_STATUS_ALLOC_FAILED"),
    *("CUDA error: out of memory", "HIP error: out of memory"),
)


def out_of_memory(error: BaseException | None) -> str | None:
    """The text of PyTorch's out-of-memory error, if `error` is one or was raised because of one."""
    for found in _chain(error):
        text = _text(found)
        if _TEXT.search(text):
            return text
    return None


def outside_allocator(error: BaseException | None) -> str | None:
    """A sentence, if a CUDA library ran out of memory without PyTorch's allocator."""
    for found in _chain(error):
        for text in _OUTSIDE:
            if text in _text(found):
                return (
                    f"Memory ran out outside PyTorch's allocator ({text}); how much was asked for "
                    "is not known."
                )
    return None


def device_of(message: str) -> int | None:
    """The index of the device that an out-of-memory text speaks of; None if it names none."""
    found = _DEVICE.search(message)
    return int(found[1]) if found else None


def find_failure(message: str, columns: Columns, rules: Rules) -> Failure:
    """The failure that `message` tells of: the history's last, or what the text alone says."""
    events = columns.events
    rows = np.flatnonzero(events.action == Action.OOM)
    if not len(rows):
        return _read(message, len(events))
    row = int(rows[-1])
    # the history holds the size after rounding
    requested = int(events.requested[row])
    free, largest = columns.free_at_oom or (None, None)
    return Failure(
        requested=requested,
        segment=segment_size(round_size(requested, rules)),
        device_free=columns.device_free,
        position=row,
        stack=int(events.stack[row]),
        phase=Phase(int(events.phase[row])),
        op=None,
        message=message,
        reserved_free=free,
        largest_free=largest,
    )


def _read(message: str, position: int) -> Failure:
    """The text gives two decimals of the segment's size, and not the request's."""
    found = _TEXT.search(message)
    size = parse_bytes(found[1]) if found else 0
    return Failure(size, size, None, position, -1, Phase.FORWARD, None, message)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def one_line(error: BaseException) -> str:
    """The error's class and the first line of its text, if it has any."""
    text = _text(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the user's own class may fail at this
        return ""
