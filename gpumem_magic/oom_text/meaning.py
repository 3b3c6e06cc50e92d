"""What an out-of-memory text means: each number in plain words, and what they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gpumem_magic.oom_text.reading import parse
from gpumem_magic.oom_text.steps import SERVERS, next_steps
from gpumem_magic.units import GIB, MIB, format_bytes
from gpumem_magic.values.oom_text import Explanation, Fact, Origin, Outlook, Reading, Size
from gpumem_magic.values.recording import LARGE_SEGMENT


def state(reading: Reading, outlook: Outlook) -> str:
    """What the numbers read as, and why."""
    if reading.origin is Origin.LIBRARY:
        return _library(reading)
    if reading.origin is Origin.HOST:
        if not reading.certain:
            return _KILLED
        return "The computer's own memory is full (or limited, as in a container), not the GPU's."
    if reading.endless:
        return "More than 1 EB was asked for, which no card has: a shape or a size went wrong."
    if reading.origin is Origin.NONE and reading.certain:
        return f"No error of memory: {reading.unknown['asked']}."
    if reading.origin is Origin.NONE or reading.asked is None:
        return "What it reads as cannot be told: how much was asked for is not named."
    if outlook is Outlook.LIMITED and reading.allocated is None:
        allowed = _text(reading.allowed)
        return f"Stopped by a limit of {allowed}, not by the card: {_text(reading.free)} was free."
    return _SENTENCES[outlook].format(
        asked=_text(reading.asked),
        free=_text(reading.free),
        total=_text(reading.total),
        cached=_text(reading.cached),
        held=_held_text(reading),
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
        "gaps come to {both}, enough had they been one piece. The text does not say how large each "
        "gap is.",
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


def _held_text(reading: Reading) -> str:
    held = reading.held
    return _text(held + reading.other if held and reading.other else held)


def _missing(reading: Reading) -> str:
    """What the card lacked: it cannot put gaps inside PyTorch's memory together with its own."""
    if reading.asked is None or reading.free is None:
        return "unknown"
    return rough(reading.asked - reading.free)


def _library(reading: Reading) -> str:
    if reading.library == "Accelerate":
        return (
            "It plans before it loads: beside what is in use, the card had no room for all of the "
            "model, and so parts of it were to go elsewhere."
        )
    if reading.library in SERVERS:
        return (
            "It divides its share of the card before it starts, and that was too little: for the "
            "weights and the key-value cache, for what came in at once, or beside what others hold."
        )
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


_KILLED = (
    "Most often the computer's own memory is full (or limited, as in a container), not the GPU's: "
    "then the system kills a process, and its log (dmesg) says so. The text itself does not."
)


def rough(size: Size) -> str:
    """A sum of rounded numbers: of those that are good to some MiB no hundredths."""
    fine = size.margin < MIB or size.about >= GIB
    return f"about {format_bytes(size.about, 2 if fine else 0)}"


def _text(size: Size | None) -> str:
    return "unknown" if size is None else format_bytes(max(size.about, 0))


# c10/cuda/CUDACachingAllocator.cpp: kSmallBuffer, kRoundLarge
_SMALL_SEGMENT, _ROUND = 2 * MIB, 2 * MIB

_BLOCK = 512


def find_outlook(reading: Reading) -> Outlook:
    """What the numbers read as; two decimals must leave no doubt, or it is EITHER or UNKNOWN."""
    asked, total, free = reading.asked, reading.total, reading.free
    if reading.origin is not Origin.ALLOCATOR:
        return Outlook.UNKNOWN
    if asked is None:
        return Outlook.TOO_LARGE if reading.endless else Outlook.UNKNOWN
    if total is not None and asked.low > total.high:
        return Outlook.TOO_LARGE
    held = reading.held
    if total is not None and held is not None and held.low > total.high:
        return Outlook.SPILLED
    if _limited(reading, asked):
        return Outlook.LIMITED
    if free is None:
        return Outlook.UNKNOWN
    if free.low >= asked.high:
        return Outlook.CONTRADICTORY
    return _full_or_fragmented(reading, asked, free)


def _limited(reading: Reading, asked: Size) -> bool:
    """The allocator asks no device once its limit would be passed."""
    if reading.allowed is None:
        return False
    held, roomy = reading.held, reading.free is not None and reading.free.low >= asked.high
    if held is None:
        return roomy
    wanted = held + asked if reading.other is None else held + reading.other + asked
    if roomy or reading.backend == "MPS":  # nothing but the limit can have stopped it
        return wanted.high > reading.allowed.low
    return wanted.low > reading.allowed.high


