"""What ends a growth: by what holds it, and by what goes backward through it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.accumulations import (
    Accumulation,
    divisor_of,
    find_accumulations,
    goes_on,
)
from gpumem_magic.advice.evidence.gradient_flow import GradientFlow, goes_backward
from gpumem_magic.advice.evidence.passes import carried_names, copied, stores_by_key
from gpumem_magic.advice.evidence.unused_graphs import if_untrained
from gpumem_magic.advice.rule import Case
from gpumem_magic.advice.rules.growth_cycles import asks_for_graph, cycled, of_gradients
from gpumem_magic.advice.rules.growth_elsewhere import came_of, of_libraries
from gpumem_magic.advice.rules.growth_hooks import of_hooks
from gpumem_magic.advice.tree import CHANGING, Loop, defined, header, targets
from gpumem_magic.trace.growth.entries import are_models
from gpumem_magic.trace.growth.ways import GRADIENTS, SEVERAL, without_places
from gpumem_magic.values.findings import Growth
from gpumem_magic.values.inventory import HolderKind
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.recording import Category

_ADDS_UP = (
    "{call} comes after these passes, so the graphs of all of them wait for it: call it in each "
    "pass, which frees that pass's graph and adds up the same gradients; or let the loop be "
    "shorter."
)
_DETACHED = (
    "Keep .item() of a number, .detach() of a tensor: else each entry keeps its whole graph."
)
COLLECTED = " Where tensors are only collected, .detach().cpu() frees the device of them."
_LATER = (
    "{call} goes through what these passes left, and comes after all of them, so their graphs wait "
    "for it: call it after fewer passes; or keep what each was computed from, without a graph, and "
    "compute it again there, in pieces that each go backward."
)
_THROUGH = (
    "{name} goes on from pass to pass with its graph, and {call} goes through all of them: make "
    "fewer passes, {name}.detach() it every few, or compute each again in the backward pass "
    "(torch.utils.checkpoint)."
)
_SECOND = (
    " create_graph=True makes the graph of each pass's gradients a part of that: where the first "
    "order is enough (FOMAML), leave it out."
)
_USED = (
    "{call} has gone through what earlier passes left, and it is kept with its graph all the same: "
)
_EMPTY = "empty {name} after each step, or .detach() what later passes only read."
_DETACH = ".detach() what is put into {name}, which later passes only read."
_ELSEWHERE = (
    "That loop keeps results with their graphs: .detach() what is collected, or goes on into the "
    "next pass, .item() where only a number is wanted; where nothing is trained, torch.no_grad() "
    "around it records none."
)
_COPIES = (
    "These are copies by deepcopy(), made where the model is. What is only kept to be loaded or "
    "returned later may wait on the host, each tensor's .cpu(), as in {name: tensor.cpu() for "
    "name, tensor in model.state_dict().items()}; of the best so far one is enough."
)
_HOOKS = (
    "Hooks stay until they are removed, and all of them run: register them once, before the loop, "
    "or remove() those of a pass when it is over (hook = module.register_forward_hook(...); "
    "hook.remove())."
)
_OF_KINDS = {
    HolderKind.CACHE.value: "A cache keeps what it returned: leave it out for tensors, or call "
    "cache_clear().",
    HolderKind.EXCEPTION.value: "An error keeps what it was given, and the variables of all "
    "functions that it went through: keep its text instead, str(error) or traceback.format_exc().",
    HolderKind.CYCLE.value: "Nothing but these objects leads to them, each to the next and back to "
    "the first, so they stay until Python looks for such circles: gc.collect() after each pass, or "
    "break it (del self.callback, weakref.proxy(self)).",
    HolderKind.GENERATOR.value: "A generator that has not come to its end keeps its function's "
    "variables: run it to the end, or close() it; keep what it gives rather than the generator.",
}
_OF_EACH = " (of each part, where it is a tuple)"
_VIEWS = (
    "{name} keeps views, and each keeps all of the tensor that it is a small part of: .clone() "
    "keeps that part alone, and .cpu() copies it to the host."
)
_LITTLE = 4
"""Times that a storage is larger than what a view shows of it, from which that is worth a word."""

_GRAD = ("torch.autograd.grad",)
_TWICE = (
    " create_graph=True keeps the graph of the gradients, too: leave it out where nothing "
    "differentiates them."
)


def change(case: Case, growth: Growth) -> str:
    """What to do about it, in words."""
    code, trace = case.cell.joined() or (case.cell, case.trace)
    whole = Case(trace, code, case.names)
    held = _held(whole, growth)
    if told := _of_backward(whole, growth, held):
        return told
    if growth.rows and copied(case.lives)[list(growth.rows)].all():
        return _COPIES
    if came_of(case.lives, case.cell, growth):
        return _ELSEWHERE
    if told := of_libraries(case.lives, code, growth):
        return told
    if _are_views(growth):
        return _VIEWS.format(name=_name(growth))
    cure = _cure(whole, cycled(whole, growth), held)
    return untrained(case, growth, cure + of_hooks(code, growth))


def _are_views(growth: Growth) -> bool:
    """Whether what is kept shows little of the storages that it holds."""
    return 0 < _LITTLE * growth.shown <= growth.size and not growth.graph


def untrained(case: Case, growth: Growth, cure: str) -> str:
    """The cure, and what there is to say of a graph that no backward pass goes through: first,
    unless the text has one that may have been to come."""
    graphs = growth.graph and not growth.anew
    told = if_untrained(case.lives, case.names) if graphs else ""
    code, _ = case.cell.joined() or (case.cell, case.trace)
    said = (cure, told) if code.calls(".backward") else (told, cure)
    return " ".join(filter(None, said))


@dataclass(frozen=True, slots=True)
class _Held:
    """What grew, in the text: the word that it is held by, an attribute's or a variable's, the
    lines that made it and the loops around these. carried: a loop makes each pass's of the one
    before."""

    word: str
    kind: type[ast.Attribute] | type[ast.Name]
    lines: frozenset[int]
    loops: tuple[Loop, ...]
    carried: bool


def _of_backward(case: Case, growth: Growth, held: _Held) -> str:
    """What to do where a backward pass goes, or went, through what is held; "" where none does."""
    if not growth.graph or not growth.rows or growth.holder.endswith(GRADIENTS):
        return ""
    call = _backward_through(case, held)
    if call is None:
        return ""
    words = {"call": _called(case.cell, call), "name": _name(growth)}
    if not _waits(case.lives, growth):
        kept = "[*]" in growth.holder and not held.carried and _keeps_graph(call)
        cure = _DETACH if stores_by_key(case.cell, held.word) else _EMPTY
        return (_USED + cure).format(**words) if kept else ""
    if growth.anew:
        return _LATER.format(**words)
    if held.carried:
        return _THROUGH.format(**words) + (_SECOND if _gradients_within(case, held) else "")
    adds_up = any(_adds_up(case.cell, held.word, loop) for loop in held.loops)
    adds_up &= not any(_reads_the_last(case.cell, held, loop) for loop in held.loops)
    return (_ADDS_UP if adds_up else _LATER).format(**words)


def _keeps_graph(call: ast.Call) -> bool:
    """Whether it leaves the graphs that it goes through: else those that are there it did not."""
    return any(keyword.arg in ("retain_graph", "create_graph") for keyword in call.keywords)


def _held(case: Case, growth: Growth) -> _Held:
    code = case.cell
    lines = lines_of_makers(code, case.lives, growth.rows)
    made = (code.statement_at(line) for line in sorted(lines))
    loops = dict.fromkeys(code.loop(s) for s in made if s is not None)
    way = without_places(growth.holder)
    words = re.findall(r"\w+", way)
    kind = ast.Attribute if re.search(r"(?<!closure)(?<!\(\))\.\w+$", way) else ast.Name
    around, word = tuple(loop for loop in loops if loop), words[-1] if words else ""
    taken = (loop for loop in around if word in carried_names(code, loop))
    carried = any(not _gathers(code, word, loop) for loop in taken)
    return _Held(word, kind, frozenset(lines), around, carried)


def lines_of_makers(code: Code, lives: Lifetimes, rows: Sequence[int]) -> set[int]:
    """The text's lines that were running when these storages were made."""
    stacks, own = {int(lives.stack[row]) for row in rows}, code.cell.filename
    return {f.line for n in stacks for f in lives.stacks[n] if f.filename == own}


