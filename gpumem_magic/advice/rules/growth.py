"""What every pass of a loop leaves behind: the first question when memory runs out."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np

from gpumem_magic.advice.changes.frameworks import framework_of
from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.accumulations import find_accumulations
from gpumem_magic.advice.evidence.passes import carried_attributes, carried_names, copied
from gpumem_magic.advice.evidence.shortage import is_short
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.tree import Loop, defined
from gpumem_magic.trace.growth import GRADIENTS, SEVERAL
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind, Known
from gpumem_magic.values.findings import Growth, Trace
from gpumem_magic.values.inventory import HolderKind
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names, variable_of
from gpumem_magic.values.recording import Category, Phase

_MOST_OF_IT = 0.25
"""Share of the peak from which growth is told also where memory is not short."""

_MANY = 8
"""Passes from which it is."""

_LOADING = "torch/serialization.py"
_BUILDING = (ast.ListComp, ast.DictComp, ast.SetComp)

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
layer = nn.Linear(256, 256).cuda()
data = torch.randn(128, 512, 256)

class Metric:
    def __init__(self):
        self.seen = []

    def update(self, output):
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
            ("metric.update(layer(x))", "metric.update(layer(x).detach().cpu())"),
            setup=_SETUP,
            before="for x in data:\n    x = x.cuda()\n    metric.update(layer(x))\n",
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
        told_of: set[tuple[object, ...]] = set()
        for growth in _carried(cell, trace.growth):
            if _is_loaded(trace.lives, cell, growth) or _is_one_call(trace.lives, cell, growth):
                continue
            same = growth.line, growth.cell, growth.graph, _variable(growth)
            if same not in told_of and (is_short(trace) or _is_large(trace, growth)):
                told_of.add(same)  # one list may be met under the names of several frames
                saving = growth.size  # of several passes, what one takes any loop does
                saving -= growth.each if growth.passes > 1 else 0
                yield Advice(
                    self.name,
                    problem=told(growth, _built(trace.lives, cell, growth)),
                    change=_change(trace.lives, cell, growth),
                    line=growth.line if not growth.cell else None,
                    name=growth.holder or None,
                    size=growth.size,
                    saving=saving,
                    known=Known.ESTIMATED,
                )


_BACKWARD = (
    "The backward pass comes after the loop, so the graphs of all passes wait for it: call "
    "backward() in each pass, which frees that pass's graph and adds up the same gradients; or let "
    "the loop be shorter."
)


_ELSEWHERE = (
    "That loop keeps results with their graphs: .detach() what is collected, or goes on into the "
    "next pass, .item() where only a number is wanted; where nothing is trained, torch.no_grad() "
    "around it records none."
)

_COPIES = (
    "These are copies by deepcopy(), made where the model is. What is only kept to be loaded or "
    "returned later may wait on the host, {name: tensor.cpu() for name, tensor in "
    "model.state_dict().items()}; of the best so far one is enough."
)

_UNTRAINED = (
    " Nothing went backward in this cell: if nothing is to, torch.no_grad() records no graph."
)


def _change(lives: Lifetimes, cell: Code, growth: Growth) -> str:
    if _waits(cell, growth):
        return _BACKWARD
    if growth.rows and copied(lives)[list(growth.rows)].all():
        return _COPIES
    if _came_of(lives, cell, growth):
        return _ELSEWHERE
    if told := _of_framework(lives, growth):
        return told
    evaluates = growth.graph and not growth.anew and not (lives.born == Phase.BACKWARD).any()
    return cure(_cycled(cell, growth)) + (_UNTRAINED if evaluates else "")


def _is_loaded(lives: Lifetimes, cell: Code, growth: Growth) -> bool:
    """Whether one call of torch.load() made all of it: the loop is its own."""
    statement = cell.statement_at(growth.line) if growth.line and not growth.cell else None
    if statement is None or cell.loop(statement) or cell.function(statement):
        return False
    loads = [any(f.filename.endswith(_LOADING) for f in stack) for stack in lives.stacks]
    return bool(growth.rows) and all(loads[lives.stack[row]] for row in growth.rows)


def _is_one_call(lives: Lifetimes, cell: Code, growth: Growth) -> bool:
    """Whether nobody holds what one operator made, which a line outside of all loops called."""
    statement = cell.statement_at(growth.line) if growth.line and not growth.cell else None
    if growth.holder or statement is None or not growth.rows:
        return False
    if cell.loop(statement) or cell.function(statement):
        return False
    repeats = cell.nodes(*_BUILDING, ast.GeneratorExp, within=statement)
    return not repeats and all(len(lives.frames(row)) == 1 for row in growth.rows)


def _of_framework(lives: Lifetimes, growth: Growth) -> str:
    """The arguments by which a framework's own loop keeps less; "" where it is none."""
    framework = framework_of(lives)
    function = growth.holder.partition("().")[0]
    for knob in framework.knobs if framework else ():
        stacks = ({f.function for f in stack} for stack in lives.stacks) if knob.born_in else ()
        if framework and any({knob.born_in, function} <= functions for functions in stacks):
            said = ", ".join(f"{name}={value!r}" for name, value in knob.values.items())
            return f"{knob.change}: pass {said} to {framework.owner.rpartition('.')[2]}."
    return ""


