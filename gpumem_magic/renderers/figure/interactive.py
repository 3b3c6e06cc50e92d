"""A cell's timeline for those who can ask it: what `screen.js` draws, zooms and lists."""

from __future__ import annotations

import html
import json
import zlib
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.figure import scale
from gpumem_magic.renderers.figure.palette import COLOURS
from gpumem_magic.renderers.html import Markup
from gpumem_magic.trace.peak import module_at, places_of
from gpumem_magic.values.findings import Block, Timeline
from gpumem_magic.values.lifetimes import BEFORE
from gpumem_magic.values.recording import Category
from gpumem_magic.values.report import Basis, Report

POINTS, BLOCKS = 2000, 1500
"""Moments of a timeline, and storages with their lives, that a saved page has."""

_FRAMES = 12  # of a stack, the innermost

_KINDS = tuple(Category)


def module_text(name: str = "screen.js") -> str:
    """An ES module; `screen.js` has `timeline(place, data)` and, for the panel, `render`."""
    return files("gpumem_magic").joinpath(f"renderers/figure/{name}").read_text(encoding="utf-8")


def has_course(report: Report) -> bool:
    """Whether there is a timeline to draw."""
    return len(report.timeline.allocated) > 1


def key_of(report: Report) -> str:
    """By which a page and the kernel know a report's course; for one report always the same."""
    line = report.timeline
    return f"{zlib.crc32(line.allocated.tobytes(), zlib.crc32(line.time.tobytes())):08x}"


def place_of(report: Report) -> Markup:
    """Where a page has the timeline of a report; its data lie in it until the script finds them."""
    data = html.escape(course_json(report), quote=False)
    return Markup(f'<div class="gpumem-course"><template>{data}</template></div>')


def script() -> Markup:
    """What makes all such places of a page answer, once: the module, and a call of it."""
    find = (
        'for (const place of document.querySelectorAll(".gpumem-course")) {\n'
        "  keys(place);\n"
        "  place.previousElementSibling.querySelector(`img[alt^='Memory over']`)?.remove();\n"
        '  timeline(place, JSON.parse(place.querySelector("template").content.textContent));\n}\n'
    )
    return Markup(f'<script type="module">\n{module_text()}\n{find}</script>')


def course_json(report: Report, points: int = POINTS, blocks: int = BLOCKS) -> str:
    """The course of a cell as JSON: columns at no more than so many moments, as differences, and
    its largest storages, each with the first moment that it saw and the first that it did not."""
    line = report.timeline
    at = moments_of(line, points)
    kinds = [
        [kind.value, COLOURS[kind], _differences(line.by_category[at, i])]
        for i, kind in enumerate(_KINDS)
    ]
    failed = scale.failure_point(line, report.oom) if report.oom else None
    stacks: dict[tuple[str, ...], int] = {}
    storages = _storages(report, at, blocks, stacks)
    modules = _modules(report, at)
    named = dict.fromkeys(modules)
    places = {name: place for place, name in enumerate(named)}
    data = {
        "name": f"Memory over the course of the cell: {wording.picture(report)}",
        "time": _differences(np.round(line.time[at] * 1e6).astype(np.int64)),
        "reserved": _differences(line.reserved[at]),
        "line": line.line[at].tolist(),
        "kinds": kinds,
        "modules": list(named),
        "module": [places[name] for name in modules],
        "peak": int(np.searchsorted(at, line.peak)),
        "limit": scale.limit_of(report),
        "oom": None if failed is None else int(np.searchsorted(at, failed)),
        "source": [wording.visible(text.strip()[:160]) for text in report.cell.source.splitlines()],
        "lives": report.basis is not None,
        "blocks": storages,
        "stacks": [list(stack) for stack in stacks],
    }
    return json.dumps(data, separators=(",", ":"))


def moments_of(line: Timeline, most: int) -> NDArray[np.int64]:
    """The points of a timeline that are shown: of every stretch the highest, and both ends."""
    count = len(line.allocated)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, most - 1).astype(np.int64)
    stretches = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    highest = [begin + int(line.allocated[begin:end].argmax()) for begin, end in stretches]
    return np.unique(np.array([0, *highest, line.peak, count - 1]))


def _differences(column: NDArray[np.int64]) -> list[int]:
    """Each value less the one before it: most are 0, which is short."""
    return list(np.diff(column, prepend=0).tolist())


def _modules(report: Report, at: NDArray[np.int64]) -> list[str]:
    """The module that ran at each moment, "" for none; empty where only levels are known."""
    if report.basis is None or len(report.basis.recording.events) + 1 != len(report.timeline.time):
        return []
    recording = report.basis.recording
    stacks = np.append(np.int32(-1), recording.events.stack)[at]
    return [wording.visible(module_at(recording, row)) for row in stacks.tolist()]


def _storages(
    report: Report, at: NDArray[np.int64], most: int, stacks: dict[tuple[str, ...], int]
) -> list[list[Any]]:
    """The largest storages as rows: bytes, kind, line, first moment, first moment without it, name,
    tensor, stack. Where only the peak is known, those of the peak."""
    if report.basis is not None:
        return list(_lives(report.basis, report.timeline.time[at], most, stacks))
    peak = int(np.searchsorted(at, report.timeline.peak))
    return [_row(block, (peak, peak + 1), -1) for block in report.blocks[:most]]


def _lives(
    basis: Basis, times: NDArray[np.float64], most: int, stacks: dict[tuple[str, ...], int]
) -> Iterator[list[Any]]:
    lives = basis.lifetimes
    clock = np.append(0.0, basis.recording.events.time)
    whole = len(times) == len(clock)
    seen = np.arange(len(clock)) if whole else np.searchsorted(clock, times, "right") - 1
    born = np.searchsorted(seen, lives.birth + 1)
    died = np.where(lives.death < lives.events, np.searchsorted(seen, lives.death + 1), len(times))
    drawn = np.flatnonzero(born < died)
    for i in drawn[np.argsort(-lives.size[drawn], kind="stable")][:most].tolist():
        stack = places_of(lives.frames(i), basis.recording)[:_FRAMES]
        number = None if lives.line[i] == BEFORE else int(lives.line[i])
        kind, size = _KINDS[int(lives.category[i])], int(lives.size[i])
        module = module_at(basis.recording, int(lives.stack[i]))
        block = Block(lives.name(i), size, *lives.tensor(i), kind, number, module)
        place = stacks.setdefault(stack, len(stacks)) if stack else -1
        own = f"In[{basis.recording.cell.number}]:{number}"  # the line, as stacks tell it
        told = bool(stack) and stack[0].partition(" ")[0] == own
        yield _row(block, (int(born[i]), int(died[i])), place, told)


def _row(block: Block, life: tuple[int, int], stack: int, told: bool = False) -> list[Any]:
    named = wording.block_name(block), wording.tensor_type(block)
    line = "" if told else wording.line_label(block.line)
    return [block.size, _KINDS.index(block.category), line, *life, *named, stack]
