"""The sentence that says what an out-of-memory text reads as."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gpumem_magic.oom_texts.values import Origin, Outlook, Reading, Size
from gpumem_magic.units import format_bytes


def state(reading: Reading, outlook: Outlook) -> str:
    """What the numbers read as, and why."""
    if reading.origin is Origin.LIBRARY:
        return _library(reading)
    if reading.origin is Origin.HOST:
        return "The computer's own memory is full (or limited, as in a container), not the GPU's."
    if reading.endless:
        return "More than 1 EB was asked for, which no card has: a shape or a size went wrong."
    if reading.origin is Origin.NONE or reading.asked is None:
        return "What it reads as cannot be told: no size is named."
    if outlook is Outlook.LIMITED and reading.allocated is None:
        allowed = _text(reading.allowed)
        return f"Stopped by a limit of {allowed}, not by the card: {_text(reading.free)} was free."
    return _SENTENCES[outlook].format(
        asked=_text(reading.asked),
        free=_text(reading.free),
        total=_text(reading.total),
        cached=_text(reading.cached),
        held=_held(reading),
        allowed=_text(reading.allowed),
        others=_text(reading.others),
        missing=_missing(reading),
        both=_text(reading.cached + reading.free if reading.cached and reading.free else None),
    )


_SENTENCES: Mapping[Outlook, str] = MappingProxyType(
    {
        Outlook.FULL: "Truly full: the card's free memory and PyTorch's gaps come to {both}, less "
        "than was asked for, even if they were one piece. The card lacked {missing}.",
        Outlook.OTHERS: "Full, and {others} of it is other processes': more than the {missing} "
        "that was missing.",
        Outlook.FRAGMENTED: "Fragmented: {cached} lay free inside PyTorch's own memory, more than "
        "the {asked} asked for, but no single gap was large enough.",
        Outlook.EITHER: "Nearly full, and perhaps fragmented: the card's free memory and PyTorch's "
        "gaps come to {both}, enough had they been one piece. How large each gap is, is not told.",
        Outlook.LIMITED: "Stopped by a limit, not by the card: {held} held and {asked} more pass "
        "the {allowed} that are allowed.",
        Outlook.TOO_LARGE: "Too large for this card in any state: {asked} asked for, {total} in "
        "all. Often a shape grew by mistake, as in broadcasting [n, 1] with [n].",
        Outlook.SPILLED: "PyTorch holds {held}, more than the card's {total}: the driver (WSL, "
        "Windows) has moved the rest into the host's memory, which is slow and ran out too.",
        Outlook.CONTRADICTORY: "Not short of memory by these numbers: {free} was free for {asked}. "
        "A memory fraction may be set (older versions do not name it), or another process gave "
        "memory back meanwhile.",
        Outlook.UNKNOWN: "Whether it was full or fragmented cannot be told from these numbers.",
    }
)


def _held(reading: Reading) -> str:
    held = reading.reserved or reading.allocated
    return _text(held + reading.other if held and reading.other else held)


def _missing(reading: Reading) -> str:
    """What the card lacked: it cannot put gaps inside PyTorch's memory together with its own."""
    if reading.asked is None or reading.free is None:
        return "unknown"
    return _text(reading.asked - reading.free)


def _library(reading: Reading) -> str:
    cause = (
        "It takes its memory from the card and not from PyTorch's cache, so it can fail while "
        "PyTorch has memory to spare."
    )
    if reading.certain:
        return cause
    return (
        "Often a sign of too little memory, but not of that alone: a layout or a data type that "
        f"the library does not take, or versions that do not fit, show the same. {cause}"
    )


def _text(size: Size | None) -> str:
    return "unknown" if size is None else format_bytes(max(size.about, 0))
