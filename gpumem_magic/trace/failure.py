"""Why an allocation failed, what was alive then, and which single change would have left room."""

from __future__ import annotations

from dataclasses import replace

from gpumem_magic.oom_text import Reading, parse
from gpumem_magic.trace.levels import Levels, find_held_segments
from gpumem_magic.trace.pairing import Pairing
from gpumem_magic.trace.peak import KnownBlocks, find_blocks
from gpumem_magic.trace.remedies import BLOCK, find_remedies
from gpumem_magic.trace.stacks import Stacks
from gpumem_magic.values.findings import OutOfMemory
from gpumem_magic.values.recording import Failure, Recording

_BLOCKS_KEPT = 50

_OWNING = "_apply", "__init__"
"""Functions of a torch module that make what it owns: as it is moved, and as it is built."""


def explain_failure(
    recording: Recording,
    failure: Failure,
    stacks: Stacks,
    levels: Levels,
    lives: Pairing,
) -> OutOfMemory:
    """What the failure and the events before it say of the memory that was wanted."""
    line = int(stacks.line[failure.stack]) or (recording.error_line if failure.stack < 0 else None)
    reading = parse(failure.message)
    reserved = None
    if recording.complete and levels.reserved_known:
        reserved = int(levels.reserved[failure.position])
    free, largest = _free_memory(recording, failure, levels, lives, reserved)
    others, why = _others(recording, failure, reading, reserved)
    return OutOfMemory(
        requested=failure.requested,
        segment=failure.segment,
        device_free=failure.device_free,
        reserved_free=free,
        largest_free=largest,
        fragmented=_fragmented(failure, free, largest),
        line=line or None,
        op=failure.op,
        message=failure.message,
        others=others,
        missing=_missing(failure, reading, reserved),
        allowed=reading.allowed.about if reading.allowed else None,
        library=reading.library,
        shape=failure.shape,
        of_module=_is_of_module(recording, failure),
        unknown={} if others is not None else {"others": why},
    )


def _is_of_module(recording: Recording, failure: Failure) -> bool:
    stack = recording.stacks[failure.stack] if failure.stack >= 0 else ()
    return any(
        frame.function in _OWNING and "torch/nn/modules/" in frame.filename.replace("\\", "/")
        for frame in stack
    )


def complete_failure(
    oom: OutOfMemory, recording: Recording, failure: Failure, levels: Levels, known: KnownBlocks
) -> OutOfMemory:
    """The same with the variables that were alive at that moment, and what would have helped."""
    blocks = find_blocks(recording, known, failure.position - 1)[:_BLOCKS_KEPT]
    found = replace(oom, blocks=blocks)
    return replace(found, remedies=find_remedies(found, recording, failure, levels, known))


def _fragmented(failure: Failure, free: int | None, largest: int | None) -> bool | None:
    """Whether all that was free, in gaps and on the device, would have held it as one piece, and
    no gap did."""
    if failure.requested is None:
        return None
    needed = -(-failure.requested // BLOCK) * BLOCK
    if free is not None and free + (failure.device_free or 0) < needed:
        return False
    return None if free is None or largest is None else largest < needed


def _free_memory(
    recording: Recording, failure: Failure, levels: Levels, lives: Pairing, reserved: int | None
) -> tuple[int | None, int | None]:
    """Bytes free inside reserved memory and the largest piece: told by the source, or derived."""
    free, largest = failure.reserved_free, failure.largest_free
    if free is None and reserved is not None:
        free = reserved - int(levels.allocated[failure.position])
    room = find_held_segments(recording, levels, failure.position) if largest is None else None
    if room is not None:
        largest = room.largest_gap(lives, lives.alive(failure.position - 1))
    return free, largest


def _missing(failure: Failure, reading: Reading, reserved: int | None) -> int | None:
    """Bytes that the device lacked, or a limit where one refused the request."""
    if failure.segment is None or failure.device_free is None:
        return None
    if failure.segment > failure.device_free:
        return failure.segment - failure.device_free
    if reading.allowed is None or reserved is None:
        return None
    return max(reserved + failure.segment - reading.allowed.about, 0) or None


def _others(
    recording: Recording, failure: Failure, reading: Reading, reserved: int | None
) -> tuple[int | None, str]:
    """Bytes of other processes when memory ran out, or why that is not known.

    In use then, less PyTorch's part and what this process had beside it after the cell; or from the
    text; or, where the error names no sizes, as it was after the cell.
    """
    after, free = recording.after, failure.device_free
    if after.process_used is None or after.reserved is None:
        if reading.others is not None:
            return max(reading.others.about, 0), ""
        return None, after.unknown.get("process_used", "this process's share was not read")
    beside = after.process_used - after.reserved
    if free is not None and reserved is not None:
        return max(recording.device.total - free - reserved - beside, 0), ""
    if after.device_used is None:
        return None, after.unknown.get("device_used", "the device's use was not read")
    return max(after.device_used - after.process_used, 0), ""