def _full_or_fragmented(reading: Reading, asked: Size, free: Size) -> Outlook:
    cached, others = reading.cached, reading.others
    if cached is None:
        return Outlook.UNKNOWN
    if cached.low >= asked.high and reading.has_large_gaps:
        return Outlook.FRAGMENTED
    least = asked.low if asked.low > LARGE_SEGMENT else smallest_request(reading)
    if (cached + free).high >= least:
        return Outlook.EITHER
    if others is not None and others.low >= (asked - free).high:
        return Outlook.OTHERS
    return Outlook.FULL


def smallest_request(reading: Reading) -> int:
    """The least that the code can have asked for, given the segment that the text names."""
    asked = reading.asked
    if asked is None:
        return 0
    if asked.low <= _SMALL_SEGMENT <= asked.high:
        return _BLOCK
    if asked.low <= LARGE_SEGMENT <= asked.high:
        return MIB + _BLOCK
    if any(size % _ROUND == 0 for size in _multiples_near(asked)):
        return max(asked.low - _ROUND, 0) + _BLOCK
    return asked.low


def _multiples_near(size: Size) -> range:
    """The multiples of 2 MiB that the printed number can stand for."""
    first = -(-size.low // _ROUND) * _ROUND
    return range(first, size.high + 1, _ROUND)


_TOLD = ("asked", "total", "free", "process", "allocated", "cached")


def explain(text: str) -> Explanation:
    """What an out-of-memory error of any version of PyTorch says, number by number.

    `text` may be the message alone or a whole traceback or log around it. Never raises.
    """
    reading = parse(text)
    outlook = find_outlook(reading)
    return Explanation(
        reading=reading,
        headline=_headline(reading),
        facts=tuple(_facts(reading)),
        outlook=outlook,
        verdict=state(reading, outlook),
        untold=_untold(reading),
        steps=next_steps(reading, outlook),
    )


def _headline(reading: Reading) -> str:
    if reading.origin is Origin.NONE:
        return (
            "No lack of the GPU's memory"
            if reading.certain
            else "Not recognised as an out-of-memory error"
        )
    ran = "ran out of memory" if reading.certain else "may have run out of memory"
    if reading.origin is Origin.LIBRARY:
        apart = "" if reading.library in SERVERS else ", outside PyTorch's allocator"
        return f"{reading.library} {ran}{apart}"
    where = "The host" if reading.origin is Origin.HOST else _device(reading)
    asked = f": {format_bytes(reading.asked.about)} asked for" if reading.asked else ""
    return f"{where} {ran}{asked}"


def _device(reading: Reading) -> str:
    if reading.backend == "MPS":
        return "Apple's GPU (MPS)"
    number = "" if reading.device is None else f" {reading.device}"
    return f"{reading.backend} device{number}"


def _facts(reading: Reading) -> list[Fact]:
    if reading.origin is Origin.HOST:
        why = "in the computer's own memory; the GPU has no part in it"
        return [Fact("asked for", reading.asked, why)] if reading.asked else []
    printed = [
        Fact("asked for", reading.asked, _asked(reading)),
        Fact("card", reading.total, "all of the card's memory that programs can have"),
        Fact("free", reading.free, _free(reading)),
        Fact(
            "this process",
            reading.process,
            "all that this process has of the card: PyTorch's part, the CUDA context and libraries",
        ),
        Fact("allocated", reading.allocated, "in use: tensors of this process, and workspaces"),
        Fact("private pools", reading.pools, "the part of it in pools that CUDA graphs keep"),
        *_gaps(reading),
        Fact("limit", reading.allowed, _limit(reading)),
        Fact("not PyTorch's", reading.other, "of this process, taken from Metal by others"),
        *(Fact(f"process {pid}", size, _process(reading)) for pid, size in reading.processes),
    ]
    return [fact for fact in printed if fact.size is not None] + _derived(reading)


def _gaps(reading: Reading) -> tuple[Fact, ...]:
    """PyTorch's gaps, or what they follow from where the text prints all that is reserved."""
    if not reading.written_by.endswith("to 2.0"):
        return (Fact("cached", reading.cached, _CACHED),)
    reserved = "all that PyTorch has of the card, in use or not"
    return (Fact("reserved", reading.reserved, reserved),)


_CACHED = (
    "reserved by PyTorch and not in use: the gaps between tensors, since whole free segments were "
    "given back before the error. New tensors can go there, if one gap is large enough"
)


def _asked(reading: Reading) -> str:
    """What was asked of the device: a segment, seldom as large as the request."""
    if reading.asked is None or reading.backend == "MPS" or "Async" in reading.written_by:
        return "what the failed allocation wanted"
    if reading.origin is Origin.LIBRARY:
        return "what the library wanted"
    size, least = reading.asked, smallest_request(reading)
    if size.low <= 2 * MIB <= size.high:
        return (
            "the segment that PyTorch asked the card for, not what the code asked for: tensors of "
            "up to 1 MiB share segments of 2 MiB"
        )
    if size.low <= LARGE_SEGMENT <= size.high:
        return (
            "the segment that PyTorch asked the card for, not what the code asked for: a tensor of "
            "1 to 10 MiB gets a segment of 20 MiB (3 MiB too), as does one of 18 to 20 MiB"
        )
    if least < size.low:
        return (
            "the segment that PyTorch asked the card for: the code asked for this, or for up to "
            "2 MiB less, as segments are multiples of 2 MiB"
        )
    return "what the code asked for, in blocks of 512 bytes"


def _free(reading: Reading) -> str:
    asked, free = reading.asked, reading.free
    if asked is None or free is None or asked.low <= free.high:
        return "on the card, for any process"
    return f"on the card, for any process: {rough(asked - free)} less than was asked for"


def _limit(reading: Reading) -> str:
    if reading.library in SERVERS:
        return "what its share of the card leaves for the key-value cache"
    if reading.origin is Origin.LIBRARY:
        return "what the library's own pool may take, as it was told"
    if reading.backend == "MPS":
        return "what this process may take, by PYTORCH_MPS_HIGH_WATERMARK_RATIO"
    return "what PyTorch may reserve, by set_per_process_memory_fraction"


def _process(reading: Reading) -> str:
    if reading.process is not None:
        return "another process on the card"
    return "a process on the card; in a container it can be this one, under its number outside"


def _derived(reading: Reading) -> list[Fact]:
    """What follows from the numbers: who has the rest of the card."""
    gaps = reading.cached if reading.written_by.endswith("to 2.0") else None
    cached = [] if gaps is None else [_rest("cached", gaps, f"reserved - allocated: {_CACHED}")]
    return cached + _elsewhere(reading)


def _elsewhere(reading: Reading) -> list[Fact]:
    if reading.process is not None and reading.reserved is not None:
        context = "of this process, beside PyTorch: the CUDA context and what libraries took"
        facts = [_rest("context", reading.process - reading.reserved, context)]
        if reading.others is not None:
            others = "card - free - this process: what other processes have"
            facts.append(_rest("other processes", reading.others, others))
        return facts
    if reading.outside is None:
        return []
    outside = (
        "card - free - PyTorch's: CUDA contexts (0.1 to 1.3 GiB for each process) and other "
        "processes; the text does not tell them apart"
    )
    return [_rest("outside PyTorch", reading.outside, outside)]


def _rest(label: str, size: Size, meaning: str) -> Fact:
    """A difference; rounded numbers leave one that is nothing, and impossible ones one below."""
    if size.high < 0:
        why = "the numbers contradict each other: more is in use than there is"
        return Fact(label, None, why, derived=True)
    return Fact(label, Size(max(size.about, 0), size.margin), meaning, derived=True)


def _untold(reading: Reading) -> tuple[str, ...]:
    """What is missing and why, one sentence for each reason; then what no such text tells."""
    if reading.origin is Origin.NONE:
        return () if reading.certain else (reading.unknown["asked"],)
    names = _TOLD if reading.origin is Origin.ALLOCATOR else ()
    reasons: dict[str, list[str]] = {}
    for name in names:
        if name in reading.unknown:
            reasons.setdefault(reading.unknown[name], []).append(_LABELS.get(name, name))
    untold = [f"{', '.join(labels)}: {why}" for why, labels in reasons.items()]
    if reading.origin is Origin.LIBRARY:
        sizes = {"asked for": reading.asked, "free": reading.free or reading.allowed}
        missing = [f"how much was {name}" for name, size in sizes.items() if size is None]
        untold += [f"{', and '.join(missing)}: the library does not say"] if missing else []
    if reading.more:
        stand = "text stands" if reading.more == 1 else "texts stand"
        untold.append(f"{reading.more} more out-of-memory {stand} in it")
    return (*untold, "which line asked, and which variables hold the memory")


_LABELS = MappingProxyType({"asked": "asked for", "total": "card", "process": "this process"})
