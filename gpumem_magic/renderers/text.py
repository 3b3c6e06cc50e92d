"""A report for terminals: 80 columns, no colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.advice.text import advice_rows
from gpumem_magic.renderers.alike import Alike, alike
from gpumem_magic.renderers.columns import WIDTH, bar, fit, fit_middle, left, right, wrap
from gpumem_magic.renderers.post_mortem import ending, failure_rows
from gpumem_magic.units import format_bytes, format_change
from gpumem_magic.values.findings import Call, Level, Line
from gpumem_magic.values.recording import Category
from gpumem_magic.values.report import Report

_LINES = 20  # a screenful; HTML and JSON have all of them
_CALLS = 5
_BLOCKS = 10


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


def report_text(report: Report) -> str:
    """The whole report, ending without a newline."""
    sections = [
        _head(report),
        failure_rows(report, report.oom) if report.oom else [],
        _levels(report),
        _by_line(report),
        _by_kind(report),
        _largest(report),
        advice_rows(report),
        notes_rows(report.notes),
        [f"{wording.output_phrase(report)}: in report.output"] if report.output else [],
        ending(report),
    ]
    rows = "\n\n".join("\n".join(section) for section in sections if section)
    return "\n".join(row.rstrip() for row in rows.split("\n"))


def _head(report: Report) -> list[str]:
    device = f"{wording.device_phrase(report)} ({format_bytes(report.device.total)})"
    facts = [wording.title(report), device, wording.duration(report)]
    rows = [fit(" · ".join(facts), WIDTH)]
    if report.predicted:
        rows += headline_rows(report)
    numbers = f"peak {format_bytes(report.peak.allocated)} · {wording.kept_phrase(report)}"
    if report.retries:
        numbers += f" · {wording.retries_phrase(report)}"
    rows.append(numbers)
    if report.error and not report.oom and not report.predicted:
        rows += wrap(f"the cell raised {wording.visible(report.error)[:300]}", "  ")
    return rows


def headline_rows(report: Report) -> list[str]:
    """Whether a predicted cell fits, and what one must know to believe it."""
    rows = wrap(wording.verdict(report), "  ")
    if wording.fits(report) is None:
        source = wording.source_of(report, report.error_line)
        rows += [fit(f"  {source}", WIDTH)] if source else []
        rows += wrap(f"  Not out of memory: {wording.by_how_much(report)}", "    ")
    if report.flow_guessed:
        rows += wrap(f"  {wording.GUESSED}", "    ")
    return rows


def notes_rows(notes: Sequence[str]) -> list[str]:
    """Notes below the numbers."""
    return [row for note in notes for row in wrap(f"note: {wording.visible(note)}", "      ")]


def _levels(report: Report) -> list[str]:
    rows = [f"{'On the card':<12}{'allocated':>13}{'reserved':>13}{'device used':>13}"]
    for name in ("before", "peak", "after"):
        level: Level = getattr(report, name)
        sizes = (level.allocated, level.reserved, level.device_used)
        numbers = "".join(right(format_bytes(size), 13) for size in sizes)
        share = wording.format_share(wording.full(report, level), report.device.total)
        rows.append(f"  {name:<10}{numbers}  {_gauge(report, level):<20}{share:>6}")
    rows += _reconciliation(report)
    return [*rows, *(row for why in wording.reasons(report) for row in wrap(f"  {why}", "    "))]


def _gauge(report: Report, level: Level) -> str:
    """The card as 20 columns: allocated, cached, the rest in use, free."""
    allocated, reserved = level.allocated or 0, level.reserved or level.allocated or 0
    if wording.full(report, level) is None:
        return ""
    ends = (allocated, reserved, max(reserved, wording.full(report, level) or 0))
    cells = [min(round(20 * end / (report.device.total or 1)), 20) for end in ends]
    used = max(cells[0], 1) if allocated else 0
    cached = max(cells[1] - used, 0)
    return ("█" * used + "▒" * cached).ljust(cells[2], "░").ljust(20, "·")


def _reconciliation(report: Report) -> list[str]:
    parts = wording.device_parts(report)
    sums = " + ".join(f"{part.label} {format_bytes(part.size)}" for part in parts)
    rows = wrap(f"  after the cell: {sums}; {wording.device_total(report)}", "    ")
    return ["  █ allocated ▒ cached by PyTorch ░ context and other processes · free", *rows]


def _by_line(report: Report) -> list[str]:
    if not report.lines:
        return wrap(wording.no_lines(report), "  ")
    largest = sorted(report.lines, key=lambda line: -max(line.allocated, line.freed))[:_LINES]
    rows = [_columns("By line", ("allocated", "freed", "net", "peak", "share"), "runs  net each")]
    for line in report.lines:
        if line in largest:
            rows += _line_rows(report, line)
    hidden = len(report.lines) - len(largest)
    return [*rows, f"  ... and {hidden} lines that moved less"] if hidden else rows


def _columns(name: str, numbers: Sequence[str], tail: str) -> str:
    widths = (17 - len(name), 12, 13, 12, 6)
    cells = "".join(right(number, room) for number, room in zip(numbers, widths, strict=True))
    return f"{name}{cells} {tail}"


def _line_rows(report: Report, line: Line) -> Iterator[str]:
    yield fit(f"{line.number or '-':>4}  {wording.line_text(line)}", WIDTH)
    yield _numbers(report, line)
    for call in line.calls[:_CALLS]:
        source = wording.visible(call.source.strip())
        yield fit(f"        {wording.call_place(call)}  {source}", WIDTH)
        yield _numbers(report, call)
    if len(line.calls) > _CALLS:
        yield f"        ... and {len(line.calls) - _CALLS} more"


def _numbers(report: Report, row: Line | Call) -> str:
    sizes = (format_bytes(row.allocated), format_bytes(row.freed), format_change(row.net))
    peak = "-" if row.peak is None else format_bytes(row.peak)
    share = wording.format_share(row.peak, report.peak.allocated)
    each = format_change(int(row.net / row.count)) if row.count > 1 and row.net else ""
    runs = f"x{row.count}" if row.count else ""
    return _columns("", (*sizes, peak, share), f"{runs:<5} {each}")


def _by_kind(report: Report) -> list[str]:
    kinds = [kind for kind in Category if report.at_peak.get(kind) or report.at_end.get(kind)]
    if not kinds:
        return []
    rows = [f"{'By kind':<22}{'at the peak':>12}{'':>22}{'at the end':>12}"]
    for kind in kinds:
        row = _kind(report.at_peak, kind)
        rows.append(f"  {kind.value:<20}{row} {format_bytes(report.at_end.get(kind, 0)):>12}")
    return rows


def _kind(sizes: Mapping[Category, int], kind: Category) -> str:
    total, size = sum(sizes.values()), sizes.get(kind, 0)
    share = wording.format_share(size, total)
    return f"{format_bytes(size):>12}{share:>6} {bar(size / total if total else 0, 14):<14}"


def _largest(report: Report) -> list[str]:
    groups = alike(report)
    if not groups:
        return []
    rows = ["Largest at the peak", *(_block(group) for group in groups[:_BLOCKS])]
    hidden = len(groups) - _BLOCKS
    return [*rows, f"  ... and {hidden} smaller"] if hidden > 0 else rows


def _block(group: Alike) -> str:
    name = left(fit_middle(group.name, 31), 31)
    tensor = left(fit(group.tensor, 24), 24)
    return f"{group.size_text:>13}  {name} {tensor} {wording.line_label(group.blocks[0].line)}"
