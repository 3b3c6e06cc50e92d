"""The sentences about a report that text, HTML and figures share, so that all say the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpumem_magic.units import format_bytes, format_change
from gpumem_magic.values.findings import Block, Call, Level, Line, OutOfMemory
from gpumem_magic.values.recording import Category
from gpumem_magic.values.report import Report

_HOLDING = "\u200d\u00a0"  # emoji and words together; other invisible characters are spelled out


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the memory in use on the device. size: bytes, None where not known."""

    label: str
    size: int | None


def visible(text: str) -> str:
    """`text` on one line, with what could move or hide other text (escapes) spelled out."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spell(character) for character in text.replace("\t", "    "))


def _spell(character: str) -> str:
    if character.isprintable() or character in _HOLDING:
        return character
    return " " if character.isspace() else ascii(character)[1:-1]


def title(report: Report) -> str:
    """The report's name, or "cell"."""
    return visible(report.name) or "cell"


def device_phrase(report: Report) -> str:
    """How the numbers came about: "measured on", "virtual" or "predicted for" a device."""
    name = visible(report.device.name)
    if report.predicted:
        return f"predicted for {name}"
    return f"virtual {name}" if report.device.virtual else f"measured on {name}"


def format_seconds(seconds: float) -> str:
    """`seconds` with two digits that matter: "3 ms", "0.8 s", "2 min 05 s"."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60:02d} s"


def duration(report: Report) -> str:
    """How long the cell took, or its dry run."""
    spent = format_seconds(report.seconds)
    return f"dry run of {spent}" if report.predicted else spent


def format_share(part: int | None, whole: int | None) -> str:
    """`part` of `whole` in percent, empty where either is not known; never "0 %" of something."""
    if part is None or not whole:
        return ""
    if 0 < part * 200 < whole:
        return "<1 %"
    return f"{round(100 * part / whole)} %"


def kept(report: Report) -> int | None:
    """Bytes that the cell left allocated, less what it found."""
    before, after = report.before.allocated, report.after.allocated
    return None if before is None or after is None else after - before


def kept_phrase(report: Report, form: Callable[[int | None], str] = format_bytes) -> str:
    """ "+512.00 MiB kept", "1.00 GiB freed" or "nothing kept"."""
    change = kept(report)
    if change is None:
        return "unknown amount kept"
    if change < 0:
        return f"{form(-change)} freed"
    return f"{format_change(change, form)} kept" if change else "nothing kept"


def device_parts(report: Report) -> tuple[Part, ...]:
    """What the memory in use after the cell is made of; known sizes add up to what is in use.

    A part is left out that no reading can tell from another: both then stand as one.
    """
    level = report.after
    cached = _less(level.reserved, level.allocated)
    parts = [Part("allocated", level.allocated), Part("cached", cached)]
    context, others, used = report.context, report.others, level.device_used
    outside = _less(used, level.reserved)
    if context is None and others is None and outside is not None:
        return (*parts, Part("context and other processes", outside))
    parts += [Part("context", context), Part("other processes", others)]
    sizes = [part.size for part in parts if part.size is not None]
    rest = used - sum(sizes) if used is not None and len(sizes) == len(parts) else 0
    return (*parts, Part("not accounted for", rest)) if rest else tuple(parts)


def _less(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part


def device_total(report: Report) -> str:
    """How to call the sum of `device_parts`."""
    if report.after.device_used is None:
        return "what nvidia-smi shows is unknown"
    verb = "would show" if report.device.virtual or report.predicted else "shows"
    return f"nvidia-smi {verb} {format_bytes(report.after.device_used)}"


def reasons(unknown: Mapping[str, str]) -> tuple[str, ...]:
    """Why numbers are not known, one sentence for each reason."""
    fields: dict[str, list[str]] = {}
    for field, why in unknown.items():
        fields.setdefault(visible(why), []).append(visible(field))
    return tuple(f"unknown: {', '.join(names)}, because {why}" for why, names in fields.items())


def retries_phrase(report: Report) -> str:
    """How often PyTorch had to give its cache back to go on; empty for never."""
    if not report.retries:
        return ""
    times = "once" if report.retries == 1 else f"{report.retries} times"
    return f"the cache was released {times} to go on"


def line_label(number: int | None) -> str:
    """ "line 5"; "outside" for 0, where no line of the cell can be named; "earlier" for None."""
    if number is None:
        return "earlier"
    return f"line {number}" if number else "outside"


def line_text(line: Line) -> str:
    """The source of a line of the cell."""
    if not line.number:
        return "(outside the cell)"
    return visible(line.source.strip())


def call_place(call: Call) -> str:
    """ "In[3]:5 train_step", "train.py:5"."""
    if call.script:
        return visible(f"{call.script}:{call.line} {call.function.replace('<module>', '')}".strip())
    where = f"In[{call.cell}]:{call.line}" if call.cell is not None else f"line {call.line} of"
    return f"{where} {visible(call.function)}"


def block_name(block: Block) -> str:
    """The variable's name, or its kind in parentheses after the module that made it."""
    if block.name:
        return visible(block.name)
    kind = f"({block.category.value})"
    return f"{visible(block.module)} {kind}" if block.module else kind


