"""A report as static HTML: for notebooks, trusted or not, and as a page of its own."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from gpumem_magic.renderers import markup, predicted, wording
from gpumem_magic.renderers.advice.html import advice_markup
from gpumem_magic.renderers.alike import Alike, alike
from gpumem_magic.renderers.figure.palette import ALARM, ALLOCATED, CACHED, COLOURS, OUTSIDE
from gpumem_magic.renderers.markup import EMPTY, ROOT, Markup, element, join, row, table
from gpumem_magic.renderers.post_mortem import ending, failure_markup
from gpumem_magic.units import format_bytes, format_change
from gpumem_magic.values.findings import Call, Level, Line
from gpumem_magic.values.recording import Category
from gpumem_magic.values.report import Report

_LINES = 15  # shown at once; the others open on demand
_FOLDED = 60  # more would weigh on the notebook's file; JSON has all
_BLOCKS = 12
_MORE_BLOCKS = 100


def report_html(report: Report, plot: bool = True) -> str:
    """The report as one <div> with inline styles; with its figure as an image if `plot`."""
    return element(
        "div",
        _head(report),
        failure_markup(report, report.oom) if report.oom else EMPTY,
        _levels(report),
        _figure(report) if plot else EMPTY,
        _by_line(report),
        _by_kind(report),
        _largest(report),
        advice_markup(report),
        *(markup.small(note) for note in (*wording.reasons(report), *report.notes)),
        predicted.output(report),
        *map(markup.small, ending(report)),
        style=ROOT,
    )


def _head(report: Report) -> Markup:
    used = wording.full(report, report.peak)
    total = format_bytes(report.device.total)
    share = wording.format_share(used, report.device.total)
    near = f"{share} of {total} in use" if share else f"card of {total}"
    name = element("div", element("strong", wording.title(report)), style="font-size:1.1em")
    facts = (wording.device_phrase(report), wording.duration(report))
    below = " · ".join((*facts, wording.retries_phrase(report)) if report.retries else facts)
    numbers = (
        markup.number(format_bytes(report.peak.allocated), f"at the peak; {near}"),
        markup.number(*wording.kept_phrase(report).rsplit(" ", 1)),
    )
    raised = bool(report.error) and not report.oom and not report.predicted
    error = f"the cell raised {(report.error or '')[:300]}" if raised else ""
    return join(
        name,
        element("div", below, style="opacity:0.75"),
        predicted.headline(report) if report.predicted else EMPTY,
        element("div", *numbers, style="display:flex;flex-wrap:wrap;gap:0 32px;margin:6px 0 0 0"),
        element("div", error) if error else EMPTY,
    )


def _levels(report: Report) -> Markup:
    rows = [_level(report, name) for name in ("before", "peak", "after")]
    parts = wording.device_parts(report)
    sums = " + ".join(f"{part.label} {format_bytes(part.size)}" for part in parts)
    colours = {"allocated": ALLOCATED, "cached by PyTorch": CACHED, "outside PyTorch": OUTSIDE}
    legend = join(*(join(markup.swatch(colour), f"{what}  ") for what, colour in colours.items()))
    return join(
        table(
            "On the card",
            ("", "allocated", "reserved", "device used", "of the card", ""),
            rows,
        ),
        element("div", legend, style="opacity:0.85;font-size:0.92em;margin:4px 8px 0 8px"),
        markup.small(f"After the cell: {sums}; {wording.device_total(report)}."),
    )


def _level(report: Report, name: str) -> Markup:
    level: Level = getattr(report, name)
    sizes = [format_bytes(size) for size in (level.allocated, level.reserved, level.device_used)]
    used, total = wording.full(report, level), report.device.total
    return row(name, *sizes, wording.format_share(used, total), _level_bar(level, used, total))


def _level_bar(level: Level, used: int | None, total: int) -> Markup:
    allocated = level.allocated or 0
    reserved = max(level.reserved or 0, allocated)
    parts = [
        ("allocated", allocated, ALLOCATED),
        ("cached by PyTorch", reserved - allocated, CACHED),
        ("outside PyTorch", (used or 0) - reserved, OUTSIDE),
    ]
    return EMPTY if used is None else markup.bar(parts, total or 1, 260)


def _figure(report: Report) -> Markup:
    if len(report.timeline.allocated) < 2:
        return EMPTY
    from gpumem_magic.renderers.figure.timeline import timeline_png

    data = base64.b64encode(timeline_png(report)).decode("ascii")
    return element(
        "img",
        src=f"data:image/png;base64,{data}",
        alt=f"Memory over the course of the cell: {wording.picture(report)}",
        style="display:block;width:100%;max-width:920px;height:auto;margin:14px 0 0 0",
    )


def _by_line(report: Report) -> Markup:
    if not report.lines:
        return markup.small(wording.no_lines(report))
    ranked = sorted(report.lines, key=lambda line: -max(line.allocated, line.freed))
    largest, others = ranked[:_LINES], ranked[_LINES:]
    many = table("By line", _HEAD, _lines(report, largest))
    if not others:
        return many
    more = element("summary", f"{len(others)} more lines that moved less")
    rest = table("Other lines", _HEAD, _lines(report, others[:_FOLDED]))
    cut = len(others) - _FOLDED
    last = markup.small(f"... and {cut} that moved least: see report.lines") if cut > 0 else EMPTY
    return join(many, element("details", more, rest, last))


_HEAD = ("line", "peak while it ran", "allocated", "freed", "net", "runs", "net each")


def _lines(report: Report, lines: list[Line]) -> list[Markup]:
    ordered = (line for line in report.lines if line in lines)
    return [markup for line in ordered for markup in _line(report, line)]


def _line(report: Report, line: Line) -> Iterator[Markup]:
    at_peak = line.peak is not None and line.peak == report.peak.allocated
    number = element("span", f"{line.number or '-'}  ", style="opacity:0.7")
    text = wording.line_text(line)
    source = element("strong", markup.source(text)) if at_peak else markup.source(text)
    yield row(join(number, source, _peak_bar(report, line)), *_numbers(report, line))
    for call in line.calls:
        place = element("span", f"{wording.call_place(call)}  ", style="opacity:0.85")
        name = join(place, markup.source(call.source.strip()), _peak_bar(report, call))
        yield row(name, *_numbers(report, call), indent=1, faint=True)


def _numbers(report: Report, line: Line | Call) -> tuple[str, ...]:
    each = format_change(int(line.net / line.count)) if line.count > 1 and line.net else ""
    sizes = (format_bytes(line.allocated), format_bytes(line.freed), format_change(line.net))
    runs = f"x{line.count}" if line.count else ""
    if line.peak is None:
        return ("-", *sizes, runs, each)
    share = wording.format_share(line.peak, report.peak.allocated)
    peak = join(element("span", f"{share} ", style="opacity:0.7"), format_bytes(line.peak))
    return (peak, *sizes, runs, each)


def _peak_bar(report: Report, line: Line | Call) -> Markup:
    peak, top = line.peak, report.peak.allocated
    if peak is None or not top:
        return EMPTY
    return markup.bar([("peak", peak, ALARM if peak == top else ALLOCATED)], top, 60, height=3)


def _by_kind(report: Report) -> Markup:
    kinds = [kind for kind in Category if report.at_peak.get(kind) or report.at_end.get(kind)]
    if not kinds:
        return EMPTY
    total = sum(report.at_peak.values())
    rows = []
    for kind in kinds:
        peak, end = report.at_peak.get(kind, 0), report.at_end.get(kind, 0)
        bar = markup.bar([(kind.value, peak, COLOURS[kind])], total or 1, 260)
        share = wording.format_share(peak, total)
        name = join(markup.swatch(COLOURS[kind]), kind.value)
        rows.append(row(name, format_bytes(end), format_bytes(peak), share, bar))
    head = ("kind", "at the end", "at the peak", "", "")
    return table("By kind", head, rows)


def _largest(report: Report) -> Markup:
    groups = alike(report)
    if not groups:
        return EMPTY
    shown, hidden = groups[:_BLOCKS], groups[_BLOCKS:]
    inner = table("Largest at the peak", _BLOCK_HEAD, [_block(group) for group in shown])
    if not hidden:
        return inner
    cut = f"; after {_MORE_BLOCKS} of them: see report.blocks" if len(hidden) > _MORE_BLOCKS else ""
    more = element("summary", f"{len(hidden)} smaller{cut}")
    others = [_block(group) for group in hidden[:_MORE_BLOCKS]]
    rest = table("Others at the peak", _BLOCK_HEAD, others)
    return join(inner, element("details", more, rest))


_BLOCK_HEAD = ("name", "size", "tensor", "made in")


def _block(group: Alike) -> Markup:
    first = group.blocks[0]
    name = join(markup.swatch(COLOURS[first.category]), markup.source(group.name))
    return row(name, group.size_text, group.tensor, wording.line_label(first.line))
