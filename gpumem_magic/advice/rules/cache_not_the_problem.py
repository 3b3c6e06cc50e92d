"""`empty_cache()` where it cannot help."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import ClassVar

import numpy as np

from gpumem_magic.advice.code import Code, Loop
from gpumem_magic.advice.rewrite import UnsafeError, remove
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Edit, Example, Kind, Known
from gpumem_magic.values.findings import OutOfMemory, Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category

_CALLS = (
    *("torch.cuda.empty_cache", "torch.cuda.memory.empty_cache"),
    *("torch.accelerator.empty_cache", "torch.accelerator.memory.empty_cache"),
)
_ALIKE = 0.9
"""Share of a loop's bytes that must come in sizes it asks for again and again."""

_MODEL = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(6)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(3, 512, 1024)
"""


class CacheNotTheProblem(Rule):
    """`torch.cuda.empty_cache()` in a loop, or against one's own running out of memory.

    PyTorch keeps freed memory to hand it out again, which costs nothing. `empty_cache()` gives it
    back to the driver, and the next iteration has to ask for it anew: each call waits for the
    device, and each new segment is a `cudaMalloc`. It frees no tensor, so it lowers no peak of
    allocated memory; and before PyTorch reports that it is out of memory it has given the cache
    back by itself. It does help where another process needs the memory, and once between two phases
    of a program that ask for very different sizes.
    """

    name: ClassVar[str] = "cache-not-the-problem"
    problem: ClassVar[str] = "empty_cache() is called where it saves nothing"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            ("    torch.cuda.empty_cache()\n", ""),
            setup=_MODEL,
            before="""\
for batch in data:
    optimizer.zero_grad()
    loss = model(batch.cuda()).square().mean()
    loss.backward()
    optimizer.step()
    torch.cuda.empty_cache()
""",
            results=("loss",),
        ),
        mended(
            ("        torch.cuda.empty_cache()\n", ""),
            setup=_MODEL,
            before="""\
import gc

def evaluate(model, batches):
    losses = []
    for batch in batches:
        with torch.no_grad():
            losses.append(model(batch.to("cuda")).square().mean().item())
        gc.collect()
        torch.cuda.empty_cache()
    return sum(losses) / len(losses)

mean = evaluate(model, data)""",
            results=("mean",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        for call in cell.calls(*_CALLS):
            if _cleans_up(cell, call):
                continue
            loop = _loop_around(cell, call)
            if loop is not None and not _asked_again(trace, call.lineno):
                continue
            if loop is not None and _repeats(loop, cell, lives):
                advice = self._in_loop(call.lineno, _given_back(trace, call.lineno))
                yield self.propose(cell, advice, partial(_without, cell, call))
            elif loop is None and trace.oom is not None and _came_before(trace.oom, call, cell):
                yield self._as_cure(call.lineno, trace.oom)

    def _in_loop(self, line: int, given_back: int) -> Advice:
        cost = "each call waits for the device"
        if given_back:
            cost = (
                f"its calls gave {format_bytes(given_back)} back to the driver, which the loop had "
                "to ask for again, and each waited for the device"
            )
        return Advice(
            self.name,
            problem=f"line {line} empties the cache in every iteration: {cost}.",
            change=(
                f"Remove the call on line {line}: it frees no tensor, the peak is the same without "
                "it. It is worth its time once, before another process needs the memory or before "
                "a phase that asks for quite other sizes."
            ),
            line=line,
            size=given_back or None,
            saving=0,
            known=Known.EXACT,
        )

    def _as_cure(self, line: int, oom: OutOfMemory) -> Advice:
        where = f" on line {oom.line}" if oom.line else ""
        held = sum(oom.held.values())
        return Advice(
            self.name,
            problem=(
                f"line {line} empties the cache, and the cell runs out of memory{where} all the "
                f"same: {format_bytes(held)} are held by tensors, which no cache is."
            ),
            change=(
                f"Remove the call on line {line}: PyTorch gives its cache back by itself before it "
                "fails. What helps is to let go of tensors, or to need fewer."
            ),
            line=line,
            size=held or None,
            saving=0,
            known=Known.EXACT,
        )


def _cleans_up(cell: Code, call: ast.Call) -> bool:
    """Whether the call lets go of an attempt that failed, or may have failed."""
    for above in cell.ancestors(call):
        if isinstance(above, ast.ExceptHandler):
            return True
        if isinstance(above, ast.Try) and above.handlers:
            last = (node for statement in above.finalbody for node in ast.walk(statement))
            if any(node is call for node in last):
                return True
    return False


def _loop_around(cell: Code, call: ast.Call) -> Loop | None:
    """The loop that a call stands in, or that calls the function which it stands in."""
    loop, function = cell.loop(call), cell.function(call)
    if loop is not None or function is None:
        return loop
    callers = (*cell.calls(function.name), *cell.calls(f".{function.name}"))
    loops = (cell.loop(caller) for caller in callers if cell.function(caller) is not function)
    return next((around for around in loops if around is not None), None)


def _without(cell: Code, call: ast.Call) -> tuple[Edit, ...]:
    statement = cell.statement(call)
    if not isinstance(statement, ast.Expr) or statement.value is not call:
        raise UnsafeError("the call is part of another statement")
    return remove(cell, statement)


def _repeats(loop: Loop, cell: Code, lives: Lifetimes) -> bool:
    """Whether the loop asks for the same sizes again and again: then its cache is of use to it."""
    inside = cell.born_in(loop, lives) & (lives.birth >= 0)
    inside &= ~lives.of(Category.WORKSPACE, Category.OPTIMIZER_STATE, Category.GRADIENT)
    if (inside & lives.of(Category.PARAMETER)).any():
        return False  # another model in each iteration
    size = lives.size[inside]
    places = Counter(zip(lives.line[inside].tolist(), size.tolist(), strict=True))
    again = sum(each * count for (_, each), count in places.items() if count > 1)
    return bool(again >= _ALIKE * int(size.sum()) > 0)


def _given_back(trace: Trace, line: int) -> int:
    """Bytes by which reserved memory shrank on the line, as far as the timeline shows them."""
    change = np.diff(trace.timeline.reserved)
    here = trace.timeline.line[1:] == line
    return -int(change[here & (change < 0)].sum())


def _asked_again(trace: Trace, line: int) -> bool:
    """Whether memory was reserved anew after the line gave some back, or it never gave any: a loop
    that ran once had nothing to ask for again."""
    change = np.diff(trace.timeline.reserved)
    given = np.flatnonzero((trace.timeline.line[1:] == line) & (change < 0))
    return not len(given) or bool((change[given[0] :] > 0).any())


def _came_before(oom: OutOfMemory, call: ast.Call, cell: Code) -> bool:
    """Whether the call surely ran before the failure: both stand in the cell's own block."""
    statement = cell.statement(call)
    return oom.line is not None and statement in cell.tree.body and call.lineno < oom.line