def tensor_type(block: Block) -> str:
    """ "float32[64, 128]", as far as it is known."""
    return visible(block.dtype or "") + ("" if block.shape is None else str(list(block.shape)))


def source_of(report: Report, number: int | None) -> str:
    """The text of a line of the cell, stripped; empty where there is none."""
    rows = report.cell.source.splitlines()
    return visible(rows[number - 1].strip()) if number and number <= len(rows) else ""


def peak_phrase(report: Report) -> str:
    """ "peak 9.12 GiB in line 5: loss.backward()", as far as it is known."""
    line = report.timeline
    number = int(line.line[line.peak]) if line.peak >= 0 else 0
    where = f" in line {number}: {source_of(report, number)}" if number else ""
    return f"peak {format_bytes(report.peak.allocated)}{where}"


def picture(report: Report) -> str:
    """What the timeline figure shows, for those who do not see it."""
    facts = [peak_phrase(report)]
    facts += [f"{kind.value} {format_bytes(size)}" for kind, size in shown(report.at_peak)]
    if report.device.total:
        facts.append(f"the card has {format_bytes(report.device.total)}")
    if report.oom:
        facts.append(oom_headline(report.oom))
    return "; ".join(facts)


def shown(sizes: Mapping[Category, int]) -> tuple[tuple[Category, int], ...]:
    """The categories that hold something, in the order of Category."""
    return tuple((kind, sizes[kind]) for kind in Category if sizes.get(kind))


def oom_headline(oom: OutOfMemory) -> str:
    """Where memory ran out and what was asked for."""
    where = f" in line {oom.line}" if oom.line else ""
    if oom.requested is None:
        return f"Out of memory{where}: {visible(oom.library) or 'a library'} asked for it"
    return f"Out of memory{where}: {format_bytes(oom.requested)} asked for"


def oom_facts(oom: OutOfMemory) -> tuple[str, ...]:
    """What was asked of whom, what lay free, and who had the rest."""
    free = f"free on the device: {format_bytes(oom.device_free)}; "
    free += f"free in PyTorch's cache: {format_bytes(oom.reserved_free)}"
    if oom.reserved_free and oom.largest_free is not None:
        free += f", in pieces of at most {format_bytes(oom.largest_free)}"
    return tuple(fact for fact in (_asked(oom), free, _other_processes(oom)) if fact)


def oom_in_short(oom: OutOfMemory) -> str:
    """Why the card could not give it: whether it was full or fragmented."""
    said = _verdict(oom)
    return said[:1].upper() + said[1:]


def _asked(oom: OutOfMemory) -> str:
    if oom.requested is None:
        return "asked for outside PyTorch's allocator: how much is unknown"
    asked = [f"the operator {visible(oom.op)} asked for it"] if oom.op else []
    if oom.segment is not None and oom.segment != oom.requested:
        asked.append(f"PyTorch asked the device for {format_bytes(oom.segment)}")
    return "; ".join(asked)


def _other_processes(oom: OutOfMemory) -> str:
    if oom.others == 0:
        return ""
    if oom.others is not None:
        return f"other processes: {format_bytes(oom.others)}"
    why = visible(oom.unknown.get("others", ""))  # nothing in reports of older versions
    return f"other processes: unknown, because {why}" if why else ""


def _verdict(oom: OutOfMemory) -> str:
    more = f"{format_bytes(oom.missing)} more was needed" if oom.missing else ""
    if oom.library:
        return "the libraries of CUDA take memory from the device, not from PyTorch's cache"
    if oom.allowed is not None and (oom.device_free or 0) >= (oom.segment or 0):
        limit = f"stopped by the limit of {format_bytes(oom.allowed)} on PyTorch"
        return f"{limit}; {more}" if more else limit
    if oom.fragmented is None:
        return "whether the memory was full or fragmented is unknown"
    if oom.is_in_pieces:
        return "fragmented: the free pieces together would have held it, but no single one did"
    if oom.fragmented:
        return "full: what was free lay in pieces too small for it"
    return f"truly full: {more}" if more else "truly full"


