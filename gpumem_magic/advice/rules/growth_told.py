"""What is told of a growth: how much it is, what holds it, and where it was made."""

from __future__ import annotations

import ast

import numpy as np

from gpumem_magic.advice.code import Code, called
from gpumem_magic.advice.rules.growth_cures import named
from gpumem_magic.advice.rules.kept_graph import has_no_graph
from gpumem_magic.units import format_bytes
from gpumem_magic.values.findings import Growth, Unit
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Stack

BUILDING = (ast.ListComp, ast.DictComp, ast.SetComp)
_ITEMS = ("elt", "value")
"""What a comprehension makes in each pass, as the tree calls it."""

_LISTED = 4
"""Lines that are told one by one."""

_CONTAINERS = ("list", "tuple", "dict", "set", "sorted", "collections.deque")


def told(together: list[Growth], build: str = "") -> str:
    """The evidence: "Memory grew by 14 MiB in each of 23 passes: outputs holds 322 MiB ...".

    build: what holds it, where the trace cannot say.
    """
    growth = max(together, key=lambda one: one.passes)
    made = _made(together)
    if growth.unit is not Unit.PASS:
        return _told_of_others(growth, made)
    since = f" since pass {growth.first}" if growth.first > 1 else ""
    passes = f"each of {growth.passes} passes" if growth.passes > 1 else f"1 of {growth.ran} passes"
    grew = f"Memory grew by {format_bytes(sum(one.each for one in together))} in {passes}{since}"
    size = format_bytes(sum(one.size for one in together))
    holder = " and ".join(named(one) for one in together if one.holder) or build
    if not holder:
        what = "activations" if all(one.graph for one in together) else "results"
        return f"{grew}: {size} of {what}{f' of {made}' if made else ''} stayed."
    graph = ", with their autograd graphs" if growth.graph else ""
    where = f", made in {made}" if made else ""
    holds = "holds" if len(together) == 1 else "hold"
    return f"{grew}: {holder} {holds} {size}{where}{graph}."


def entries(together: list[Growth]) -> str:
    """The evidence, of what no loop made: "experts[*] holds 48 MiB in 3 entries"."""
    growth, made = together[0], _made(together)
    entries = f" in {growth.passes} entries" if growth.passes > 1 else ""
    where = f", made in {made}" if made else ""
    return f"{named(growth)} holds {format_bytes(growth.size)}{entries}{where}."


def _made(together: list[Growth]) -> str:
    """Where it was made: "line 3", "In[2] lines 3 and 4"; "" where that is not known."""
    cell = together[0].cell
    lines = sorted({n for one in together for n in one.lines or (one.line,) if n})
    if not lines:
        return ""
    word = "line" if len(lines) == 1 else "lines"
    *others, last = map(str, lines)
    listed = f"{', '.join(others)} and {last}" if others else last
    if len(lines) > _LISTED:
        listed = f"{lines[0]}-{last}"
    return f"{f'{cell} ' if cell else ''}{word} {listed}"


def _told_of_others(growth: Growth, made: str) -> str:
    """The evidence for calls inside each other, and for modules."""
    each, size = format_bytes(growth.each), format_bytes(growth.size)
    if growth.unit is Unit.CALL:
        return (
            f"{growth.holder} calls itself ({made}): {growth.passes} calls were under way, which "
            f"hold {each} each, {size} in all."
        )
    where = f", made in {made}" if made else ""
    return f"{growth.passes} modules keep {each} each: {growth.holder} holds {size}{where}."


def built(lives: Lifetimes, cell: Code, growth: Growth) -> str:
    """The list that a comprehension, or list() of a generator, is building: nothing has a name for
    it as yet."""
    if not growth.rows:
        return ""
    if closed := _closed(lives, cell, growth):
        return closed
    frames = lives.frames(growth.rows[0])
    own = cell.lines_in(frames)
    lines = [*([] if growth.cell else [growth.line]), *own]
    let_go = _let_go(lives, growth)
    if not let_go:
        return ""
    # an error, or its end, lets go of what one builds where it is built
    lines = [let_go] if let_go in lines and _list_of(cell, let_go, growth) else lines
    said = (_list_of(cell, line, growth) for line in dict.fromkeys(lines) if line)
    return next(filter(None, said), "") or _mapped(cell, frames, own)


def _list_of(cell: Code, line: int, growth: Growth) -> str:
    """What a comprehension on that line builds, or a call that makes a list; "" without one, or
    where it is one of numbers and graphs are what grew."""
    statement = cell.statement_at(line)
    if statement is None:
        return ""
    given = statement.targets if isinstance(statement, ast.Assign) else ()
    named = "".join(f" ({cell.text(target)})" for target in given)
    building = cell.nodes(*BUILDING, within=statement)
    items = [part for n in building for name, part in ast.iter_fields(n) if name in _ITEMS]
    if items and growth.graph and all(has_no_graph(cell, item) for item in items):
        return ""
    if items:
        return f"what the comprehension in line {line} builds{named}"
    made = [called(call) for call in cell.calls(*_CONTAINERS, within=statement)]
    kind = made[0].replace("sorted", "list") if made else ""
    return f"the {kind} that line {line} builds{named}" if made else ""


def _let_go(lives: Lifetimes, growth: Growth) -> int:
    """The line of the cell that gave most of it back; 0 where none did, as something holds it."""
    lines, counts = np.unique(lives.freed_line[list(growth.rows)], return_counts=True)
    most = int(counts.argmax())
    return int(lines[most]) if 2 * counts[most] > counts.sum() else 0


def _mapped(cell: Code, frames: Stack, own: list[int]) -> str:
    """The call that let another thread make it: no frame of its line lies around it."""
    functions = {frame.function for frame in frames}
    for call in cell.calls(".map", ".submit"):
        given = call.args[0] if call.args else None
        if isinstance(given, ast.Name) and given.id in functions and call.lineno not in own:
            return f"what {cell.text(call.func)}() in line {call.lineno} gave"
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
