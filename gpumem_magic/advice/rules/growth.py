"""What every pass of a loop leaves behind: the first question when memory runs out."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.accumulations import find_accumulations
from gpumem_magic.advice.evidence.passes import (
    carried_attributes,
    carried_names,
    computed_anew,
    computed_of,
    grown,
    is_of_last_pass,
    loaded,
    made_anew,
    passed_on,
)
from gpumem_magic.advice.evidence.shortage import is_short
from gpumem_magic.advice.rule import Case, Rule, mended
from gpumem_magic.advice.rules.growth_cures import COLLECTED, change, lines_of_makers, untrained
from gpumem_magic.advice.rules.growth_cycles import cycled
from gpumem_magic.advice.rules.growth_told import BUILDING, built, entries, told
from gpumem_magic.advice.rules.kept_graph import KeptGraph, tells_of
from gpumem_magic.advice.tree import Loop, defined, lines_of
from gpumem_magic.advice.work import TooMuchWorkError
from gpumem_magic.trace.growth.ways import SEVERAL
from gpumem_magic.values.advice import Advice, Example, Kind, Known
from gpumem_magic.values.findings import Growth, Trace, Unit
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Phase, Stack

_BESIDE = 0.1
"""Share of what grew most from which something else is told beside it."""

_MOST_OF_IT = 0.25
"""Share of the peak from which growth is told also where memory is not short."""

_NEARLY_ALL, _OF_CARD = 0.5, 0.05
"""Shares of the peak and of the card from which it is also where no graph is kept."""

_MANY = 8
"""Passes from which it is."""

_APART = 2
"""Passes by which what grew in the same loop may differ, as memory ran out in the middle of one."""

_OF_UNITS = {
    Unit.CALL: "Each call keeps its variables until the calls inside of it are over: make it a "
    "loop that goes on with one result, del what a call needs no more before it calls itself, or "
    "go less deep.",
    Unit.MODULE: "What a module keeps in an attribute stays until its next call: return it, keep "
    "it only while it is asked for, or keep it on the host (.detach().cpu()).",
}

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
layer = nn.Linear(256, 256).cuda()
data = torch.randn(128, 512, 256)

class Metric:
    def __init__(self):
        self.seen = []

    def observe(self, output):
        self.seen.append(output)

metric = Metric()
"""


_SUMMED = """\
class Penalty:
    total = 0

    def add(self, output):
        Penalty.total = Penalty.total + output.pow(2).mean()

penalty = Penalty()
for x in data:
    x = x.cuda()
    penalty.add(layer(x))
last = float(Penalty.total)
"""