def _name(growth: Growth) -> str:
    """The container, without the places in it; the name alone, also of a closure's."""
    holder = growth.holder.rpartition(": closure.")[2]
    return holder.rpartition("().")[2].removesuffix("[*]")


def _backward_through(case: Case, held: _Held) -> ast.Call | None:
    """A call of backward() that goes through what is held."""
    flow = GradientFlow(case.cell, case.names)
    for call in case.cell.calls(".backward"):
        behind = flow.origin(goes_backward(call)).statements
        if any(_gives(statement, held) for statement in behind):
            through = {*behind, case.cell.statement(call)}
            if not held.word or any(_reads(case.cell, held.word, s) for s in through):
                return call
    return None


def _reads(code: Code, word: str, statement: ast.stmt) -> bool:
    """Whether a statement reads what the word means, other than to put something into it."""
    nodes: list[ast.Name | ast.Attribute] = []
    for value in header(statement):
        nodes += [*code.nodes(ast.Name, within=value), *code.nodes(ast.Attribute, within=value)]
    return any(
        getattr(node, "attr", getattr(node, "id", "")) == word
        and not (isinstance(above := code.parent(node), ast.Attribute) and above.attr in CHANGING)
        for node in nodes
        if isinstance(node.ctx, ast.Load)
    )


