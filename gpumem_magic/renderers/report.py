"""A report as a document: where the memory of a cell went, line by line, and why."""

from __future__ import annotations

from collections.abc import Sequence

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.advice import advice_pieces
from gpumem_magic.renderers.alike import BLOCKS, alike, block_row
from gpumem_magic.renderers.document import (
    Bar,
    Code,
    Document,
    Fold,
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
    listed,
    notes,
)
from gpumem_magic.renderers.figure.palette import ALARM, ALLOCATED, CACHED, COLOURS, OUTSIDE
from gpumem_magic.renderers.out_of_memory import ending, failure
from gpumem_magic.units import format_bytes, format_change
from gpumem_magic.values import findings
from gpumem_magic.values.findings import Call, Level
from gpumem_magic.values.recording import Category
from gpumem_magic.values.report import Report

_LINES = 15  # a screenful; the others are folded
_BLOCKS = 12
_PRINTED = 200  # lines of output that can be opened; the report has all
_COLUMNS = 500
_ON_THE_CARD = ("", "allocated", "reserved", "device used", "share", "")
_BY_LINE = ("line", "peak meanwhile", "allocated", "freed", "net", "runs", "net each")


def summary_line(report: Report) -> str:
    """The report in one line: "peak 1.20 GiB · +512.00 MiB kept · 0.8 s"."""
    facts = [f"peak {format_bytes(report.peak.allocated)}", wording.kept_phrase(report)]
    facts.append(wording.duration(report))
    if report.predicted:
        facts.insert(0, wording.word(report))
    if report.oom:
        facts.insert(0, wording.oom_headline(report.oom))
    elif report.error:
        facts.append(wording.visible(report.error))
    return " · ".join(facts)


def report_document(report: Report, plot: bool = True) -> Document:
    """All of a report; with its figure if `plot`."""
    return (
        Section(_head(report)),
        failure(report, report.oom) if report.oom else Section(()),
        Section(_levels(report)),
        Section(_figure(report) if plot else ()),
        Section(_by_line(report)),
        Section(_by_kind(report)),
        Section(largest(report)),
        Section(advice_pieces(report)),
        Section(notes(report.notes)),
        Section((*output(report), *ending(report))),
    )


def _head(report: Report) -> tuple[Piece, ...]:
    device = f"{wording.device_phrase(report)} ({format_bytes(report.device.total)})"
    facts = f" · {device} · {wording.duration(report)}"
    size, unit = Span(format_bytes(report.peak.allocated), Style.LARGE), wording.kept_phrase(report)
    kept, _, how = unit.rpartition(" ")
    numbers: list[str | Span] = ["peak ", size, " · ", Span(kept, Style.LARGE), f" {how}"]
    if report.retries:
        numbers.append(f" · {wording.retries_phrase(report)}")
    raised = bool(report.error) and not report.oom and not report.predicted
    error = (Line(f"the cell raised {(report.error or '')[:300]}", indent=1),) if raised else ()
    title = Line((Span(wording.title(report), Style.STRONG), facts))
    told = verdict(report) if report.predicted else ()
    return (title, *told, Line(tuple(numbers)), *error)


def verdict(report: Report) -> tuple[Line, ...]:
    """Whether a predicted cell fits, and what one must know to believe it."""
    lines = [Line(wording.verdict(report), Style.LARGE)]
    if wording.fits(report) is None:
        if source := wording.source_of(report, report.error_line):
            lines.append(Line(source, Style.CODE, 1))
        lines.append(Line(f"Not out of memory: {wording.by_how_much(report)}", indent=1))
    if report.flow_guessed:
        lines.append(Line(Span(wording.GUESSED, Style.STRONG), indent=1))
    return tuple(lines)


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
    rows = tuple(_level(report, name) for name in ("before", "peak", "after"))
    parts = wording.device_parts(report)
    sums = " + ".join(f"{part.label} {format_bytes(part.size)}" for part in parts)
    told = f"after the cell: {sums}; {wording.device_total(report)}"
    below = (told, *wording.reasons(report.unknown))
    legend = Legend(_parts(Level(0, 0, 0), 0))
    table = Table("On the card", _ON_THE_CARD, rows)
    return (table, legend, *(Line(text, Style.FAINT, 1) for text in below))


