"""Tells the passes of a loop apart by what they allocated, what earlier ones left alive, and what
are copies."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.tree import (
    FUNCTIONS,
    Loop,
    defined,
    header,
    lines_of,
    plain_names,
    root,
    targets,
)
from gpumem_magic.values.findings import Growth, Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category, Frame

_WITHOUT_GRAPH = (".detach", ".item", ".tolist", ".numpy")
_ALWAYS_ALIVE = 2
"""Passes whose results a loop that keeps nothing holds at a time: of the pass before, until their
names get new values, and of the pass that runs."""

_LOADING = ("torch/serialization.py", "torch/_weights_only_unpickler.py")
"""Files of `torch.load()`."""


def passes_of(
    lives: Lifetimes, cell: Code, counts: Mapping[int, int], line: int, own: NDArray[np.bool_]
) -> int:
    """How often a line ran that made the storages `own`, on it or in a model called from it.

    Counted as the trace does, whose `counts` are by line, or by the rarest stack of its loop that
    came again and again: what a model does once in each pass, its head or a loss.
    """
    statement = cell.statement_at(line)
    if statement is None:
        return 0
    inner = np.unique(lives.line[own]).tolist()
    told = counts.get(line, 0) if line in inner else min(counts.get(n, 0) for n in inner)
    around = cell.loop(statement) or cell.function(statement) or statement
    lines = cell.calling_lines(lives)
    stacks = lives.stack[np.isin(lines, lines_of(around)) & lives.recorded]
    times = np.unique(stacks[stacks >= 0], return_counts=True)[1]
    often = times[times > _ALWAYS_ALIVE]
    return max(told, int(often.min()) if len(often) else 0)


def piled_up(lives: Lifetimes, own: NDArray[np.bool_], passes: int) -> NDArray[np.bool_]:
    """What passes before the last two made that was still alive at the peak.

    own: storages of one line, of which each pass made as many.
    """
    found = np.zeros(len(lives), bool)
    rows = np.flatnonzero(own)
    if passes <= _ALWAYS_ALIVE or len(rows) < passes:
        return found
    number = np.arange(len(rows)) * passes // len(rows)
    alive = lives.at_peak[rows]
    begun = lives.birth[rows] <= lives.peak_event
    if not begun.any():
        return found
    running = int(number[begun].max())
    found[rows[alive & (number <= running - _ALWAYS_ALIVE)]] = True
    return found


def carried_names(cell: Code, loop: Loop) -> set[str]:
    """Names that a pass of the loop takes from the one before: read before they are bound. A mere
    counter, `i += 1`, is none of them."""
    bound: set[str] = {*plain_names(loop.target)} if isinstance(loop, ast.For) else set()
    taken: set[str] = set()
    made: set[str] = set()
    for statement in (s for each in loop.body for s in cell.nodes(ast.stmt, within=each)):
        names = (n for part in header(statement) for n in cell.nodes(ast.Name, within=part))
        taken |= {name.id for name in names} - bound
        names_bound = {n for target in targets(statement) for n in plain_names(target)}
        added = statement.value if isinstance(statement, ast.AugAssign) else None
        taken |= names_bound - bound if added else set()
        bound |= names_bound
        made |= set() if isinstance(added, ast.Constant) else names_bound
    return taken & made


def passed_on(cell: Code, loop: Loop, statement: ast.stmt) -> set[str]:
    """Names that a statement of the loop gives values, and those that then mean the same, or a
    tuple of it: `state = (h, c)`."""
    found = defined(statement)
    later = (s for s in cell.nodes(ast.Assign, within=loop) if s.lineno > statement.lineno)
    for one in sorted(later, key=lambda s: s.lineno):
        parts = one.value.elts if isinstance(one.value, ast.Tuple | ast.List) else [one.value]
        if all(isinstance(part, ast.Name) and part.id in found for part in parts):
            found |= defined(one)
    return found


def computed_of(cell: Code, loop: Loop, statement: ast.stmt) -> set[str]:
    """Names that a statement of the loop gives values, and those that later ones compute of these,
    with their graphs."""
    found = defined(statement)
    later = (s for s in cell.nodes(ast.Assign, within=loop) if s.lineno > statement.lineno)
    for one in sorted(later, key=lambda s: s.lineno):
        ends = bool(cell.calls(*_WITHOUT_GRAPH, within=one))
        if not ends and cell.spoken(one.value) & found:
            found |= defined(one)
    return found


def computed_anew(cell: Code, found: Sequence[Growth]) -> set[str]:
    """Names of what each pass makes anew of a tensor that goes from pass to pass, and grows."""
    growing: set[str] = set()
    others: dict[str, set[str]] = {}
    for growth in found:
        name = growth.name
        statement, loop = cell.looped(growth.line, growth.cell)
        if not growth.anew or statement is None or loop is None or name not in defined(statement):
            continue
        if name in carried_names(cell, loop):
            growing.add(name)
        else:
            others[name] = cell.spoken(statement)
    computed: set[str] = set()
    while more := {n for n, read in others.items() if read & (growing | computed)} - computed:
        computed |= more
    return computed


def made_anew(cell: Code, name: str) -> bool:
    """Whether loops give the name a value in each pass, and none takes it from the pass before."""
    loops = {loop for statement in cell.assigned(name) if (loop := cell.loop(statement))}
    return bool(loops) and not any(name in carried_names(cell, loop) for loop in loops)


def grown(cell: Code, trace: Trace) -> tuple[Growth, ...]:
    """What grew in passes, rather than in one pass through the blocks of a model, each of which has
    weights of its own: `for block in blocks: x = block(x)`."""
    return tuple(one for one in trace.growth if not _is_of_blocks(cell, trace.lives, one))


def _is_of_blocks(cell: Code, lives: Lifetimes, growth: Growth) -> bool:
    statement, loop = cell.looped(growth.line, growth.cell)
    if statement is None or not isinstance(loop, ast.For) or not growth.graph or growth.anew:
        return False
    made = {growth.name} if growth.name.isidentifier() else set[str]()
    made |= computed_of(cell, loop, statement) if made or not growth.holder else set()
    if not made & carried_names(cell, loop):
        return False
    own = {*plain_names(loop.target)}
    called = (call.func for call in cell.nodes(ast.Call, within=loop))
    if any(isinstance(each, ast.Name) and each.id in own for each in called):
        return True
    places = cell.nodes(ast.Subscript, within=loop)
    chosen = [one.value for one in places if getattr(one.slice, "id", "") in own]
    texts = {cell.text(each) for each in (*cell.nodes(ast.Name, within=loop.iter), *chosen)}
    weights = lives.of(Category.PARAMETER)
    return any((weights & lives.named(f"{text}[")).any() for text in texts)


def is_of_last_pass(cell: Code, lives: Lifetimes, growth: Growth, found: Sequence[Growth]) -> bool:
    """Whether each pass gives its holder another value, while more was left elsewhere by the same
    line, or before all of this: what the pass that ran when memory was full had made by then."""
    began = _began(lives, growth)
    more = any(
        (one.line, one.cell) == (growth.line, growth.cell) or _began(lives, one) < began
        for one in found
        if one.size > growth.size
    )
    return more and made_anew(cell, growth.holder.partition(".")[0].partition("[")[0])


def _began(lives: Lifetimes, growth: Growth) -> int:
    return int(lives.birth[list(growth.rows)].min(initial=lives.events))


def carried_attributes(cell: Code) -> set[str]:
    """Attributes of objects that a method makes anew of what they were, "self.queue", and names
    that a function makes so for others: `nonlocal total`."""
    found: set[str] = set()
    for function in cell.nodes(*FUNCTIONS):
        if not isinstance(function, FUNCTIONS) or function.name == "__init__":
            continue  # they were nothing
        arguments = function.args.args if isinstance(cell.parent(function), ast.ClassDef) else []
        own = arguments[0].arg if arguments else "self"
        outer = {n for s in cell.nodes(ast.Nonlocal, within=function) for n in s.names}
        outer |= {n for s in cell.nodes(ast.Global, within=function) for n in s.names}
        each: list[ast.Attribute | ast.Name] = [
            *(n for n in cell.nodes(ast.Attribute, within=function) if root(n) == own),
            *(n for n in cell.nodes(ast.Name, within=function) if n.id in outer),
        ]
        changed = cell.nodes(ast.AugAssign, within=function)
        found |= {n.target.id for n in changed if isinstance(n.target, ast.Name)} & outer
        stored, read = (
            {cell.text(n) for n in each if isinstance(n.ctx, kind)}
            for kind in (ast.Store, ast.Load)
        )
        found |= stored & read
    return found


def copied(lives: Lifetimes) -> NDArray[np.bool_]:
    """Which storages `copy.deepcopy()` made."""
    return _made_in(lives, lambda f: f.function == "deepcopy" and f.filename.endswith("copy.py"))


def is_after_training(cell: Code, line: int | None) -> bool:
    """Whether a line runs once, below all that goes backward, none of which lies in a
    function: the graph that it records waits for no backward pass of this cell."""
    statement, loop = cell.looped(line)
    calls = [*cell.calls(".backward")]
    if statement is None or not calls or loop or cell.function(statement):
        return False
    return all(call.lineno < statement.lineno and cell.function(call) is None for call in calls)


def loaded(lives: Lifetimes) -> NDArray[np.bool_]:
    """Which storages `torch.load()` made."""
    return _made_in(lives, lambda f: f.filename.endswith(_LOADING))


def _made_in(lives: Lifetimes, matches: Callable[[Frame], bool]) -> NDArray[np.bool_]:
    """Which storages were made inside such a call."""
    by_stack = [any(map(matches, stack)) for stack in lives.stacks]
    return np.array([*by_stack, False], bool)[lives.stack]


def stores_by_key(code: Code, word: str) -> bool:
    """Whether results are put under keys into what is called so, as into a memory bank:
    `bank[index] = features`."""
    places = (n for n in code.nodes(ast.Subscript) if isinstance(n.ctx, ast.Store))
    names = (place.value for place in places)
    return any(getattr(n, "attr", getattr(n, "id", "")) == word for n in names)