def _gives(statement: ast.stmt, held: _Held) -> bool:
    """Whether a statement gives what is held its value, or puts something into it."""
    if not held.word:
        return statement.lineno in held.lines and not hasattr(statement, "body")
    given = [t for target in targets(statement) for t in _filled(target, statement)]
    nodes = (n for target in given for n in ast.walk(target) if isinstance(n, held.kind))
    return held.word in {getattr(node, "attr", getattr(node, "id", "")) for node in nodes}


def _filled(target: ast.expr, statement: ast.stmt) -> list[ast.expr]:
    """The parts of a target that an assignment does not give an empty container or a constant."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = [*zip(target.elts, value.elts, strict=False)]
    return [to for to, of in pairs if of is None or any(map(_is_something, ast.walk(of)))]


def _is_something(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Call)


def _waits(lives: Lifetimes, growth: Growth) -> bool:
    """Whether no backward pass ended since the first of it was made."""
    begun = _in_backward(lives)[lives.stack] & (lives.birth >= 0)
    last = lives.birth.argmax()
    if begun[last]:  # memory ran out in that one
        begun &= lives.step != lives.step[last]
    first = lives.birth[list(growth.rows)].min()
    return bool(first > lives.birth[begun].max(initial=-1))


def _in_backward(lives: Lifetimes) -> NDArray[np.bool_]:
    """For each stack, and for none, whether backward() ran, rather than torch.autograd.grad()."""
    files = ("torch/_tensor.py", "torch/autograd/__init__.py")
    found = [
        any(f.function == "backward" and f.filename.endswith(files) for f in stack)
        for stack in lives.stacks
    ]
    return np.array([*found, False], bool)


def _gathers(code: Code, word: str, loop: Loop) -> bool:
    """Whether the loop adds results up under that word, or collects them, rather than goes on from
    what it was."""
    return any(
        one.goes_into(word)
        and (one.sums or not one.binds)
        and not (one.sums and goes_on(code, one))
        for one in _inside(code, loop)
    )


def _inside(code: Code, loop: Loop) -> Iterable[Accumulation]:
    return (one for one in find_accumulations(code) if code.inside(one.statement, loop))


def _adds_up(code: Code, word: str, loop: Loop) -> bool:
    """Whether what is held is a sum, or the sum or mean of it is all that anything asks for."""
    if any(one.sums and one.target == word for one in _inside(code, loop)):
        return True
    above = (node for read in code.reads(word) for node in code.ancestors(read))
    return isinstance(loop, ast.For) and any(
        divisor_of(code, node, word, True) is not None
        for node in above
        if isinstance(node, ast.expr)
    )


def _reads_the_last(code: Code, held: _Held, loop: Loop) -> bool:
    """Whether a loop takes what it collects of each pass into the next, by another name."""
    names = carried_names(code, loop) - {held.word}
    kept = (one for one in _inside(code, loop) if not one.sums)
    return any(isinstance(one.value, ast.Name) and one.value.id in names for one in kept)


def _called(code: Code, call: ast.Call) -> str:
    function = code.function(call)
    within = f" in {function.name}()" if function is not None else ""
    return f"backward(){within} ({code.place(call.lineno)})"


def _is_differentiated_for_nothing(case: Case, held: _Held) -> bool:
    """Whether gradients with a graph go into what is held, and nothing goes backward through
    them."""
    within = _gradients_within(case, held)
    ends = (value for call in case.cell.calls(".backward") for value in goes_backward(call))
    flow = GradientFlow(case.cell, case.names)
    return bool(within and within - flow.origin(ends).statements)


def _gradients_within(case: Case, held: _Held) -> set[ast.stmt]:
    """The statements that compute gradients with a graph which go into what is held."""
    code, flow = case.cell, GradientFlow(case.cell, case.names)
    asked = {code.statement(call) for call in asks_for_graph(code, *_GRAD)}
    if not asked:
        return set()
    given = (s for s in code.nodes(ast.stmt) if _gives(s, held))
    return asked & flow.origin([value for s in given for value in header(s)]).statements


def named(growth: Growth) -> str:
    """The holder as it is shown: "outs[*] in evaluate()"."""
    function, dot, rest = growth.holder.partition("().")
    return f"{rest} in {function}()" if dot and function.isidentifier() else growth.holder


def _is_joined(code: Code, held: _Held) -> bool:
    """Whether a comprehension makes all of it, outside of all loops, and what is made of that gets
    its name: nothing goes on from pass to pass."""
    made = [s for s in code.nodes(ast.stmt) if s.lineno in held.lines]
    return (
        not held.loops
        and any(held.word in defined(statement) for statement in made)
        and any(code.nodes(ast.ListComp, ast.GeneratorExp, within=s) for s in made)
    )


def _too(code: Code, held: _Held) -> str:
    """What is collected goes on into the next pass as well, with its graph."""
    for loop in held.loops:
        for one in _inside(code, loop):
            name = one.value.id if isinstance(one.value, ast.Name) else ""
            if one.goes_into(held.word) and name in carried_names(code, loop):
                return f" {name} goes on from pass to pass, too: .detach() it there."
    return ""


def _cure(case: Case, growth: Growth, held: _Held) -> str:
    """What ends it, by what holds it."""
    holder = growth.name
    if growth.kind == HolderKind.HOOK.value and holder.endswith("hooks[*]"):
        return _HOOKS
    failed = growth.kind == HolderKind.EXCEPTION.value and holder != growth.holder
    if growth.kind in _OF_KINDS and not failed:  # a function's variable is no error's
        return _OF_KINDS[growth.kind]
    if holder.endswith(GRADIENTS):
        return of_gradients(case.cell)
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
    goes_on = held.carried or not (holder.endswith("[*]") or _is_joined(case.cell, held))
    if growth.graph and holder and goes_on:
        name = _name(growth)
        whole, places, _ = name.partition(SEVERAL)
        if holder.endswith("[*]"):
            taken = ".detach() of what is in it"
        elif places:
            taken = f"tuple(one.detach() for one in {whole})"
        else:
            taken = f"{name}.detach(){'' if growth.kind else _OF_EACH}"
        return (
            f"{name} goes on from pass to pass with its graph: take {taken} into the next pass, or "
            ".item() where only a number is wanted."
        ) + (_TWICE if _is_differentiated_for_nothing(case, held) else "")
    if growth.graph:
        return f"{_DETACHED}{COLLECTED}{_too(case.cell, held)}"
    rows = np.array(growth.rows, np.int64)
    if are_models(case.lives, rows[case.lives.of(Category.PARAMETER)[rows]]):
        return (
            "Models that are done with may wait on the host: model.cpu() before the next is made, "
            "without gradients (zero_grad()) and without its optimizer."
        )
    return "Move what is kept to the host (.cpu()) in each pass, or keep only what is needed of it."