def _level(report: Report, name: str) -> Row:
    level: Level = getattr(report, name)
    used, total = wording.full(report, level), report.device.total
    sizes = (format_bytes(size) for size in (level.allocated, level.reserved, level.device_used))
    bar = "" if used is None else Bar(_parts(level, used), total)
    return Row((name, *sizes, wording.format_share(used, total), bar))


def _parts(level: Level, used: int) -> tuple[Part, ...]:
    allocated = level.allocated or 0
    reserved = max(level.reserved or 0, allocated)
    return (
        Part("allocated", allocated, ALLOCATED),
        Part("cached by PyTorch", reserved - allocated, CACHED),
        Part("context and other processes", max(used - reserved, 0), OUTSIDE),
    )


def _figure(report: Report) -> tuple[Picture, ...]:
    if len(report.timeline.allocated) < 2:
        return ()
    words = f"Memory over the course of the cell: {wording.picture(report)}"
    return (Picture(lambda: _png(report), words),)


def _png(report: Report) -> bytes:
    from gpumem_magic.renderers.figure.timeline import timeline_png

    return timeline_png(report)


def _by_line(report: Report) -> tuple[Piece, ...]:
    if not report.lines:
        return (Line(wording.no_lines(report), Style.FAINT),)
    ranked = sorted(report.lines, key=lambda line: -max(line.allocated, line.freed))
    largest, others = ranked[:_LINES], ranked[_LINES:]
    table = Table("By line", _BY_LINE, _lines(report, largest))
    return listed(table, _lines(report, others), "lines that moved less", "report.lines")


def _lines(report: Report, lines: Sequence[findings.Line]) -> tuple[Row, ...]:
    """Rows in the order of the cell."""
    chosen = {id(line) for line in lines}
    return tuple(_line(report, line) for line in report.lines if id(line) in chosen)


def _line(report: Report, line: findings.Line) -> Row:
    number = Span(f"{line.number or '-'}  ", Style.FAINT)
    name = (number, Span(wording.line_text(line), Style.CODE))
    calls = tuple(_call(report, call) for call in line.calls)
    return Row((name, *_numbers(report, line)), _peak_bar(report, line), calls)


def _call(report: Report, call: Call) -> Row:
    name = (f"{wording.call_place(call)}  ", Span(call.source.strip(), Style.CODE))
    return Row((name, *_numbers(report, call)), _peak_bar(report, call))


def _numbers(report: Report, line: findings.Line | Call) -> tuple[str, ...]:
    each = format_change(int(line.net / line.count)) if line.count > 1 and line.net else ""
    sizes = (format_bytes(line.allocated), format_bytes(line.freed), format_change(line.net))
    runs = f"x{line.count}" if line.count else ""
    share = wording.format_share(line.peak, report.peak.allocated)
    peak = "-" if line.peak is None else f"{share}  {format_bytes(line.peak)}"
    return (peak, *sizes, runs, each)


def _peak_bar(report: Report, line: findings.Line | Call) -> tuple[Bar, ...]:
    peak, top = line.peak, report.peak.allocated
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
    return Row(
        (name, format_bytes(end), format_bytes(peak), wording.format_share(peak, total), bar)
    )


def largest(report: Report, most: int = _BLOCKS) -> tuple[Piece, ...]:
    """The largest storages at the peak; those alike as one row."""
    rows = [block_row(group) for group in alike(report)]
    table = Table("Largest at the peak", BLOCKS, tuple(rows[:most]))
    return listed(table, rows[most:], "smaller", "report.blocks") if rows else ()
