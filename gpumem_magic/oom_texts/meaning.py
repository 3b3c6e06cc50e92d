"""What an out-of-memory text means: each number in plain words, and what they add up to."""

from __future__ import annotations

from types import MappingProxyType

from gpumem_magic.oom_texts.outlook import find_outlook, smallest_request
from gpumem_magic.oom_texts.reading import parse
from gpumem_magic.oom_texts.steps import next_steps
from gpumem_magic.oom_texts.values import Explanation, Fact, Origin, Reading, Size
from gpumem_magic.oom_texts.verdicts import state
from gpumem_magic.units import MIB, format_bytes

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
        return "This is no text of an out-of-memory error that is known here"
    if reading.origin is Origin.LIBRARY:
        ran = "ran out of memory" if reading.certain else "may have run out of memory"
        return f"{reading.library} {ran}, outside PyTorch's allocator"
    where = "The host" if reading.origin is Origin.HOST else _device(reading)
    asked = f": {format_bytes(reading.asked.about)} asked for" if reading.asked else ""
    return f"{where} ran out of memory{asked}"


def _device(reading: Reading) -> str:
    if reading.backend == "MPS":
        return "Apple's GPU (MPS)"
    number = "" if reading.device is None else f" {reading.device}"
    return f"{reading.backend} device{number}"


def _facts(reading: Reading) -> list[Fact]:
    if reading.origin is Origin.HOST:
        why = "in the computer's own memory, for a tensor on the CPU; the GPU has no part in it"
        return [Fact("asked for", reading.asked, why)]
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
    size, least = reading.asked, smallest_request(reading)
    if size.low <= 2 * MIB <= size.high:
        return (
            "the segment that PyTorch asked the card for, not what the code asked for: tensors of "
            "up to 1 MiB share segments of 2 MiB"
        )
    if size.low <= 20 * MIB <= size.high:
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
    missing = format_bytes((asked - free).about)
    return f"on the card, for any process: {missing} less than was asked for"


def _limit(reading: Reading) -> str:
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
        return (reading.unknown["asked"],)
    names = _TOLD if reading.origin is Origin.ALLOCATOR else ()
    reasons: dict[str, list[str]] = {}
    for name in names:
        if name in reading.unknown:
            reasons.setdefault(reading.unknown[name], []).append(_LABELS.get(name, name))
    untold = [f"{', '.join(labels)}: {why}" for why, labels in reasons.items()]
    if reading.origin is Origin.LIBRARY:
        untold.append("how much was asked for, and how much was free: the library does not say")
    if reading.more:
        untold.append(
            f"{reading.more} more out-of-memory text{'s' * (reading.more > 1)} stand in it"
        )
    return (*untold, "which line asked, and which variables hold the memory")


_LABELS = MappingProxyType({"asked": "asked for", "total": "card", "process": "this process"})
