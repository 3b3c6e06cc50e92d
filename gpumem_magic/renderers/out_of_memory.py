"""What a report says of an out-of-memory error: what was asked for, what was in the way, what would
have helped; and what letting go of memory has given back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpumem_magic.advice import KINDS as RULE_KINDS
from gpumem_magic.oom_text.cures import EXPANDABLE, RECOVERY, too_large, worded
from gpumem_magic.renderers import wording
from gpumem_magic.renderers.advice import GROWTH
from gpumem_magic.renderers.alike import BLOCKS, alike, block_row
from gpumem_magic.renderers.document import (
    Bar,
    Document,
    Folded,
    Line,
    Part,
    Piece,
    Row,
    Section,
    Span,
    Style,
    Table,
)
from gpumem_magic.renderers.figure.palette import COLOURS
from gpumem_magic.renderers.inventory import (
    device_phrase,
    remedies,
    remedy_table,
    what_names_hold,
)
from gpumem_magic.renderers.terminal import fit_middle
from gpumem_magic.units import format_bytes, format_change, format_size, format_some
from gpumem_magic.values.advice import Advice, Kind
from gpumem_magic.values.findings import Level, OutOfMemory, Remedy
from gpumem_magic.values.inventory import Freed, Recovery
from gpumem_magic.values.recording import Category
from gpumem_magic.values.report import Report

_BLOCKS = 5
_NAME = 60  # columns of a name in the sentences that are seen first
_TITLES: tuple[tuple[bool | None, str, str], ...] = (
    (True, "Each of these alone would have left room for it", "Would have left room"),
    (
        None,
        "This may have left room for it, depending on where the free pieces lie",
        "May have left room",
    ),
    (False, "Not enough alone", "Not enough alone"),
)


def post_mortem_document(report: Report) -> Document:
    """The out-of-memory error of a report on its own."""
    oom = report.oom
    if oom is None:
        return ()
    return (
        failure(report, oom),
        Section((composition(wording.held_then(report)[1]),), brief=True),
        Folded("Details", (failure_in_detail(report, oom, alone=True),)),
        Section(ending(report)),
    )


def ending(report: Report) -> tuple[Line, ...]:
    """The one command that gives the memory back; a prediction has taken none."""
    here = report.device.total and not report.predicted  # a snapshot's cell ran elsewhere
    return (Line(RECOVERY, Style.FAINT),) if report.oom and here else ()


def failure(report: Report, oom: OutOfMemory) -> Section:
    """Where, what was missing, and the cause, or else the first thing that would have left room; of
    a prediction, whose verdict says the rest, without what was missing."""
    place = (
        f"{oom.place}:" if report.predicted else f"{short_title(report)} \u00b7 {_headline(oom)}"
    )
    source = Span(wording.source_of(report, oom.line), Style.EXCERPT)
    title = (Span(place, Style.STRONG), *(("  ", source) if source.text else ()))
    missing = () if report.predicted else (wording.oom_in_short(oom),)
    said = (*_too_large(report, oom), *_causes(report)[:1], *missing, *_first(report, oom))
    return Section((Line(title), *(Line(_with_ends(text)[:400]) for text in said)), alarm=True)


def short_title(report: Report, columns: int = 60) -> str:
    """The report's name, with the ends of one that is too long for a headline."""
    return fit_middle(wording.title(report), columns)


def _with_ends(text: str) -> str:
    """A sentence in which names that are longer than a line have their ends."""
    return " ".join(fit_middle(word, _NAME) for word in text.split(" "))


def _first(report: Report, oom: OutOfMemory) -> tuple[str, ...]:
    """The first remedy, where no cause is known."""
    if _causes(report):
        return ()
    found = _remedies(report, oom, brief=True)[:1]
    return tuple(f"{short}: {said[0]}" for _, short, said in found)


def tells(report: Report, advice: Advice) -> bool:
    """Whether what `failure` says has the change of an advice in it."""
    said = _first(report, report.oom) if report.oom else ()
    return EXPANDABLE in advice.change and any(EXPANDABLE in text for text in said)


def failure_in_detail(report: Report, oom: OutOfMemory, alone: bool = False) -> Section:
    """What `failure` does not say: all that was asked for, free and alive, the other remedies.
    alone: no list of the blocks at the peak stands below it."""
    moment, held = wording.held_then(report)
    told = _first(report, oom)
    lists = (
        _list(title, [text for text in said if f"{short}: {text}" not in told])
        for title, short, said in _remedies(report, oom)
    )
    return Section(
        (
            *map(Line, _causes(report)[1:]),
            *(Line(fact[:400]) for fact in wording.oom_facts(oom)),
            Line((f"{moment}: ", *(made_of(held) if held else ("unknown",)))),
            *(_table(oom) if alone or not _at_the_peak(report, oom) else ()),
            *(piece for pieces in lists for piece in pieces),
        )
    )


