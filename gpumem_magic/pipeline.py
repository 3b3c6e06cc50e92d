"""From a recording to a report: what was recorded, what it means, what to change."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, replace

from gpumem_magic.advice import Said, advise, explained
from gpumem_magic.advice.joined import Texts, join_cells
from gpumem_magic.sources.cuda.recorder import no_collection
from gpumem_magic.sources.stacks.callsite import unfold_all
from gpumem_magic.trace import build_trace
from gpumem_magic.trace.cell_flow import parse_cell
from gpumem_magic.values.advice import Advice
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.recording import Reading, Recording
from gpumem_magic.values.report import Basis, Report


@dataclass(frozen=True, slots=True)
class Analysis:
    """What was recorded of a cell on one device, what it means, and the report of both.

    failed: what its notes say of rules that have a defect.
    """

    recording: Recording
    trace: Trace
    report: Report
    failed: str = ""


@no_collection()  # of a long cell there are millions of objects, and no garbage
def analyse(
    recording: Recording,
    name: str = "",
    ignore: Collection[str] = (),
    *,
    advised: bool = True,
    everything: bool = False,
) -> Analysis:
    """Trace, advice and report of a recording.

    name: what the report is called. ignore: rules that give no advice. advised: whether any is
    wanted. everything: see `advise`.
    """
    cell, cells = recording.cell, recording.cells
    recording = replace(recording, stacks=unfold_all(recording.stacks, cell, cells))
    parse = functools.cache(parse_cell)
    trace = build_trace(recording, parse)
    said = Said()
    if advised:
        texts = Texts(parse, functools.partial(join_cells, recording, trace))
        said = advise(
            trace, cell, recording.names, ignore=ignore, everything=everything, texts=texts
        )
        recording = replace(recording, notes=(*recording.notes, *said.notes))
        trace = replace(trace, oom=trace.oom and explained(trace.oom, said.advice))
    report = build_report(recording, trace, name, said.advice)
    return Analysis(recording, trace, report, said.failed)


def build_report(
    recording: Recording, trace: Trace, name: str, advice: tuple[Advice, ...] = ()
) -> Report:
    """Put what was recorded, what it means and what to change into one value.

    Of the memory in use after the cell, `context` is this process's share beyond PyTorch's own, and
    `others` what no share of this process explains; each is None, with its reason, where a reading
    it needs is not known.
    """
    before, after = recording.before, recording.after
    context, others, unknown = after.shares()
    unknown = _unread("before", before) | _unread("after", after) | dict(trace.unknown) | unknown
    return Report(
        name=name,
        cell=recording.cell,
        device=recording.device,
        predicted=recording.predicted,
        started=recording.started,
        seconds=recording.seconds,
        before=trace.before,
        peak=trace.peak,
        after=trace.after,
        context=context,
        others=others,
        lines=trace.lines,
        blocks=trace.blocks,
        at_peak=trace.at_peak,
        at_end=trace.at_end,
        timeline=trace.timeline,
        oom=trace.oom,
        retries=recording.retries,
        error=recording.error,
        unknown=unknown,
        notes=recording.notes,
        output=recording.output,
        error_line=recording.error_line,
        flow_guessed=recording.flow_guessed,
        call_tree=trace.call_tree,
        advice=advice,
        uncounted=max(0, recording.highest - (trace.peak.allocated or 0)),
        likely=max(0, recording.likely - (trace.peak.allocated or 0)),
        basis=None if trace.lifetimes is None else Basis(_kept(recording), trace.lifetimes),
    )


def _kept(recording: Recording) -> Recording:
    """The recording without the cells that no stack leads through: there may be thousands."""
    files = {frame.filename for stack in recording.stacks for frame in stack}
    return replace(
        recording, cells={name: recording.cells[name] for name in files & recording.cells.keys()}
    )


def _unread(moment: str, reading: Reading) -> dict[str, str]:
    """Why each size of a reading that a Level shows is not known, by its name in the report."""
    shown = ("allocated", "reserved", "device_used")
    missing = [size for size in shown if getattr(reading, size) is None]
    return {f"{moment}.{size}": reading.reason(size) for size in missing}
