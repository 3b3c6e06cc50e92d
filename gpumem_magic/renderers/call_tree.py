"""Where the memory went by line, module and call: as a tree, and the parts that had most of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.document import Bar, Part, Row, Span, Style, Table
from gpumem_magic.renderers.figure.palette import ALLOCATED
from gpumem_magic.renderers.terminal import fit_middle
from gpumem_magic.units import format_size, format_some
from gpumem_magic.values.findings import CallNode
from gpumem_magic.values.recording import Category
from gpumem_magic.values.report import Report

_DEEPEST = 7  # levels of calls, and
_LEAST = 0.01  # of the peak, that are shown; report.call_tree has all
_WIDEST = 60  # characters of the way to a part
_STEP = " > "
_LINE = re.compile(r"line (\d+)  ")
_MODULE = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])*")
_KINDS = frozenset(kind.value for kind in Category)


def by_module(report: Report) -> tuple[Table, ...]:
    """The call tree without what had little at the peak; bars are parts of it. Where it takes no
    line apart, the table by line says as much."""
    least = (report.peak.allocated or 0) * _LEAST
    nodes = [n for n in report.call_tree if n.depth <= _DEEPEST and n.at_peak >= max(least, 1)]
    head = ("line, module, call", "at the peak", "allocated", "kept")
    rows, _ = _inside(report, nodes, 0)
    lines = (node for node in nodes if not node.depth)
    apart = (node for node, row in zip(lines, rows, strict=True) if row.inner or _STEP in node.name)
    told = any(_LINE.match(node.name) for node in apart)
    return (Table("By module and by call", head, rows),) if told else ()


def _inside(report: Report, nodes: Sequence[CallNode], start: int) -> tuple[tuple[Row, ...], int]:
    """The rows of the nodes from `start` on that have its depth, with what they called inside; and
    where the next node that is none of them stands."""
    rows, place = [], start
    while place < len(nodes) and nodes[place].depth >= nodes[start].depth:
        node = nodes[place]
        deeper = place + 1 < len(nodes) and nodes[place + 1].depth > node.depth
        inner, place = _inside(report, nodes, place + 1) if deeper else ((), place + 1)
        sizes = map(format_some, (node.at_peak, node.allocated, node.kept))
        part = (Part("at the peak", node.at_peak, ALLOCATED),)
        bar = Bar(part, report.peak.allocated or 1, thin=True)
        rows.append(Row((Span(wording.visible(node.name), Style.CODE), *sizes), (bar,), inner))
    return tuple(rows), place


def most_at_peak(report: Report, count: int) -> Table | None:
    """The parts that had most at the peak, each with its line, where these ran modules: what has
    more than a third of what the cell had is taken apart."""
    nodes = report.call_tree
    large = sum(node.at_peak for node in nodes if _LINE.match(node.name)) // 3
    found: list[tuple[int, ...]] = [(i,) for i, node in enumerate(nodes) if not node.depth]
    for way in found:  # what it is taken apart into comes after it
        inner = _children(nodes, way[-1]) if nodes[way[-1]].at_peak > large else []
        found += [(*way, place) for place in inner]
    apart = {way[:-1] for way in found}
    found = [way for way in found if way not in apart]
    if not any(len(way) > 1 and _LINE.match(nodes[way[0]].name) for way in found):
        return None
    ranked = sorted(found, key=lambda way: -nodes[way[-1]].at_peak)[:count]
    rows = tuple(_part(report, [nodes[place] for place in way]) for way in ranked)
    return Table("What had most at the peak", ("", "", "", ""), rows)


def _children(nodes: Sequence[CallNode], place: int) -> list[int]:
    depth, found = nodes[place].depth, []
    for inner in range(place + 1, len(nodes)):
        if nodes[inner].depth <= depth:
            break
        if nodes[inner].depth == depth + 1:
            found.append(inner)
    return found


def _part(report: Report, way: Sequence[CallNode]) -> Row:
    """A node by the way to it: "3 model.h[0..3].mlp"; of a long one the modules alone."""
    first, *steps = (step for node in way for step in node.name.split(_STEP))
    line = _LINE.match(first)
    path, modules, within = "", "", False
    for step in [first, *steps] if not line else steps or [first[line.end() :]]:
        is_module = bool(_MODULE.fullmatch(step)) and step not in _KINDS
        joint = "." if within and is_module else _STEP
        path += (joint if path else "") + step
        modules += (joint if modules else "") + step if is_module else ""
        within = is_module
    path = modules if modules and len(path) > _WIDEST else path
    name = (
        Span(f"{line[1]}  " if line else "", Style.FAINT),
        Span(fit_middle(wording.visible(path), _WIDEST), Style.CODE),
    )
    node = way[-1]
    share = wording.format_share(node.at_peak, report.peak.allocated)
    kept = f"{format_size(node.kept)} kept" if node.kept else "nothing kept"
    return Row((name, share, format_size(node.at_peak), kept))