def held_then(report: Report) -> tuple[str, Mapping[Category, int]]:
    """What was allocated at the peak, or when memory ran out, and which moment that is."""
    if not report.oom:
        return "at the peak", report.at_peak
    if report.oom.held:
        return "allocated at that moment", report.oom.held
    return "allocated at the peak", report.at_peak


def level_then(report: Report) -> Level:
    """The level of that moment: when memory ran out, what PyTorch's own text says was free."""
    oom, total = report.oom, report.device.total
    if not (oom and oom.held and total) or oom.device_free is None or oom.reserved_free is None:
        return report.peak
    allocated = sum(oom.held.values())
    return Level(allocated, allocated + oom.reserved_free, total - oom.device_free)


def no_lines(report: Report) -> str:
    """Why the table by line is empty."""
    if "lines" in report.unknown:
        return f"By line: unknown, because {report.unknown['lines']}."
    return "No line of the cell allocated or freed memory on this device."


GUESSED = "The control flow was guessed: it depends on values that a dry run does not compute."


def fits(report: Report) -> bool | None:
    """Whether the cell fits; None where another error ended the prediction."""
    if report.oom:
        return False
    return None if report.error else True


def short(oom: OutOfMemory) -> int | None:
    """Bytes that the card lacked; None where that is not known, or not why it failed."""
    wanted = oom.requested if oom.segment is None else oom.segment
    if oom.device_free is None or wanted is None or oom.is_in_pieces:
        return None
    return wanted - oom.device_free if wanted > oom.device_free else None


def word(report: Report) -> str:
    """ "fits", "may not fit", "does not fit", "ends early"; "probably" if the way was guessed."""
    if report.is_tight and fits(report):
        return "may not fit"
    found = {True: "fits", False: "does not fit", None: "ends early"}[fits(report)]
    return f"probably {found}" if report.flow_guessed and not _raised(report) else found


def verdict(report: Report, used: bool = True) -> str:
    """The headline of a prediction: fits or not, and by how much. used: also what is in use, which
    the columns of a table say beside it."""
    if _raised(report):
        where = f" in line {report.error_line}" if report.error_line else ""
        return f"The prediction ends{where}: {visible(report.error or '')[:300]}"
    said = word(report)
    return f"{said[0].upper()}{said[1:]}: {by_how_much(report, used)}"


def by_how_much(report: Report, in_use: bool = True) -> str:
    """What stays free of the card or what was missing and where, as far as it is known."""
    used = format_bytes(report.peak.in_use)
    total = format_bytes(report.device.total)
    if report.oom:
        return f"out of memory{_place(report.oom.line)}{_lack(report.oom)}"
    if report.error:
        return f"up to there {used} of {total} in use at the peak"
    free = format_bytes(report.free_at_peak)
    left = f"{used} of {total} in use at the peak, {free} free"
    left = left if in_use else f"{free} of {total} free"
    if not report.uncounted:
        return left
    most = format_bytes(report.uncounted)
    if not report.likely:
        return f"{left}; convolutions may take up to {most} more"
    return f"{left}; convolutions likely take {format_bytes(report.likely)} more, at most {most}"


def as_written(report: Report) -> str:
    """The peak of a cell that compiles if it did not; empty for other cells."""
    eager, peak = report.eager, report.peak.allocated
    if eager is None or eager.allocated is None or peak is None:
        return ""
    more = eager.allocated - peak
    change = f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'}" if more else "the same"
    as_eager = f"peak {format_bytes(eager.allocated)}, {change}"
    return f"compiled; as the code is written (eager): {as_eager}"


def failing_line(report: Report) -> int | None:
    """The line of the cell where memory runs out, or where an error ends the prediction."""
    return report.oom.line if report.oom else report.error_line


def counted(count: int, name: str) -> str:
    """ "1 line", "2 lines"."""
    return f"{count} {name}{'' if count == 1 else 's'}"


def output_phrase(report: Report) -> str:
    """ "12 lines of output", for what the dry run printed."""
    return f"{counted(len(report.output.splitlines()), 'line')} of output of the dry run"


def notes_of(reports: Sequence[Report]) -> tuple[str, ...]:
    """What the reports say below their numbers, every sentence once."""
    return tuple(dict.fromkeys(note for report in reports for note in report.notes))


def _raised(report: Report) -> bool:
    """Whether an error other than out of memory ended the prediction."""
    return fits(report) is None


def _place(line: int | None) -> str:
    return f" in line {line}" if line else ""


def _lack(oom: OutOfMemory) -> str:
    missing = short(oom)
    if missing is not None:
        return f", at least {format_bytes(missing)} short"
    return "; the free memory is in pieces that are too small" if oom.is_in_pieces else ""
