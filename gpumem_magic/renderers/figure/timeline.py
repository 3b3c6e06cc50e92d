"""A report as a picture: memory over the course of the cell. matplotlib is known here only."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import matplotlib.style
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.figure import scale
from gpumem_magic.renderers.figure.palette import ALARM, ALLOCATED, COLOURS, INK
from gpumem_magic.renderers.figure.runs import Run, group, runs_of
from gpumem_magic.units import format_bytes
from gpumem_magic.values.findings import OutOfMemory, Timeline
from gpumem_magic.values.recording import Category
from gpumem_magic.values.report import Report

_DPI = 160
_SIZE = 8.0  # points of all text that has no other size
_DIGIT, _LINE = 0.0096, 0.0175  # inches of a bold digit and of a line of text, for each point
_LOW_SIZE = 9.5  # points: at its own width as large as the text of a page
_LOW = "every memory event has the same width"
_GREY = "; grey line: reserved by PyTorch"


class Picture(Figure):
    """A Figure that a notebook shows without pyplot or `%matplotlib`."""

    def _repr_png_(self) -> bytes:
        return png(self)


def timeline_figure(report: Report, low: bool = False) -> Picture:
    """Allocated memory by category, what is reserved, the card's limit, the peak, the lines.

    low: as it stands in a report, whose words say the peak and what the colours mean.
    """
    with _our_style(_LOW_SIZE if low else _SIZE):
        figure = Picture(figsize=(scale.LOW_WIDTH / 100, 1.42) if low else (9.2, 3.8))
        place = (0.143, 0.293, 0.817, 0.573) if low else (0.095, 0.205, 0.875, 0.64)
        axes = _clear_axes(figure, place)
        _draw(axes, report)
        if low:
            grey = _GREY if scale.shows_reserved(report.timeline) else ""
            axes.set_xlabel(f"{_LOW}{grey}", color=INK, labelpad=1)
        else:
            title = _printable(wording.peak_phrase(report), 90)
            figure.text(0.015, 0.965, title, color=INK, size=10.5, weight="bold", va="top")
            _legend(figure, axes)
    return figure


def _clear_axes(figure: Figure, place: tuple[float, float, float, float]) -> Axes:
    """Axes on a figure that lets the page shine through."""
    FigureCanvasAgg(figure)
    axes = figure.add_axes(place)
    figure.patch.set_alpha(0.0)
    axes.patch.set_alpha(0.0)
    return axes


def png(figure: Figure) -> bytes:
    """`figure` as PNG; the same report gives the same bytes."""
    return _printed(figure, "png", {"Software": None})


def svg(figure: Figure) -> bytes:
    """`figure` as SVG."""
    return _printed(figure, "svg", {"Date": None, "Creator": None})


def _printed(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    buffer = io.BytesIO()
    with _our_style():
        figure.savefig(buffer, format=kind, dpi=_DPI, metadata=metadata)
    return buffer.getvalue()


@contextmanager
def _our_style(size: float = _SIZE) -> Iterator[None]:
    """matplotlib as it comes, whatever the user has set, and back. size: points of the text."""
    ours = rc_context({"svg.hashsalt": "gpumem_magic", "font.size": size})
    with matplotlib.style.context("default"), ours:
        yield


def _size() -> float:
    return float(matplotlib.rcParams["font.size"])


def _draw(axes: Axes, report: Report) -> None:
    line = report.timeline
    limit = scale.limit_of(report)
    level = max(scale.highest(line), 1)
    in_sight = limit is not None and limit <= scale.SIGHT * level
    top = max(level, limit or 0) if in_sight else level
    if report.oom:
        wanted = scale.failure_level(line, report.oom) + (report.oom.requested or 0)
        top = max(top, min(wanted, 2 * top))
    x = np.arange(len(line.allocated) + 1)
    _areas(axes, line, x)
    _frame(axes, line, top, "dry run" if report.predicted else "cell")
    if in_sight and limit is not None:
        axes.axhline(limit, color=ALARM, linestyle=(0, (6, 3)), linewidth=1.3, label="limit")
    if text := scale.above(line, limit, in_sight):
        mark = scale.failure_point(line, report.oom) if report.oom else line.peak
        size = limit if in_sight and limit else top
        _limit(axes, text, size, in_sight, line.peak if mark is None else mark)
    _lines(axes, line)
    _peak(axes, line)
    if report.oom:
        _failure(axes, line, report.oom, limit if in_sight else None)


def _held_until(column: NDArray[np.int64]) -> NDArray[np.int64]:
    """A level holds until the next event: the last one is drawn one step further."""
    return np.concatenate([column, column[-1:]])


def _areas(axes: Axes, line: Timeline, x: NDArray[np.int64]) -> None:
    floor = np.zeros(len(x), np.int64)
    for index, kind in enumerate(Category):
        column = line.by_category[:, index] if len(line.by_category) else np.zeros(0, np.int64)
        if not column.any():
            continue
        roof = floor + _held_until(column)
        axes.fill_between(
            x, floor, roof, step="post", color=COLOURS[kind], linewidth=0, label=kind.value
        )
        floor = roof
    if len(line.reserved) and scale.shows_reserved(line):
        reserved = _held_until(line.reserved)
        axes.step(x, reserved, where="post", color=INK, linewidth=1.4, label="reserved")


def _frame(axes: Axes, line: Timeline, top: int, what: str) -> None:
    axes.set_xlim(0, max(len(line.allocated), 1))
    axes.set_ylim(0, top * (1 + 0.24 / _high(axes)))
    steps = scale.steps(top)
    crowded = len(steps) * _LINE * _size() > _high(axes)
    axes.yaxis.set_major_locator(FixedLocator(steps[::2] if crowded else steps))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: scale.tick(size)))
    places, labels = scale.moments(line)
    axes.set_xticks(places, labels)
    axes.set_xlabel(
        f"time since the {what} began (every memory event is given the same width)",
        color=INK,
    )
    _plain(axes, "y")


def _high(axes: Axes) -> float:
    """The height of the axes in inches."""
    return float(axes.bbox.height / axes.figure.dpi)


def _plain(axes: Axes, across: Literal["x", "y"]) -> None:
    """Grey and thin, so that only the memory is in colour."""
    axes.tick_params(colors=INK, labelsize=_size(), length=3)
    axes.grid(axis=across, color=INK, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == ("bottom" if across == "y" else "left"))
        spine.set_color(INK)


def _limit(axes: Axes, text: str, size: int, in_sight: bool, mark: int) -> None:
    """The limit in words, above `size` bytes."""
    height = size + axes.get_ylim()[1] * (0.025 if in_sight else 0.045) / _high(axes)
    at_right = mark < axes.get_xlim()[1] / 2  # away from the peak and what is written beside it
    x = axes.get_xlim()[1] * (0.996 if at_right else 0.004)
    side = "right" if at_right else "left"
    axes.text(x, height, text, color=ALARM if in_sight else INK, ha=side, va="bottom")


def _lines(axes: Axes, line: Timeline) -> None:
    """A strip on top: which line of the cell was running."""
    room = max(len(line.line), 1)
    inch = room / float(axes.bbox.width / axes.figure.dpi)
    strip = group(runs_of(line.line), lambda run: _fits(run, inch))
    for index, run in enumerate(strip):
        _tick(axes, run, index, room, _fits(run, inch))
    if strip:
        axes.text(
            -0.008, _strip(axes, 0.085), "line", color=INK, ha="right", va="center",
            transform=axes.transAxes,
        )  # fmt: skip


def _strip(axes: Axes, inches: float) -> float:
    """A place above the axes."""
    return 1 + inches / _high(axes)


def _fits(run: Run, inch: float) -> bool:
    """Whether the run is wider than its label. inch: points of the timeline on an inch."""
    return (run.stop - run.start) / inch > _DIGIT * _size() * len(run.label) + 0.05


def _tick(axes: Axes, run: Run, index: int, room: int, labelled: bool) -> None:
    start, width = run.start / room, (run.stop - run.start) / room
    shade = 0.22 if index % 2 else 0.1
    axes.add_patch(
        matplotlib.patches.Rectangle(
            (start, _strip(axes, 0.024)), width, 0.134 / _high(axes),
            transform=axes.transAxes, clip_on=False, facecolor=INK,
            alpha=shade, linewidth=0, gid=f"line {run.label}",
        )
    )  # fmt: skip
    if labelled:
        axes.text(
            start + width / 2, _strip(axes, 0.085), run.label, color=INK, weight="bold",
            ha="center", va="center", transform=axes.transAxes, gid="line label",
        )  # fmt: skip


def _peak(axes: Axes, line: Timeline) -> None:
    if line.peak < 0:
        return
    level = int(line.allocated[line.peak])
    axes.plot(
        [line.peak + 0.5], [level], marker="v", markersize=8, color=INK, markeredgecolor="white",
        markeredgewidth=0.8, linestyle="none", label="peak", clip_on=False, zorder=5,
    )  # fmt: skip


def _failure(axes: Axes, line: Timeline, oom: OutOfMemory, limit: int | None) -> None:
    """What was asked for, standing on what was held; its text clear of the limit's line."""
    point, held = scale.failure_point(line, oom), scale.failure_level(line, oom)
    if point is None:
        return
    x, top = point + 1, held + (oom.requested or 0)
    end = min(top, axes.get_ylim()[1])
    axes.plot([x, x], [held, top], color=ALARM, linewidth=2.5, label="out of memory", zorder=6)
    axes.plot([x], [end], marker="X", markersize=9, color=ALARM, markeredgecolor="white",
              linestyle="none", clip_on=False, zorder=7)  # fmt: skip
    side, away = ("right", -9) if x > axes.get_xlim()[1] / 2 else ("left", 9)
    text = (_LINE * _size() + 0.03) / _high(axes) * axes.get_ylim()[1]
    near = limit is not None and end <= limit < end + text
    axes.annotate(
        f"out of memory: {format_bytes(oom.requested)} asked for", (x, limit if near else end),
        xytext=(away, 2 if near else 0), textcoords="offset points", color=ALARM,
        weight="bold", ha=side, va="top" if end < top else "bottom", annotation_clip=False,
    )  # fmt: skip


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles, labels, loc="lower center", ncol=_columns(labels), frameon=False,
            labelcolor=INK, handlelength=1.2, columnspacing=1.4, borderaxespad=0.2,
        )  # fmt: skip


