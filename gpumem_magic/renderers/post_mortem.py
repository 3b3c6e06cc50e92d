"""What a report says of an out-of-memory error: what was asked for, what was in the way, what would
have helped; as text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from gpumem_magic.renderers import markup, wording
from gpumem_magic.renderers.alike import Alike, alike
from gpumem_magic.renderers.columns import WIDTH, fit, fit_middle, left, wrap
from gpumem_magic.renderers.figure.palette import COLOURS
from gpumem_magic.renderers.markup import EMPTY, ROOT, Markup, element, join, row, table
from gpumem_magic.renderers.predicted import frame
from gpumem_magic.units import format_bytes
from gpumem_magic.values.findings import OutOfMemory, Remedy, Way
from gpumem_magic.values.report import Report

RECOVERY = "%gpucheck --free gives back what the failed cell left, without a restart."
_BLOCKS = 5
_TITLES: tuple[tuple[bool | None, str], ...] = (
    (True, "Each of these alone would have left room for it"),
    (None, "This may have left room for it, depending on where the free pieces lie"),
    (False, "Not enough alone"),
)
_NONE = "No single change that the numbers show would have left room for it"
_WAYS = MappingProxyType(
    {
        Way.OTHERS: "other processes ended, which hold {size}: nvidia-smi lists them",
        Way.EXPANDABLE: "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, set before PyTorch "
        "starts, against the gaps of {size} in all",
        Way.GRADIENTS: "optimizer.zero_grad() before this line: {size} of gradients that the next "
        "backward pass makes anew",
        Way.HISTORY: "%gpucheck --free --outputs before this cell: {size} that only the notebook's "
        "output history holds",
        Way.UNUSED: "del {name} before this line: {size} that the cell does not mention from there "
        "on",
    }
)


def post_mortem_text(report: Report) -> str:
    """The out-of-memory error of a report on its own, for a terminal of 80 columns."""
    rows = [] if report.oom is None else [*failure_rows(report, report.oom), "", *ending(report)]
    return "\n".join(line.rstrip() for line in rows)


def post_mortem_html(report: Report) -> str:
    """The same as one <div> with inline styles."""
    if report.oom is None:
        return element("div", style=ROOT)
    below = [markup.small(line) for line in ending(report)]
    return element("div", failure_markup(report, report.oom), *below, style=ROOT)


def ending(report: Report) -> list[str]:
    """The one command that gives the memory back; a prediction has taken none."""
    return [RECOVERY] if report.oom and not report.predicted else []


def failure_rows(report: Report, oom: OutOfMemory) -> list[str]:
    """The section of a report's text."""
    rows = [wording.oom_headline(oom).replace("Out of memory", "OUT OF MEMORY")]
    source = wording.source_of(report, oom.line)
    rows += [fit(f"  {source}", WIDTH)] if source else []
    for fact in wording.oom_facts(oom):
        rows += wrap(f"  {fit(fact, 400)}", "    ")
    rows += wrap(f"  {_held(report, oom)}", "    ")
    groups = _largest(report, oom)
    rows += ["  the largest of it:"] if groups else []
    rows += [_block(group) for group in groups]
    for title, said in _remedies(oom):
        rows += [f"  {title}:", *(line for text in said for line in wrap(f"    {text}", "      "))]
    return rows


def failure_markup(report: Report, oom: OutOfMemory) -> Markup:
    """The section of a report's HTML."""
    source = wording.source_of(report, oom.line)
    return element(
        "div",
        element("strong", wording.oom_headline(oom)),
        element("div", markup.code(source)) if source else EMPTY,
        *(element("div", fact) for fact in wording.oom_facts(oom)),
        element("div", _held(report, oom)),
        markup.stack(wording.held_at_failure(report, oom)[1]),
        *(_list(title, said) for title, said in _remedies(oom)),
        _table(_largest(report, oom)),
        style=frame(),
    )


def _held(report: Report, oom: OutOfMemory) -> str:
    moment, held = wording.held_at_failure(report, oom)
    parts = [f"{kind.value} {format_bytes(size)}" for kind, size in wording.shown(held)]
    return f"{moment}: {', '.join(parts) or 'unknown'}"


def _largest(report: Report, oom: OutOfMemory) -> tuple[Alike, ...]:
    """The largest storages that were alive, those that are alike together."""
    then = replace(report.peak, allocated=sum(oom.held.values()))
    return alike(replace(report, blocks=oom.blocks, peak=then))[:_BLOCKS]


def _block(group: Alike) -> str:
    name = left(fit_middle(group.name, 31), 31)
    tensor = left(fit(group.tensor, 22), 22)
    return f"{group.size_text:>15}  {name} {tensor} {wording.line_label(group.blocks[0].line)}"


def _table(groups: Sequence[Alike]) -> Markup:
    if not groups:
        return EMPTY
    rows = []
    for group in groups:
        first = group.blocks[0]
        name = join(markup.swatch(COLOURS[first.category]), markup.source(group.name))
        made = wording.line_label(first.line)
        rows.append(row(name, group.size_text, group.tensor, made))
    return table("The largest of it", ("name", "size", "tensor", "made in"), rows)


def _remedies(oom: OutOfMemory) -> list[tuple[str, list[str]]]:
    """Changes under what they would have done; if none is enough, what is left to do."""
    found = [
        (title, [_remedy(one) for one in oom.remedies if one.enough is enough])
        for enough, title in _TITLES
    ]
    if oom.missing and not any(one.enough is not False for one in oom.remedies):
        found.insert(0, (_NONE, [_left(oom)]))
    return [(title, said) for title, said in found if said]


def _left(oom: OutOfMemory) -> str:
    return f"at least {format_bytes(oom.missing)} less has to be held at this line"


def _remedy(remedy: Remedy) -> str:
    name = wording.visible(remedy.name or "")
    return _WAYS[remedy.way].format(size=format_bytes(remedy.size), name=name)


def _list(title: str, said: Sequence[str]) -> Markup:
    entries = (element("div", f"• {text}", style="padding:0 0 0 16px") for text in said)
    return element("div", f"{title}:", *entries)