def _too_large(report: Report, oom: OutOfMemory) -> tuple[str, ...]:
    if not oom.too_large:
        return ()
    source = wording.source_of(report, oom.line)
    return too_large(oom, min(report.device.total, oom.allowed or report.device.total), source)


def _causes(report: Report) -> list[str]:
    """What the advice begins with, where that is why memory ran out; and what grew beside it."""
    first = report.advice[:1]
    tells = [one for one in first if RULE_KINDS.get(one.rule) is Kind.MISTAKE]
    grown = [one for one in report.advice if one.rule == GROWTH]
    return [one.problem for one in dict.fromkeys((*tells, *grown))]


def _headline(oom: OutOfMemory) -> str:
    return wording.oom_headline(oom).replace("Out of memory", "OUT OF MEMORY")


def made_of(held: Mapping[Category, int]) -> Iterator[str | Span]:
    """The kinds of memory in words, with the colours that they have in bars."""
    for place, (kind, size) in enumerate(wording.shown(held)):
        yield ", " if place else ""
        yield Span(f"{kind.value} {format_size(size)}", colour=COLOURS[kind])


def composition(held: Mapping[Category, int]) -> Bar:
    """The kinds of memory side by side."""
    parts = (Part(kind.value, size, COLOURS[kind]) for kind, size in wording.shown(held))
    return Bar(tuple(parts), sum(held.values()))


def _at_the_peak(report: Report, oom: OutOfMemory) -> bool:
    return sum(oom.held.values()) == report.peak.allocated and bool(report.blocks)


def _table(oom: OutOfMemory) -> tuple[Piece, ...]:
    """The largest storages that were alive, those that are alike together."""
    rows = tuple(map(block_row, alike(oom.blocks, sum(oom.held.values()))[:_BLOCKS]))
    return (Table("The largest of it", BLOCKS, rows),) if rows else ()


def _remedies(
    report: Report, oom: OutOfMemory, brief: bool = False
) -> list[tuple[str, str, list[str]]]:
    """Changes under what they would have done, also in short; if none is enough, what is left.
    brief: without how far each one goes."""
    found = [
        (
            title,
            short,
            [_worded(oom, one, brief) for one in oom.remedies if one.enough is enough],
        )
        for enough, title, short in _TITLES
    ]
    explained = oom.too_large or _causes(report)
    helps = any(one.enough is not False for one in oom.remedies)
    said = report.predicted and wording.short(oom) == oom.missing  # by the verdict
    if oom.missing and not (explained or helps or said):
        found.insert(0, ("", "To fit", [_left(oom)]))
    return [one for one in found if one[-1]]


def _worded(oom: OutOfMemory, remedy: Remedy, brief: bool) -> str:
    left = None if brief or remedy.enough is False else oom.left_by(remedy)
    return worded(remedy, wording.visible(remedy.name or ""), left)


def _left(oom: OutOfMemory) -> str:
    return f"at least {format_bytes(oom.missing)} less has to be held at this line"


def _list(title: str, said: list[str]) -> tuple[Line, ...]:
    return (Line(f"{title}:"), *(Line(text, indent=1) for text in said)) if said else ()


def recovery_document(recovery: Recovery) -> Document:
    """What every step of letting go has given back, and what is still held."""
    steps = tuple(_step(step) for step in recovery.steps)
    rows = (_level("before", recovery.before), *steps, _level("after", recovery.after))
    head = ("", "allocated", "reserved", "device used")
    left = remedy_table("Still held, and what lets go of it", remedies(recovery.holdings))
    device = Line(device_phrase(recovery.device), Style.FAINT)
    return (
        Section((Line(_what_came_back(recovery), Style.LARGE), device)),
        Section((Table("Step by step", head, rows),)),
        Section(left),
        Section(what_names_hold(recovery.holdings, "Your own names hold the rest:")),
    )


def _what_came_back(recovery: Recovery) -> str:
    before, after = recovery.before.reserved, recovery.after.reserved
    back = None if before is None or after is None else before - after
    freed = recovery.freed
    if freed or back:
        return f"{format_bytes(freed)} let go, {format_bytes(back)} back to the device"
    if remedies(recovery.holdings):
        return "Nothing came back: what is still held needs a command of its own, see below"
    return "Nothing came back: nothing was held that no name needs"


def _level(name: str, level: Level) -> Row:
    sizes = (level.allocated, level.reserved, level.device_used)
    return Row((name, *(Span(format_size(size), Style.STRONG) for size in sizes)))


def _step(step: Freed) -> Row:
    cost = (Line(f"what it costs: {step.cost}", Style.FAINT),) if step.cost else ()
    rest = (Line(f"not all: {step.left}", Style.FAINT),) if step.left else ()
    changes = (format_change(-size, format_some) for size in (step.allocated, step.reserved))
    return Row((step.what, *changes, ""), (*cost, *rest))