def overlay_figure(reports: Sequence[Report], names: Sequence[str]) -> Picture:
    """What was allocated in the course of two reports, from start to end, one over the other."""
    with _our_style(_LOW_SIZE):
        figure = Picture(figsize=(scale.LOW_WIDTH / 100, 1.5))
        axes = _clear_axes(figure, (0.143, 0.34, 0.817, 0.62))
        top = max(int(report.timeline.allocated.max(initial=1)) for report in reports)
        for report, name, colour in zip(reports, names, (INK, ALLOCATED), strict=True):
            levels = _held_until(report.timeline.allocated)
            x, label = np.linspace(0, 1, len(levels)), _printable(name, 28)
            axes.step(x, levels, where="post", color=colour, linewidth=1.4, label=label)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, top * 1.1)
        axes.set_xticks([0, 1], ["start", "end"])
        axes.yaxis.set_major_locator(FixedLocator(scale.steps(top)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: scale.tick(size)))
        _plain(axes, "y")
        _legend(figure, axes)
    return figure


def overview_figure(reports: Sequence[Report]) -> Picture:
    """The peak of each report by category, one bar each, the latest below, with the card's limit.

    Raises ValueError where there is no report.
    """
    if not reports:
        raise ValueError("nothing was measured yet, so there is no figure to draw")
    with _our_style():
        height = 1.5 + 0.34 * len(reports)
        figure = Picture(figsize=(9.2, height))
        axes = _clear_axes(figure, (0.24, 0.95 / height, 0.74, 1 - 1.15 / height))
        _bars(axes, reports)
        _legend(figure, axes)
    return figure


