"""The reports of a history as a list, one line each; and two of them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.document import (
    Document,
    Fold,
    Folded,
    Line,
    Part,
    Picture,
    Piece,
    Row,
    Section,
    Span,
    Style,
    Table,
    Words,
)
from gpumem_magic.renderers.figure import chart
from gpumem_magic.renderers.figure.palette import ALLOCATED, GROWN, INK, SHRUNK
from gpumem_magic.renderers.figure.scale import LOW_WIDTH
from gpumem_magic.renderers.html import Markup, join, legend
from gpumem_magic.renderers.out_of_memory import short_title
from gpumem_magic.trace.peak import UNKNOWN
from gpumem_magic.units import format_bytes, format_change, format_size, format_some
from gpumem_magic.values.comparison import Comparison, Difference, LineDifference
from gpumem_magic.values.report import Report

_MOST = 12
"""Places and modules that are shown; the others are folded."""

_COLUMNS, _POINTS = 48, 200  # of a course as text, and as a chart

_NAME = 40  # columns of a report's name in the title

_TOLD = ("peak allocated", "peak reserved", "kept")  # levels that are told first

_HEAD = ("report", "peak", "kept or freed", "time")


def history_document(reports: Sequence[Report]) -> Document:
    """A row for each report."""
    if not reports:
        return (Section((Line("The history is empty."),)),)
    devices = {wording.device_phrase(report) for report in reports}
    alike = len(devices) == 1
    rows = tuple(_listed(number, report, not alike) for number, report in enumerate(reports, 1))
    pieces: tuple[Piece, ...] = (Table("Measured so far", _HEAD, rows),)
    if alike:
        said = devices.pop().removeprefix("measured ")
        article = "on a " if said.startswith("virtual ") else ""
        pieces = (*pieces, Line(f"all {article}{said}", Style.FAINT))
    return (Section(pieces),)


def _listed(number: int, report: Report, device: bool) -> Row:
    """The numbers, and what tells reports apart: name, whether the cell failed, its device."""
    facts = ["out of memory"] if report.oom else []
    facts += [wording.device_phrase(report)] if device else []
    state = Span(f" ({', '.join(facts)})" if facts else "", Style.FAINT)
    return Row(
        (
            (f"{number}\u00a0\u00a0{wording.title(report)}", state),
            format_size(report.peak.allocated),
            wording.kept_phrase(report, format_size),
            wording.format_seconds(report.seconds),
        )
    )


def comparison_document(comparison: Comparison) -> Document:
    """What became of the peak, of every level, line and kind."""
    names = _names(comparison)
    title = Line(Span(" \u2192 ".join(f"report {name}" for name in names), Style.STRONG))
    levels = tuple(_row(each.name, each) for each in (_before(comparison), *comparison.levels))
    told = tuple(row for row in levels if row.cells[0] in _TOLD)
    moved = [pair for pair in comparison.lines if _allocates(pair.allocated)]
    lines = [_row(_line(pair), pair.allocated) for pair in moved]
    kinds = [_row(each.name, each) for each in comparison.categories]
    places = [_at(comparison, each) for each in _elsewhere(comparison)]
    modules = [_row(each.name, each) for each in _named(comparison.modules)]
    groups = (
        _group("By kind, at the peak", kinds),
        _group("By place in the code, at the peak", places[:_MOST]),
        _group("By module, at the peak", modules[:_MOST]),
        _group("Allocated by line", lines),  # the last: the panel cuts a long table at its end
    )
    head = ("", *(f"report {number}" for number in comparison.numbers), "change")
    rows = tuple(row for group in groups for row in group)
    folds = (*_smaller("place", places, head), *_smaller("module", modules, head))
    return (
        Section((title, Line(_verdict(comparison), Style.LARGE), *_first_cause(comparison))),
        Section(_timelines(comparison, names)),
        Section((Table("In numbers", head, told),), brief=True),
        Folded(
            _contents(lines, places, modules),
            (
                Section((Table("In numbers", head, levels),)),
                Section((Table("In detail", head, rows), *folds)),
            ),
        ),
    )


def _contents(*groups: Sequence[Row]) -> str:
    """What can be opened."""
    pairs = zip(groups, ("line", "place", "module"), strict=True)
    return " \u00b7 ".join(
        ("Details", *(wording.counted(len(rows), name) for rows, name in pairs if rows), "kinds")
    )


def _group(caption: str, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows of one table, so that the numbers of all groups stand below each other."""
    return (Row((Span(caption, Style.STRONG), "", "", ""), inner=tuple(rows)),) if rows else ()


def _elsewhere(comparison: Comparison) -> Sequence[Difference]:
    """The places in the code that are no lines of the compared cells, which have a table; nor
    functions of one of them that the other does not call. None where no place is known."""
    own = {report.cell.title for report in (comparison.first, comparison.second)}
    found = []
    for one in comparison.frames:
        place, _, function = one.name.partition(" ")
        is_own = place == "line" or place.partition(":")[0] in own
        if not is_own or (place != "line" and function and one.first and one.second):
            found.append(one)
    return found if any(one.name != UNKNOWN for one in found) else ()


def _at(comparison: Comparison, place: Difference) -> Row:
    """A place, and the text of its line below it."""
    source = comparison.sources.get(place.name, "")
    return replace(_row(place.name, place), below=(Line(source, Style.CODE),) if source else ())