class GrowingMemory(Rule):
    """Each pass of a loop leaves memory behind, until there is none.

    A list of outputs, a metric, a logger, a hook, a cache or a hidden state that goes from one pass
    into the next keeps what it was given; an output also keeps the graph that it was computed by,
    with all its activations. However small the batch, such a loop runs out of memory: only later.
    So growth comes before all other questions: what is told is what survived, how much in each
    pass, where it was made, and the way to what holds it, as found when the cell ended. Keep
    `.item()` of a number, `.detach()` of what goes on into the next pass, `.cpu()` of what is only
    collected.
    """

    name: ClassVar[str] = "growth"
    problem: ClassVar[str] = "each pass of a loop leaves memory behind"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            ("metric.observe(layer(x))", "metric.observe(layer(x).detach().cpu())"),
            setup=_SETUP,
            before="for x in data:\n    x = x.cuda()\n    metric.observe(layer(x))\n",
            card="100MiB",
            rewritten=False,
        ),
        mended(
            ("output.pow(2).mean()", "output.pow(2).mean().item()"),
            setup=_SETUP,
            before=_SUMMED,
            card="100MiB",
            results=("last",),
            rewritten=False,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        case = Case(trace, cell, names)
        found = [*_worth_telling(case)]
        least = _BESIDE * max((one.size for one in found), default=0)
        for together in _together(case, (one for one in found if one.size >= least)):
            first = together[0]
            # of several passes, what one takes any loop does
            saving = sum(one.size - (one.each if one.passes > 1 else 0) for one in together)
            lines = sorted({one.line for one in together if one.line and not one.cell})
            advice = Advice(
                self.name,
                problem=entries(together)
                if _are_apart(case, first)
                else told(together, built(trace.lives, cell, first)),
                change=_change(case, first),
                line=lines[0] if lines else None,
                name=first.holder or None,
                size=sum(one.size for one in together),
                saving=saving,
                known=Known.ESTIMATED,
            )
            yield self._written_out(case, first, advice)

    def _written_out(self, case: Case, growth: Growth, advice: Advice) -> Advice:
        """With the change of the statements that collect the graphs, where it can be written."""
        if not growth.graph:
            return advice
        try:
            kept = tuple(KeptGraph().find(case.trace, case.cell, case.names))
        except TooMuchWorkError:
            return advice
        same = next((one for one in kept if one.source and tells_of(advice, one)), None)
        if same is None:
            return advice
        listed = growth.holder.endswith("[*]") and ".detach()" in same.change
        change = untrained(case, growth, f"{same.change}{COLLECTED if listed else ''}")
        written = replace(advice, change=change, edits=same.edits, source=same.source)
        return replace(written, line=same.line, saving=same.saving, price=same.price)


def _worth_telling(case: Case) -> Iterator[Growth]:
    trace, cell = case.trace, case.cell
    told_of: set[tuple[object, ...]] = set()
    for growth in _carried(cell, trace.lives, grown(cell, trace)):
        told_elsewhere = is_of_last_pass(cell, trace.lives, growth, trace.growth)
        told_elsewhere |= _is_of_graphs(case, growth)
        if told_elsewhere or _is_loaded(case, growth) or _is_one_call(trace.lives, cell, growth):
            continue
        same = growth.line, growth.cell, growth.graph, growth.name
        if same not in told_of and (is_short(trace) or _is_large(trace, growth)):
            told_of.add(same)  # one list may be met under the names of several frames
            yield growth


def _is_of_graphs(case: Case, growth: Growth) -> bool:
    """Whether graphs that grew in the same passes may hold it, such as their inputs, where nothing
    is known to."""
    if growth.holder or growth.graph or growth.anew or cycled(case, growth).holder:
        return False
    found = case.trace.growth
    graphs = (one for one in found if one.graph and not one.anew and one.size > growth.size)
    return any(abs(one.passes - growth.passes) <= _APART for one in graphs)


def _together(case: Case, found: Iterable[Growth]) -> list[list[Growth]]:
    """What grew in the same passes and is to be ended in the same way, as one: several lists of a
    metric, or several metrics of one batch."""
    groups: dict[tuple[object, ...], list[Growth]] = {}
    for place, one in enumerate(found):
        in_cycle = cycled(case, one).holder != one.holder
        alone = one.unit is not Unit.PASS or one.anew or not (one.holder or in_cycle)
        alone |= one.passes == 1
        graph = one.graph or in_cycle
        key = (place,) if alone else (one.cell, graph, one.first, _change(case, one))
        own = groups.setdefault(key, [])
        if own and abs(own[0].passes - one.passes) > _APART:
            groups[(*key, place)] = [one]
        else:
            own.append(one)
    return list(groups.values())


def _change(case: Case, growth: Growth) -> str:
    if growth.unit is Unit.PASS:
        return change(case, growth)
    return untrained(case, growth, _OF_UNITS[growth.unit])


def _is_loaded(case: Case, growth: Growth) -> bool:
    """Whether calls of torch.load() made all of it, none of which a loop repeats: the loop is that
    function's own."""
    rows = _not_gradients(case.lives, growth)
    return bool(rows) and bool(loaded(case.lives)[rows].all()) and not _are_of_loop(case, growth)


def _are_apart(case: Case, growth: Growth) -> bool:
    """Whether statements of the cell made it, each a part, rather than the passes of a loop."""
    if not growth.holder or growth.unit is not Unit.PASS or growth.anew or not growth.rows:
        return False
    own = case.cell.cell.filename
    lines = [[f.line for f in s if f.filename == own] for s in _stacks(case.lives, growth)]
    outer = {each[-1] for each in lines if each}
    several = growth.passes == 1 or len(outer) >= growth.passes
    return several and not _are_of_loop(case, growth)


def _not_gradients(lives: Lifetimes, growth: Growth) -> list[int]:
    return [row for row in growth.rows if lives.born[row] != Phase.BACKWARD]


def _stacks(lives: Lifetimes, growth: Growth) -> list[Stack]:
    """The stacks that made it, rather than its gradients."""
    rows = _not_gradients(lives, growth)
    made = np.unique(lives.stack[rows]).tolist() if rows else []
    return [lives.stacks[each] if each >= 0 else () for each in made]


def _are_of_loop(case: Case, growth: Growth) -> bool:
    """Whether a loop that can be read is around any line that was running."""
    code, trace = case.cell.joined() or (case.cell, case.trace)
    rows = _not_gradients(trace.lives, growth)
    return any(_repeats(code, line) for line in lines_of_makers(code, trace.lives, rows))


def _is_one_call(lives: Lifetimes, cell: Code, growth: Growth) -> bool:
    """Whether nobody holds what one operator made, which a line outside of all loops called."""
    if growth.holder or growth.cell or not growth.line or not growth.rows:
        return False
    statement = cell.statement_at(growth.line)
    if statement is None or cell.function(statement) or _repeats(cell, growth.line):
        return False
    return all(len(lives.frames(row)) == 1 for row in growth.rows)


def _repeats(code: Code, line: int) -> bool:
    """Whether a loop or a comprehension is around what runs on a line, within its function."""
    statement = code.statement_at(line)
    inline = (*BUILDING, ast.GeneratorExp, ast.Lambda)
    return statement is not None and bool(
        code.loop(statement) or code.nodes(*inline, within=statement)
    )


def _collecting(cell: Code, loop: Loop) -> set[str]:
    """Names of what a loop puts its results into: a list, or a dictionary."""
    own = (one for one in find_accumulations(cell) if cell.inside(one.statement, loop))
    added = (one for one in own if not one.sums and one.target == one.name)
    return {one.name for one in added if not one.binds}


def _carried(cell: Code, lives: Lifetimes, found: Sequence[Growth]) -> Iterator[Growth]:
    """What grew, by the name that goes from pass to pass rather than by what each pass makes of it;
    what is made anew of something that grows is told with that."""
    graphs = any(growth.graph and not growth.anew for growth in found)
    computed = computed_anew(cell, found)
    for growth in found:
        name = growth.name
        line = _line_under_way(cell, lives, growth) if growth.graph and not name else growth.line
        statement, loop = cell.looped(line, growth.cell)
        if growth.anew and name in computed:
            continue
        rebuilt = bool(statement and loop and defined(statement) & carried_names(cell, loop))
        unnamed = growth.graph and not name and (rebuilt or not built(lives, cell, growth))
        if statement is None or loop is None or not (name.isidentifier() or unnamed):
            alone = growth.graph and not growth.anew and made_anew(cell, name)
            ends = alone or _ends_with_call(cell, growth, name)
            yield _of_attribute(cell, growth) if ends else growth
            continue
        carriers = carried_names(cell, loop)
        given = carriers & passed_on(cell, loop, statement)
        given = given or carriers & computed_of(cell, loop, statement)
        if growth.graph and name not in carriers and len(given) == 1:
            function, carrier = cell.function(statement), next(iter(given))
            path = growth.holder.removesuffix(name)
            path = path if function and path == f"{function.name}()." else ""
            joined = "[*]" if carrier in _collecting(cell, loop) else ""  # when the loop was over
            several = (o.holder for o in found if o.holder.startswith(f"{path}{carrier}{SEVERAL}"))
            joined = next((way[len(path + carrier) :] for way in several), joined)
            kind = growth.kind if len(defined(statement)) == 1 else ""  # it may be of several
            yield replace(growth, holder=f"{path}{carrier}{joined}", kind=kind)
        elif growth.graph and name in _collecting(cell, loop):
            yield replace(growth, holder=f"{growth.holder}[*]")
        elif growth.graph and name not in carriers and not growth.anew:
            yield _of_attribute(cell, growth)
        elif not (growth.anew and graphs and name not in carriers):
            yield growth


def _line_under_way(cell: Code, lives: Lifetimes, growth: Growth) -> int | None:
    """The line that made it, or that called the function which did and was over by the peak: its
    variables were gone."""
    if growth.cell or not growth.rows:
        return growth.line
    last = int(np.where(lives.birth <= lives.peak_event, lives.birth, -1).argmax())
    running = [*cell.lines_in(lives.frames(last)), int(lives.line[last])]
    lines = cell.lines_in(lives.frames(growth.rows[0]))
    for line in lines[lines.index(growth.line) :] if growth.line in lines else ():
        statement = cell.statement_at(line)
        function = cell.function(statement) if statement else None
        if function is None or any(n in lines_of(function) for n in running):
            return line
    return growth.line


def _ends_with_call(cell: Code, growth: Growth, name: str) -> bool:
    """Whether a graph is found under a variable of a function, made outside of its loops: none goes
    on into the next call."""
    statement, loop = cell.looped(growth.line, growth.cell)
    if statement is None or loop is not None or not growth.graph or growth.anew:
        return False
    function = cell.function(statement)
    local = function is not None and growth.holder == f"{function.name}().{name}"
    return local and name in defined(statement)


def _of_attribute(cell: Code, growth: Growth) -> Growth:
    """What each pass makes goes on with none: an attribute may, that is made anew of itself, or a
    variable around the function."""
    code, _ = cell.joined() or (cell, None)
    kept = carried_attributes(code)
    if growth.name in kept:
        return growth
    return replace(growth, holder=next(iter(kept)) if len(kept) == 1 else "")


def _is_large(trace: Trace, growth: Growth) -> bool:
    share = growth.size / max(trace.peak.allocated or 0, 1)
    if not growth.holder or growth.passes < _MANY:  # held also after the cell
        return False
    if growth.graph or growth.recorded:
        return share >= _MOST_OF_IT
    total = trace.device.total if trace.device else 0
    return share >= _NEARLY_ALL and growth.size >= _OF_CARD * total > 0