def _came_of(lives: Lifetimes, cell: Code, growth: Growth) -> bool:
    """Whether the holder is what came of a loop in another cell, rather than what this one's loop
    carries on."""
    if not growth.cell or not growth.graph or not growth.rows or not growth.holder.isidentifier():
        return False
    statement = cell.statement_at(int(lives.line[growth.rows[-1]]))
    loop = cell.loop(statement) if statement is not None else None
    return loop is None or growth.holder not in carried_names(cell, loop)


def _collecting(cell: Code, loop: Loop) -> set[str]:
    """Names of what a loop puts its results into: a list, or a dictionary."""
    own = (one for one in find_accumulations(cell) if cell.inside(one.statement, loop))
    added = (one for one in own if not one.sums and one.target == one.name)
    return {one.name for one in added if not _binds(one.statement)}


def _binds(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)


def _carried(cell: Code, found: Iterable[Growth]) -> Iterator[Growth]:
    """What grew, by the name that goes from pass to pass rather than by what each pass makes of it;
    what is made anew of something that grows is told with that."""
    graphs = any(growth.graph and not growth.anew for growth in found)
    for growth in found:
        statement = cell.statement_at(growth.line) if growth.line and not growth.cell else None
        name = growth.holder.rpartition("().")[2]
        loop = cell.loop(statement) if statement is not None else None
        if statement is None or loop is None or not name.isidentifier():
            yield growth
            continue
        carriers = carried_names(cell, loop)
        given = carriers & defined(statement)
        if growth.graph and name not in carriers and len(given) == 1:
            path, name = growth.holder.removesuffix(name), next(iter(given))
            joined = "[*]" if name in _collecting(cell, loop) else ""  # when the loop was over
            yield replace(growth, holder=f"{path}{name}{joined}")
        elif growth.graph and name in _collecting(cell, loop):
            yield replace(growth, holder=f"{growth.holder}[*]")
        elif growth.graph and name not in carriers and not growth.anew:
            kept = carried_attributes(cell)  # what is made in each pass goes on with none
            yield replace(growth, holder=next(iter(kept)) if len(kept) == 1 else "")
        elif not (growth.anew and graphs and name not in carriers):
            yield growth


def _waits(cell: Code, growth: Growth) -> bool:
    """Whether a backward pass of the same function comes after the loop, and none in it."""
    statement = cell.statement_at(growth.line) if growth.line and not growth.cell else None
    loop = cell.loop(statement) if statement is not None else None
    if loop is None or not growth.graph:
        return False
    calls = [c for c in cell.calls(".backward") if cell.function(c) is cell.function(loop)]
    return any(c.lineno > loop.lineno for c in calls) and not any(
        cell.inside(c, loop) for c in calls
    )


def _cycled(cell: Code, growth: Growth) -> Growth:
    """Graphs that nothing leads to are held by gradients with a graph, where the cell makes them:
    parameter, gradient and graph hold each other."""
    asks = (k.arg == "create_graph" for c in cell.calls(".backward") for k in c.keywords)
    if growth.holder or not growth.graph or not any(asks):
        return growth
    return replace(growth, holder=GRADIENTS)


def _variable(growth: Growth) -> str:
    """The name that leads to what grew, whichever function it is in."""
    return variable_of(growth.holder.rpartition("().")[2])


def _is_large(trace: Trace, growth: Growth) -> bool:
    share = growth.size / max(trace.peak.allocated or 0, 1)
    kept = (growth.graph or growth.recorded) and bool(growth.holder)  # also after the cell
    return kept and growth.passes >= _MANY and share >= _MOST_OF_IT


