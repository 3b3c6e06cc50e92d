"""From an out-of-memory text to its numbers. Texts are read without their spaces, so that neither a
terminal's line breaks nor a log's prefixes matter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from os.path import commonprefix
from types import MappingProxyType

from gpumem_magic.oom_text.libraries import find_beside, find_library
from gpumem_magic.units import parse_bytes
from gpumem_magic.values.oom_text import SIZES, Origin, Reading, Size

_ESCAPE = re.compile(
    r"(?:\x1b|\\x1b|\\u001b|\\033)(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*\x07?)"
    r"|\[[0-9]{1,3}(?:;[0-9]{1,3})*m"  # a colour whose first character was lost in pasting
)
_EDGES = re.compile(r"^[\s|>#*/\u2500-\u257f]+|[\s|\u2500-\u257f]+$|^E\s{2,}", re.MULTILINE)
_DIGIT = re.compile("[0-9]")
_TAGS = re.compile(
    r"\s*(?=[\[(<0])(?!.{0,78}(?i:memory|error:|[0-9][kmgt]i?b))[^\n]{1,78}[])|>:-](?:\s|$)?"
)
_COMMA = re.compile(r"(?<=[0-9]),(?=[0-9]{1,2}[KMGT]i?B)")  # before decimals, as in Berlin
_SPACE = re.compile(r"(?:\s|\\[nrt]|[\u200b\u2060\ufeff]|<br\s*/?>|&nbsp;)+")
_SIZE = r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGT]i?B|bytes?|B)"
_NO_SIZE = 1 << 60  # 17179869184.00 GiB is -1 to a driver that does not know: seen on WSL

_START = re.compile(
    r"(?:Triedtoallocate[0-9.]+[KMGT]i?B\.)?(CUDA|HIP|XPU|NPU|MPS|MUSA|MLU)(?:backend)?outofmemory|"
    r"Allocationondevice([0-9]{1,3})wouldexceedallowedmemory"
)
_REST = re.compile(r"alreadyallocated;.*totalbyPyTorch|Oftheallocatedmemory.*allocatedbyPyTorch")
"""What stands only in the error's later part: of a text whose beginning is cut off."""
_DEVICE = re.compile(r"(?:GPU|NPU|MLU|Allocationondevice)([0-9]{1,3})(?![0-9])")
_PROCESS = re.compile(rf"Process([0-9]{{1,12}})has{_SIZE}memoryinuse")
_EXABYTE = "Triedtoallocatemorethan1EB"


def _after(words: str, then: str = "") -> re.Pattern[str]:
    return re.compile(words + _SIZE + then)


def _before(words: str) -> re.Pattern[str]:
    return re.compile(_SIZE + words)


_Form = Mapping[str, re.Pattern[str]]

_PARENTHESES: _Form = MappingProxyType(
    {
        "asked": _after("Triedtoallocate"),
        "total": _before("totalcapacity"),
        "allocated": _before("alreadyallocated"),
        "free": _before("free;"),
        "reserved": _before("reservedintotalbyPyTorch"),
        "cached": _before("cached"),
    }
)
_SENTENCES: _Form = MappingProxyType(
    {
        "asked": _after("Triedtoallocate"),
        "total": _after("totalcapaci?tyof"),
        "free": _after("ofwhich", "isfree"),
        "process": _after("thisprocesshas", "memoryinuse"),
        "allowed": _before("allowed;"),
        "allocated": _after("Oftheallocatedmemory", "isallocatedbyPyTorch"),
        "pools": _after("with", "allocatedinprivatepools"),
        "cached": _after("and", "isreservedbyPyTorchbutunallocated"),
    }
)
_ASYNC: _Form = MappingProxyType(
    {
        "allocated": _after("Currentlyallocated:"),
        "asked": _after("Requested:"),
        "total": _after("Devicelimit:"),
        "free": _after(r"Free\(accordingtoCUDA\):"),
        "allowed": _after(r"PyTorchlimit\(setbyuser-suppliedmemoryfraction\):"),
    }
)
_METAL: _Form = MappingProxyType(
    {
        "allocated": _after("MPSallocated:"),
        "other": _after("otherallocations:"),
        "allowed": _after("maxallowed:"),
        "asked": _after("Triedtoallocate"),
    }
)
_OPTIONAL = frozenset({"process", "allowed", "pools"})


