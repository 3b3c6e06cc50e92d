"""A report as a document: where the memory of a cell went, line by line, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.advice import advice_pieces, first_advice
from gpumem_magic.renderers.alike import BLOCKS, alike, block_row
from gpumem_magic.renderers.call_tree import by_module, most_at_peak
from gpumem_magic.renderers.document import (
    FOLDED,
    Bar,
    Code,
    Document,
    Fold,
    Folded,
    Legend,
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
    listed,
    notes,
)
from gpumem_magic.renderers.figure.interactive import key_of
from gpumem_magic.renderers.figure.palette import ALARM, ALLOCATED, CACHED, COLOURS, FREE, OUTSIDE
from gpumem_magic.renderers.figure.scale import LOW_WIDTH
from gpumem_magic.renderers.out_of_memory import (
    ending,
    failure,
    failure_in_detail,
    short_title,
    tells,
)
from gpumem_magic.units import format_bytes, format_change, format_size, format_some
from gpumem_magic.values import findings
from gpumem_magic.values.findings import Call, Level
from gpumem_magic.values.recording import Category
from gpumem_magic.values.report import Report

_LINES = 15  # a screenful; the others are folded
_BLOCKS = 12
_PRINTED = 200  # lines of output that can be opened; the report has all
_COLUMNS = 500
_MATTER = 3
_SEEN = 200  # what is smaller than one part of so many is not named beside a bar, nor listed first
_ONE_PIECE = 40
_NOTHING = "nothing allocated or freed"
_ON_THE_CARD = ("", "allocated", "reserved", "device used", "share", "")
_BY_LINE = ("line", "peak", "allocated", "freed", "net")


def summary_line(report: Report) -> str:
    """The report in one line: "peak 1.20 GiB · +512.00 MiB kept · 0.8 s"."""
    facts = [f"peak {format_bytes(report.peak.allocated)}", wording.kept_phrase(report)]
    if _nothing_done(report):
        facts = [_NOTHING, _still(report)]
    facts.append(wording.duration(report))
    if report.predicted:
        facts.insert(0, wording.word(report))
    if report.oom:
        facts.insert(0, wording.oom_headline(report.oom))
    elif report.error:
        facts.append(wording.visible(report.error))
    return " · ".join(facts)


def report_document(report: Report, plot: bool = True) -> Document:
    """A report, with its figure if `plot`: what one wants to know first, and the rest on demand."""
    if _nothing_done(report):
        return _in_one_line(report)
    oom = report.oom
    rest = (
        failure_in_detail(report, oom) if oom else Section(()),
        Section(_levels(report)),
        Section(_by_line(report)),
        Section(by_module(report)),
        Section(_by_kind(report)),
        Section(largest(report)),
        Section(advice_pieces(report)),
        Section((*notes(report.notes), *output(report))),
    )
    head, told = Section(_head(report)), failure(report, oom) if oom else Section(())
    return (
        *((head, told) if report.predicted else (told, head)),  # the verdict first
        Section(_in_use(report), brief=True),
        Section(_figure(report) if plot else ()),
        Section(() if oom else _that_matter(report), brief=True),
        Section(_first_advice(report), brief=True),
        Section(() if report.flow_guessed else notes(report.notes[:1], low=True), brief=True),
        Folded(_contents(report), rest),
        Section(ending(report)),
    )


def _first_advice(report: Report) -> tuple[Line, ...]:
    """The first advice in short, unless the error was told with it."""
    return () if any(tells(report, one) for one in report.advice[:1]) else first_advice(report)


def _nothing_done(report: Report) -> bool:
    """Whether the cell did nothing on the device that is known."""
    known = "lines" not in report.unknown and report.after.allocated is not None
    return known and not (report.lines or report.oom or report.retries)


def _in_one_line(report: Report) -> Document:
    """All of a report that has nothing to say; and what is known beside it."""
    said = wording.verdict(report) if report.predicted else _NOTHING
    facts = [said, _still(report), *_source(report)]
    raised = () if report.predicted else (wording.visible(report.error or "")[:300],)
    title = Span(short_title(report), Style.STRONG)
    line = Line((title, "".join(f" \u00b7 {fact}" for fact in (*facts, *raised) if fact)))
    return (
        Section((line, *_reservations(report))),
        Section((*notes(report.notes), *output(report))),
    )


def _still(report: Report) -> str:
    """What lies there from before, of a cell that did nothing."""
    still = "still " if report.after.allocated else ""
    return f"{still}{format_bytes(report.after.allocated)} allocated"


def _source(report: Report) -> tuple[str]:
    """On which device, and how long it took: in one piece, unless that is too long for a line."""
    said = f"{wording.device_phrase(report)} \u00b7 {wording.duration(report)}"
    return (said.replace(" ", "\u00a0") if len(said) < _ONE_PIECE else said,)


def _contents(report: Report) -> str:
    """What can be opened."""
    kinds = sum(1 for kind in Category if report.at_peak.get(kind) or report.at_end.get(kind))
    counts = (
        (len(report.lines), "line"),
        (kinds, "kind"),
        (len(report.blocks), "block"),
    )
    said = [wording.counted(count, name) for count, name in counts if count]
    if report.advice:
        said.append(f"{wording.counted(len(report.advice), 'piece')} of advice")
    return " \u00b7 ".join(("Details", *said, "what nvidia-smi shows"))


def _head(report: Report) -> tuple[Piece, ...]:
    """The verdict: the peak, of how much, what stays; of a prediction first whether it fits."""
    title = Span(short_title(report), Style.STRONG)
    kept, _, how = wording.kept_phrase(report).rpartition(" ")
    large = Style.PLAIN if report.predicted else Style.LARGE
    numbers: list[str | Span] = ["peak ", Span(format_bytes(report.peak.allocated), large)]
    of = f" of {format_bytes(report.device.total)}" if report.device.total else ""
    numbers += [f"{of} \u00b7 ", Span(kept, large), f" {how}"]
    numbers += [f" \u00b7 {fact}" for fact in _source(report)]
    if report.predicted:
        said = Line((title, " \u00b7 ", Span(wording.verdict(report), Style.STRONG)))
        eager = filter(None, [wording.as_written(report)])
        return (said, *_reservations(report), Line(tuple(numbers)), *(Line(one) for one in eager))
    raised = f"the cell raised {(report.error or '')[:300]}"
    error = (Line(raised, indent=1),) if report.error and not report.oom else ()
    named = () if report.oom else (title, " \u00b7 ")  # of an error it stands above
    return (Line((*named, *numbers)), *error)


def _reservations(report: Report) -> tuple[Line, ...]:
    """What one must know to believe whether a predicted cell fits."""
    lines = []
    if report.predicted and wording.fits(report) is None:
        if source := wording.source_of(report, report.error_line):
            lines.append(Line(source, Style.CODE, 1))
        lines.append(Line(f"Not out of memory: {wording.by_how_much(report)}", indent=1))
    if report.flow_guessed:
        lines.append(Line(Span(wording.GUESSED, Style.STRONG), indent=1))
    return tuple(lines)


def _in_use(report: Report) -> tuple[Piece, ...]:
    """The card at the peak as one bar, by kind, and the size of each part."""
    level = wording.level_then(report)
    used = level.in_use
    if used is None:
        return ()
    total = report.device.total or used  # a snapshot does not tell how large its device was
    _, held = wording.held_then(report)
    kinds = [Part(kind.value, size, COLOURS[kind]) for kind, size in wording.shown(held)]
    _, *others = _parts(level, used)
    parts = (*(kinds or _parts(level, used)[:1]), *others)
    free = Part("free", max(total - used, 0), FREE)
    drawn = sum(held.values())  # the kinds, of which the timeline is made as well
    seen = [one for one in kinds if one.size * _SEEN > drawn]
    seen += [one for one in parts if one not in kinds and one.size * _SEEN > used]
    if report.device.total:
        seen.append(free)
    named = (replace(one, label=f"{one.label} {format_size(one.size)}") for one in seen)
    return (Bar(parts, total), Legend(tuple(named)))


def _that_matter(report: Report) -> tuple[Piece, ...]:
    """The lines that moved most, that of the peak among them, in the order of the cell; where few
    lines do all, what they ran."""
    beside = len(_reservations(report)) + bool(report.eager)
    count = _MATTER - min(beside, 1)  # what else has to be said takes as much room
    if len(report.lines) < count and (inside := most_at_peak(report, count)):
        return (inside,)
    least = (report.peak.allocated or 0) / _SEEN
    ranked = sorted(report.lines, key=lambda line: _ranked(line, least))
    most = [line for line in sorted(ranked[1:], key=_moved, reverse=True) if _moved(line) > least]
    chosen = {id(line) for line in (*ranked[:1], *most[: count - 1])}
    rows = (_in_short(report, line) for line in report.lines if id(line) in chosen)
    return (Table("The lines that matter most", ("", "", ""), tuple(rows)),) if chosen else ()


def _moved(line: findings.Line) -> int:
    return max(line.total, line.freed)


def _ranked(line: findings.Line, least: float) -> tuple[int, int]:
    """By the level while it ran, in steps of `least` bytes, and then by what it moved."""
    return -round((line.highest or 0) / (least or 1)), -_moved(line)


def _in_short(report: Report, line: findings.Line) -> Row:
    peak = "" if line.highest is None else f"peak {format_size(line.highest)}"
    net = line.total_net
    kept = f"{format_size(-net)} freed" if net < 0 else f"{format_change(net, format_size)} kept"
    again = f" in {line.count} runs" if line.count > 1 else ""  # a sum of them, above the peak
    return Row((_name(line, Style.EXCERPT), peak, f"{kept}{again}" if net else "nothing kept"))


def output(report: Report) -> tuple[Fold, ...]:
    """What the dry run printed, folded; nothing where it printed nothing."""
    rows = report.output.splitlines()
    if not rows:
        return ()
    printed = Code(tuple(text[:_COLUMNS] for text in rows[:_PRINTED]))
    cut = len(rows) - _PRINTED
    more = (Line(f"... and {cut} more lines: see report.output", Style.FAINT),) if cut > 0 else ()
    said = wording.output_phrase(report)
    return (Fold(said, (printed, *more), f"{said}: in report.output"),)


def _levels(report: Report) -> tuple[Piece, ...]:
    eager = ("eager",) if report.eager else ()
    rows = tuple(_level(report, name) for name in ("before", "peak", *eager, "after"))
    parts = wording.device_parts(report)
    sums = " + ".join(f"{part.label} {format_bytes(part.size)}" for part in parts if part.size != 0)
    told = f"after the cell: {sums}; {wording.device_total(report)}"
    retries = wording.retries_phrase(report)
    below = (told, *((retries,) if retries else ()), *wording.reasons(report.unknown))
    legend = Legend(_parts(Level(0, 0, 0), 0))
    table = Table("On the card", _ON_THE_CARD, rows)
    return (table, legend, *(Line(text, Style.FAINT, 1) for text in below))


def _level(report: Report, name: str) -> Row:
    level: Level = getattr(report, name)
    used, total = level.in_use, report.device.total
    sizes = (format_size(size) for size in (level.allocated, level.reserved, level.device_used))
    # a snapshot does not tell how large its device was: then the peak is the whole
    whole = total or report.peak.in_use or 0
    bar = "" if used is None else Bar(_parts(level, used), whole)
    return Row((name, *sizes, wording.format_share(used, total), bar))


def _parts(level: Level, used: int) -> tuple[Part, ...]:
    allocated = level.allocated or 0
    reserved = max(level.reserved or 0, allocated)
    return (
        Part("allocated", allocated, ALLOCATED),
        Part("cached by PyTorch", reserved - allocated, CACHED),
        Part("outside PyTorch", max(used - reserved, 0), OUTSIDE),
    )


def _figure(report: Report) -> tuple[Picture, ...]:
    if len(report.timeline.allocated) < 2:
        return ()
    words = f"Memory over the course of the cell: {wording.picture(report)}"
    return (Picture(lambda: _png(report), words, width=LOW_WIDTH, key=key_of(report)),)


def _png(report: Report) -> bytes:
    from gpumem_magic.renderers.figure.timeline import png, timeline_figure

    return png(timeline_figure(report, low=True))


def _by_line(report: Report) -> tuple[Piece, ...]:
    if not report.lines:
        return (Line(wording.no_lines(report), Style.FAINT),)
    ranked = sorted(report.lines, key=_moved, reverse=True)
    largest, others = ranked[:_LINES], ranked[_LINES:]
    table = Table("By line", _BY_LINE, _lines(report, largest))
    rows = _lines(report, others)
    return listed(table, rows, "lines that moved less", "report.lines", len(others))


def _lines(report: Report, lines: Sequence[findings.Line]) -> tuple[Row, ...]:
    """Rows in the order of the cell, at most the first `FOLDED`."""
    chosen = {id(line) for line in lines}
    shown = (line for line in report.lines if id(line) in chosen)
    return tuple(_line(report, line) for line in islice(shown, FOLDED))


def _line(report: Report, line: findings.Line) -> Row:
    calls = tuple(_call(report, call) for call in line.calls)
    return _moves(report, line, _name(line), calls)


def _name(line: findings.Line, style: Style = Style.CODE) -> tuple[Span, Span]:
    """The number of a line and its source."""
    return Span(f"{line.number or '-'}  ", Style.FAINT), Span(wording.line_text(line), style)


def _call(report: Report, call: Call) -> Row:
    name = (f"{wording.call_place(call)}  ", Span(call.source.strip(), Style.CODE))
    return _moves(report, call, name)


def _moves(
    report: Report, line: findings.Line | Call, name: Words, inner: tuple[Row, ...] = ()
) -> Row:
    """What a line moved; below it what is to say of lines that ran again or called others."""
    highest = _highest(line)
    peak = "-" if highest is None else format_size(highest)
    net = format_change(line.net, format_some)
    beside = []
    if isinstance(line, findings.Line) and line.called:
        beside.append(f"{format_size(line.total)} allocated with calls")
    if line.count > 1:
        each = format_change(int(line.net / line.count), format_size)
        beside.append(f"ran {line.count} times" + (f", {each} net on average" if line.net else ""))
    told = (Line(" \u00b7 ".join(beside), Style.FAINT),) if beside else ()
    cells = (name, peak, format_some(line.allocated), format_some(line.freed), net)
    return Row(cells, (*told, *peak_bar(report, highest)), inner)


def _highest(line: findings.Line | Call) -> int | None:
    return line.highest if isinstance(line, findings.Line) else line.peak


def peak_bar(report: Report, peak: int | None) -> tuple[Bar, ...]:
    """A level while a line ran, beside the peak of the cell."""
    top = report.peak.allocated
    if peak is None or not top:
        return ()
    return (Bar((Part("peak", peak, ALARM if peak == top else ALLOCATED),), top, thin=True),)


def _by_kind(report: Report) -> tuple[Piece, ...]:
    kinds = [kind for kind in Category if report.at_peak.get(kind) or report.at_end.get(kind)]
    rows = tuple(_kind(report, kind) for kind in kinds)
    head = ("kind", "at the end", "at the peak", "", "")
    return (Table("By kind", head, rows),) if rows else ()


def _kind(report: Report, kind: Category) -> Row:
    total = sum(report.at_peak.values())
    peak, end = report.at_peak.get(kind, 0), report.at_end.get(kind, 0)
    bar = Bar((Part(kind.value, peak, COLOURS[kind]),), total)
    name = Span(kind.value, colour=COLOURS[kind])
    share = wording.format_share(peak, total) if peak else ""
    return Row((name, format_some(end), format_some(peak), share, bar))


def largest(report: Report, most: int = _BLOCKS) -> tuple[Piece, ...]:
    """The largest storages at the peak; those alike as one row."""
    peak = report.peak.allocated or 0
    groups = alike(report.blocks, peak)
    seen = sum(1 for group in groups[:most] if group.size * _SEEN >= peak)
    seen += len(groups) == seen + 1  # to say that one is left out takes as much room as the one
    rows = [*map(block_row, groups)]
    table = Table("Largest at the peak", BLOCKS, tuple(rows[:seen]))
    return listed(table, rows[seen:], "smaller", "report.blocks") if rows else ()