def _bars(axes: Axes, reports: Sequence[Report]) -> None:
    rows = np.arange(len(reports))
    floor = np.zeros(len(reports), np.int64)
    for kind in Category:
        sizes = np.array([report.at_peak.get(kind, 0) for report in reports], np.int64)
        if sizes.any():
            axes.barh(rows, sizes, 0.62, floor, color=COLOURS[kind], label=kind.value)
            floor = floor + sizes
    ends = np.array([report.peak.allocated or 0 for report in reports], np.int64)
    if (ends > floor).any():
        axes.barh(rows, ends - floor, 0.62, floor, color=INK, alpha=0.4, label="kind unknown")
    top = max(int(ends.max()), 1)
    totals = {report.device.total for report in reports}
    if len(totals) == 1 and max(totals) <= scale.SIGHT * top:
        top = max(totals)
        axes.axvline(top, color=ALARM, linestyle=(0, (6, 3)), linewidth=1.3, label="the card")
    for row, report in enumerate(reports):
        text = f" {format_bytes(report.peak.allocated)}{', out of memory' if report.oom else ''}"
        colour = ALARM if report.oom else INK
        x = int(ends[row]) if ends[row] < 0.7 * top else top  # clear of the card's line
        axes.text(x, row, text, color=colour, va="center")
    names = [_printable(f"{i}  {wording.title(report)}", 24) for i, report in enumerate(reports, 1)]
    axes.set_yticks(rows, names)
    axes.set_ylim(len(reports) - 0.5, -0.5)
    axes.set_xlim(0, top * 1.3)
    axes.xaxis.set_major_locator(FixedLocator(scale.steps(top)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: scale.tick(size)))
    _plain(axes, "x")


def _columns(labels: Sequence[str]) -> int:
    return len(labels) if len(labels) <= 9 else (len(labels) + 1) // 2


def _printable(text: str, length: int) -> str:
    """`text` for matplotlib: short, no formulas, no character that its font lacks (it warns)."""
    font = get_font(findfont(FontProperties()))
    known = "".join(c if font.get_char_index(ord(c)) else "\u25a1" for c in text)
    short = known if len(known) <= length else known[: length - 1] + "…"
    return short.replace("$", r"\$")