def parse(text: str) -> Reading:
    """The numbers of the out-of-memory error in `text`, which may be a whole traceback or log.

    Of several the one with the most numbers counts, the last among equals. Never raises: a text
    that is none has Origin.NONE, and what is missing or garbled is in `unknown`.
    """
    squeezed = squeeze(text)
    found = [_read(piece) for piece in _pieces(squeezed)]
    if not found:
        return find_library(squeezed) or _nothing(text, squeezed)
    best = max(reversed(found), key=_numbers)
    return replace(best, more=len({_content(one) for one in found}) - 1)


def squeeze(text: str) -> str:
    """`text` without colours, borders of frames, comment signs and spaces."""
    plain = _ESCAPE.sub("", text[-1_000_000:])  # an error stands at the end of its log
    return _COMMA.sub(".", _SPACE.sub("", _EDGES.sub("", _without_tags(plain))))


def _without_tags(text: str) -> str:
    """Without what a log repeats before each line of what it prints in several, but for digits."""
    before, lines = "", []
    for line in text.splitlines():
        repeated = commonprefix([before, before := _DIGIT.sub("0", line)])  # noqa: RUF071 - no paths
        tag = _TAGS.match(repeated)
        lines.append(line[tag.end() :] if tag else line)
    return "\n".join(lines)


def _pieces(squeezed: str) -> Iterator[str]:
    """Each error, from its first words to the next one's."""
    starts = [match.start() for match in _START.finditer(squeezed)]
    if not starts and _REST.search(squeezed):
        starts = [0]
    for start, end in pairwise([*starts, len(squeezed)]):
        yield squeezed[start : min(end, start + 20_000)]


def _read(piece: str) -> Reading:
    start = _START.match(piece)
    backend = (start and start[1]) or "CUDA"
    form = _form(piece, backend)
    sizes = {name: _find(pattern, piece) for name, pattern in form.items()}
    unknown = _reasons(piece, form, sizes) | _contradictions(sizes)
    for name in unknown:
        sizes[name] = None
    device = _DEVICE.search(piece)
    return Reading(
        origin=Origin.ALLOCATOR,
        backend=backend,
        device=int(device[1]) if device else None,
        asked=sizes.get("asked"),
        total=sizes.get("total"),
        free=sizes.get("free"),
        process=sizes.get("process"),
        allocated=sizes.get("allocated"),
        pools=sizes.get("pools"),
        cached=_cached(sizes),
        allowed=sizes.get("allowed"),
        other=sizes.get("other"),
        processes=_processes(piece),
        unknown=unknown,
        written_by=_written_by(piece, form),
        endless=_EXABYTE in piece or unknown.get("asked") == _IMPOSSIBLE,
    )


def _cached(sizes: Mapping[str, Size | None]) -> Size | None:
    """What is reserved and not allocated; some versions print it, others all that is reserved."""
    reserved, allocated = sizes.get("reserved"), sizes.get("allocated")
    if reserved is None or allocated is None:
        return sizes.get("cached")
    rest = reserved - allocated
    return Size(max(rest.about, 0), rest.margin)


def _form(piece: str, backend: str) -> _Form:
    if backend == "MPS":
        return _METAL
    if piece.startswith("Allocation"):
        return _ASYNC
    old = re.search(r"\((?:[GN]PU|MLU)|totalcapacity;", piece[:400])
    return _PARENTHESES if old else _SENTENCES


def _find(pattern: re.Pattern[str], piece: str) -> Size | None:
    found = pattern.search(piece)
    return _size(found[1], found[2]) if found else None


def _size(number: str, unit: str) -> Size:
    """A printed size and half of its last digit's place."""
    unit = "B" if unit.startswith(("b", "B")) else unit
    decimals = len(number.partition(".")[2])
    margin = parse_bytes(f"0.{'0' * decimals}5{unit}") + 1 if unit != "B" else 0
    return Size(parse_bytes(number + unit), margin)