def _named(modules: Sequence[Difference]) -> Sequence[Difference]:
    """None of them where no module has a name: the places in the code say the same."""
    return modules if any(not one.name.startswith("(") for one in modules) else ()


def _smaller(by: str, rows: Sequence[Row], head: tuple[str, ...]) -> tuple[Fold, ...]:
    """The changes for which the table has no room, on demand."""
    if len(rows) <= _MOST:
        return ()
    told = f"{len(rows) - _MOST} smaller changes by {by}"
    others = Table("Smaller changes", head, tuple(rows[_MOST:]))
    return (Fold(told, (others,), f"  ... and {told}"),)


def _before(comparison: Comparison) -> Difference:
    levels = comparison.first.before.allocated, comparison.second.before.allocated
    return Difference("before allocated", *levels)


def _first_cause(comparison: Comparison) -> tuple[Line, ...]:
    """Where most of the change comes from: a place in the code, or what the cells began with."""
    peak = comparison.levels[0].change or 0
    same_way = (one for one in comparison.frames if (one.change or 0) * peak > 0)
    most = next(same_way, None)
    if most is None:
        return ()
    where = f"in {most.name}"
    if most.name == UNKNOWN:
        if not (_before(comparison).change or 0) * peak > 0:
            return ()
        where = "that was there before the cell"
    source = Span(comparison.sources.get(most.name, ""), Style.EXCERPT)
    said = f"the largest part of it: {format_change(most.change)} {where}"
    return (Line((said, "  ", source) if source.text else said),)


def _timelines(comparison: Comparison, names: tuple[str, str]) -> tuple[Piece, ...]:
    """Both timelines, from begin to end, at one scale."""
    reports = comparison.first, comparison.second
    top = max((int(report.timeline.allocated.max(initial=0)) for report in reports), default=0)
    if not top or any(len(report.timeline.allocated) < 2 for report in reports):
        return ()

    def png() -> bytes:
        from gpumem_magic.renderers.figure.timeline import overlay_figure, png

        return png(overlay_figure(reports, names))

    text = [
        f"{_sparkline(r.timeline.allocated, top)}  {n}" for r, n in zip(reports, names, strict=True)
    ]
    words = f"Memory over the course of both, the highest level {format_bytes(top)}"

    def drawn() -> Markup:
        pairs = zip(reports, names, (INK, ALLOCATED), strict=True)
        courses = [(_highest(r.timeline.allocated, _POINTS), n, colour) for r, n, colour in pairs]
        below = legend([Part(name, 0, colour) for _, name, colour in courses])
        lines = [chart.line(levels, top, colour) for levels, _, colour in courses]
        return chart.chart(words, top, lines, 110, join(chart.ends("start", "end"), below))

    return (
        Line("Allocated, from start to end", Style.HEADING),
        Picture(png, words, LOW_WIDTH, tuple(text), drawn),
    )


def _sparkline(levels: NDArray[np.int64], top: int) -> str:
    """The highest levels, each as one of eight heights of `top`."""
    return "".join(" ▁▂▃▄▅▆▇█"[-(-8 * level // top)] for level in _highest(levels, _COLUMNS))


def _highest(levels: NDArray[np.int64], count: int) -> list[int]:
    """The highest levels in `count` equal stretches."""
    starts = np.arange(count) * len(levels) // count
    return [int(level) for level in np.maximum.reduceat(levels, starts)]


def _names(comparison: Comparison) -> tuple[str, str]:
    reports = zip(comparison.numbers, (comparison.first, comparison.second), strict=True)
    first, second = (f"{number} ({short_title(report, _NAME)})" for number, report in reports)
    return first, second


def _verdict(comparison: Comparison) -> str:
    """What became of the peak, in one sentence."""
    peak = comparison.levels[0]
    change = peak.change
    if change is None:
        return "whether the peak changed is unknown"
    if not change:
        return f"same peak: {format_bytes(peak.second)}"
    share = wording.format_share(abs(change), peak.first) if change < 2 * (peak.first or 0) else ""
    size = format_bytes(abs(change)) + (f" ({share})" if share else "")
    return f"the peak is {size} {'higher' if change > 0 else 'lower'}"


def _allocates(sizes: Difference) -> bool:
    """Whether there is anything to tell of a line, in one cell or in the other."""
    return bool(sizes.first or sizes.second) or None in (sizes.first, sizes.second)


def _line(pair: LineDifference) -> Words:
    only = pair.first if pair.second is None else pair.second if pair.first is None else None
    unnamed = f"line {only.number}" if only and only.number else ""  # its text is not known here
    return (Span(f"{_place(pair)}  ", Style.FAINT), Span(pair.source or unnamed, Style.CODE))


def _place(pair: LineDifference) -> str:
    """Where the line stands in each cell: "3", "3 -> 5", "new" or "gone"."""
    if pair.first is None or pair.second is None:
        return "gone" if pair.second is None else "new"
    a, b = pair.first.number or "-", pair.second.number or "-"
    return str(b) if a == b else f"{a} -> {b}"


def _row(name: Words, difference: Difference) -> Row:
    change = difference.change
    # Only the patch is coloured: no one green or orange can be read as text on white and on black.
    colour = "" if not change else GROWN if change > 0 else SHRUNK
    told = Span(format_change(change, format_size) if change != 0 else "same", Style.STRONG, colour)
    return Row((name, format_some(difference.first), format_some(difference.second), told))
