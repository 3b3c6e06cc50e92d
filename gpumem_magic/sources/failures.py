"""What an exception says of memory that could not be had, and which event of the history it was."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np

from gpumem_magic.allocator.segments import segment_size
from gpumem_magic.oom_text import Origin, Reading, Size, parse
from gpumem_magic.sources.cuda.block_sizes import round_size
from gpumem_magic.sources.cuda.device import cuda_devices
from gpumem_magic.sources.cuda.history import Columns
from gpumem_magic.sources.stacks.frames import place_of
from gpumem_magic.sources.stacks.tracebacks import chain_of
from gpumem_magic.values.recording import LARGE_SEGMENT, Action, Failure, Phase, Rules

_CUDA = ("CUDA", "HIP")
_NO_CUDA = re.compile(
    "not compiled with CUDA|'CUDA' backend|support for cuda devices|ATen_cuda library"
    "|requires CUDA support|no NVIDIA driver|No CUDA GPUs"
    "|driver version is insufficient for CUDA|no CUDA-capable device"
)
_NO_DRIVER = re.compile(r"libcuda\.so cannot found|0 active drivers")
"""What Triton says (backends/nvidia/driver.py, runtime/driver.py)."""

_LONGEST = 1000
"""Characters of an error's line; some hold all the data that they are about."""


def out_of_memory(
    error: BaseException | None, backends: Collection[str] | None = _CUDA
) -> str | None:
    """The text that memory of the GPU ran out, if `error` is one or was raised because of one."""
    found = ran_out(error, backends)
    return None if found is None else _text(found)


def ran_out(error: object, backends: Collection[str] | None = _CUDA) -> BaseException | None:
    """The error which says that memory of the GPU ran out, of one and those that it came from.

    Any version's text counts, and PyTorch's own class whatever its text; of the libraries those
    whose words have no other cause. backends: what is measured, None where any counts; others run
    out of memory elsewhere.
    """
    for found in chain_of(error):
        if _is_ours(found) or _is_failure(parse(_text(found)), backends):
            return found
    return None


def outside_allocator(error: BaseException | None) -> str | None:
    """A sentence, if a library ran, or may have run, out of memory without PyTorch's allocator."""
    for found in chain_of(error):
        reading = parse(_text(found))
        if reading.origin is not Origin.LIBRARY:
            continue
        if reading.certain:
            return (
                f"Memory ran out outside PyTorch's allocator, in {reading.library}; how much was "
                "asked for is not known."
            )
        return f"{reading.library} often fails so where memory is short, but not only then."
    return None


def lacks_cuda(error: BaseException | None) -> bool:
    """Whether PyTorch says, in one of its texts, that there is no CUDA device, and is right."""
    return _says(error, _NO_CUDA) and not cuda_devices()


def lacks_driver(error: BaseException | None) -> bool:
    """Whether Triton says that there is no driver to load its kernels with."""
    return _says(error, _NO_DRIVER)


def _says(error: BaseException | None, text: re.Pattern[str]) -> bool:
    return any(text.search(_text(one)) for one in chain_of(error))


def device_of(message: str) -> int | None:
    """The index of the device that an out-of-memory text speaks of; None if it names none."""
    return parse(message).device


def is_of_library(message: str) -> bool:
    """Whether an out-of-memory text is that of another library than PyTorch."""
    return parse(message).origin is Origin.LIBRARY


def find_failure(message: str, columns: Columns, rules: Rules) -> Failure:
    """The failure that `message` tells of: the history's last, or what the text alone says."""
    events = columns.events
    rows = np.flatnonzero(events.action == Action.OOM)
    if not len(rows) or is_of_library(message):
        return read_failure(message, len(events))
    row = int(rows[-1])
    # the history holds the size after rounding
    requested = int(events.requested[row])
    free, largest = columns.free_at_oom or (None, None)
    return Failure(
        requested=requested,
        segment=segment_size(round_size(requested, rules), LARGE_SEGMENT),
        device_free=columns.device_free,
        position=row,
        stack=int(events.stack[row]),
        phase=Phase(int(events.phase[row])),
        op=None,
        message=message,
        reserved_free=free,
        largest_free=largest,
    )


def read_failure(message: str, position: int) -> Failure:
    """What the text alone says, two decimals of it; the segment's size stands for the request's."""
    reading = parse(message)
    asked = _about(reading.asked)
    return Failure(
        requested=asked,
        segment=asked,
        device_free=_about(reading.free),
        position=position,
        stack=-1,
        phase=Phase.FORWARD,
        op=None,
        message=message,
        reserved_free=_about(reading.cached),
    )


def _about(size: Size | None) -> int | None:
    return None if size is None else size.about


def _is_ours(error: BaseException) -> bool:
    kind = type(error)
    return kind.__name__ == "OutOfMemoryError" and kind.__module__.partition(".")[0] == "torch"


def _is_failure(reading: Reading, backends: Collection[str] | None) -> bool:
    if reading.origin is Origin.LIBRARY:
        return reading.certain
    ours = backends is None or reading.backend in backends
    return ours and reading.origin is Origin.ALLOCATOR


def one_line(error: BaseException) -> str:
    """The error's class and the first line of its text, if it has any; of a long one the start."""
    text = _text(error).partition("\n")[0]
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def defect(said: str, error: BaseException) -> str:
    """`said` with what was raised where, and what to do about it."""
    return (
        f"{said}: {one_line(error)} ({place_of(error)}). That is a defect of gpumem_magic: please "
        "report this line"
    )


def _text(error: BaseException) -> str:
    try:
        # str() of a syntax error ends with the name of a file that no one has seen
        return str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception:  # the user's own class may fail at this
        return ""