def _processes(piece: str) -> tuple[tuple[int, Size], ...]:
    found = [(int(pid), _size(number, unit)) for pid, number, unit in _PROCESS.findall(piece)]
    return tuple((pid, size) for pid, size in found if size.about < _NO_SIZE)


def _reasons(piece: str, form: _Form, sizes: Mapping[str, Size | None]) -> dict[str, str]:
    """Why each number that is missing is missing."""
    unknown = {}
    names = list(form)
    for name in SIZES:
        if sizes.get(name) is not None:
            continue
        if name not in form or (name == "free" and piece.startswith("XPU")):
            unknown[name] = "texts of this form do not tell it"
        elif name in _OPTIONAL:
            unknown[name] = _OMITTED[name]
        elif any(sizes[later] for later in names[names.index(name) + 1 :]):
            unknown[name] = "its place in the text is missing or garbled"
        else:
            unknown[name] = "the text is cut off before it"
    if sizes.get("reserved") is not None:
        unknown.pop("cached", None)
        if sizes["allocated"] is None:
            unknown["cached"] = "what is allocated of the reserved memory is missing"
    if _EXABYTE in piece:
        unknown["asked"] = "the text says only that it is more than 1 EB"
    return unknown


_OMITTED = MappingProxyType(
    {
        "process": "the text has no sentence on this process: the driver did not tell its share",
        "allowed": "no limit is named: none was set, or this version does not name it",
        "pools": "no private pools (CUDA graphs) are named",
    }
)


_IMPOSSIBLE = "the driver did not know it, and PyTorch printed an impossible number"


def _contradictions(sizes: Mapping[str, Size | None]) -> dict[str, str]:
    """Numbers that cannot be: more than an exbibyte, or less than nothing."""
    found = {
        name: "no limit is set" if name == "allowed" else _IMPOSSIBLE
        for name, size in sizes.items()
        if size is not None and size.about >= _NO_SIZE
    }
    reserved, allocated = sizes.get("reserved"), sizes.get("allocated")
    process = sizes.get("process")
    if process is not None and allocated is not None and process.high < allocated.low:
        found["process"] = "less than PyTorch alone has of the card: the driver did not know it"
    if reserved is not None and allocated is not None and reserved.high < allocated.low:
        found["cached"] = found["reserved"] = "more is allocated than reserved, which cannot be"
    return found


def _written_by(piece: str, form: _Form) -> str:
    if form is _METAL:
        return "PyTorch on Apple's GPUs"
    if form is _ASYNC:
        return "PyTorch with backend:cudaMallocAsync"
    if form is _PARENTHESES:
        if "reservedintotal" in piece:
            return f"PyTorch {'1.10' if 'max_split_size_mb' in piece else '1.4'} to 2.0"
        return "PyTorch 1.0 to 1.3" if "cached" in piece else "PyTorch before 2.1"
    if "capactyof" in piece:
        return "PyTorch 2.1"
    return "PyTorch 2.2 or newer" if "capacityof" in piece else ""


def _numbers(reading: Reading) -> int:
    return sum(getattr(reading, name) is not None for name in SIZES)


def _content(reading: Reading) -> tuple[object, ...]:
    sizes = (getattr(reading, name) for name in SIZES)
    return (reading.backend, reading.device, *sizes)


def _nothing(text: str, squeezed: str) -> Reading:
    if beside := find_beside(squeezed):
        return Reading(Origin.NONE, unknown=dict.fromkeys(SIZES, beside))
    found = re.findall(rf"(?<![\w.]){_SIZE.replace(')(', ')[ ]?(')}", text[-1_000_000:])
    sizes = dict.fromkeys("".join(one) for one in found)
    told = f"; the sizes in it: {', '.join([*sizes][:4])}" if sizes else ""
    why = "the text is empty" if not squeezed else f"its form is not known here{told}"
    return Reading(Origin.NONE, unknown=dict.fromkeys(SIZES, why), certain=False)