def _built(lives: Lifetimes, cell: Code, growth: Growth) -> str:
    """The list that a comprehension, or list() of a generator, is building: nothing has a name for
    it as yet."""
    if not growth.rows:
        return ""
    if closed := _closed(lives, cell, growth):
        return closed
    frames = lives.frames(growth.rows[0])
    own = [frame.line for frame in frames if frame.filename == cell.cell.filename]
    lines = [*([] if growth.cell else [growth.line]), *own]
    if lives.of(Category.PARAMETER)[list(growth.rows)].any():
        lines.reverse()  # a model's own layers may be built by one, too
    for line in dict.fromkeys(lines):
        statement = cell.statement_at(line) if line else None
        if statement is None:
            continue
        given = statement.targets if isinstance(statement, ast.Assign) else ()
        named = "".join(f" ({cell.text(target)})" for target in given)
        if cell.nodes(*_BUILDING, within=statement):
            return f"what the comprehension in line {line} builds{named}"
        if cell.calls("list", "tuple", "dict", "sorted", within=statement):
            return f"the list that line {line} builds{named}"
    return ""


def _closed(lives: Lifetimes, cell: Code, growth: Growth) -> str:
    """The context manager that gave it back as the error left its block: no function's variables
    did, which live as long as the error, and have what was made last."""
    freed = lives.freed_line[list(growth.rows)]
    lines, counts = np.unique(freed[freed > 0], return_counts=True)
    statement = cell.statement_at(int(lines[0])) if len(lines) == 1 else None
    if not isinstance(statement, ast.With | ast.AsyncWith) or counts[0] < growth.passes - 1:
        return ""
    given = [cell.text(i.optional_vars) for i in statement.items if i.optional_vars]
    what = " and ".join(given) if given else "what is entered"
    return f"{what}, of the with in line {statement.lineno},"


def told(growth: Growth, build: str = "") -> str:
    """The evidence: "Memory grew by 14 MiB in each of 23 passes: outputs holds 322 MiB ...".

    build: what holds it, where the trace cannot say.
    """
    since = f" since pass {growth.first}" if growth.first > 1 else ""
    made = f"{growth.cell + ' ' if growth.cell else ''}line {growth.line}" if growth.line else ""
    passes = f"each of {growth.passes} passes" if growth.passes > 1 else f"1 of {growth.ran} passes"
    grew = f"Memory grew by {format_bytes(growth.each)} in {passes}{since}"
    size, holder = format_bytes(growth.size), named(growth) or build
    if not holder:
        what = "activations" if growth.graph else "results"
        return f"{grew}: {size} of {what}{f' of {made}' if made else ''} stayed."
    graph = ", with the graphs that they were computed by" if growth.graph else ""
    where = f", made in {made}" if made else ""
    return f"{grew}: {holder} holds {size}{where}{graph}."


def named(growth: Growth) -> str:
    """The holder as it is shown: "outs[*] in evaluate()"."""
    function, dot, rest = growth.holder.partition("().")
    return f"{rest} in {function}()" if dot and function.isidentifier() else growth.holder


def cure(growth: Growth) -> str:
    """What ends it, by what holds it."""
    holder = growth.holder.rpartition("().")[2]
    if growth.kind == HolderKind.CACHE.value:
        return "A cache keeps what it returned: leave it out for tensors, or call cache_clear()."
    if holder.endswith(GRADIENTS):
        return (
            "backward(create_graph=True) leaves gradients that hold the graph: use "
            "torch.autograd.grad(), or set the gradients to None after the step."
        )
    if growth.anew:
        return (
            "Where it is only collected: keep the pieces on the host (.cpu()) and join them once, "
            "after the loop. Where each pass reads all of it, such as a cache of keys and values, "
            "make it once in its full size, and write into it."
        ) + (
            f" {holder} also carries the graph of every pass: .detach() what goes into it."
            if growth.graph
            else ""
        )
    if growth.graph and holder and "[*]" not in holder:
        whole, places, _ = holder.partition(SEVERAL)
        detached = f"tuple(one.detach() for one in {whole})" if places else f"{holder}.detach()"
        return (
            f"{holder} goes on from pass to pass with its graph: take {detached} into the "
            "next pass, or .item() where only a number is wanted."
        )
    if growth.graph:
        return (
            "Keep .item() of a number, .detach() of a tensor: else each entry keeps its whole "
            "graph. Where tensors are only collected, .detach().cpu() frees the device of them."
        )
    return "Move what is kept to the host (.cpu()) in each pass, or keep only what is needed of it."
