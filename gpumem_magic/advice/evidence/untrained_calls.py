"""Calls of models that a training step goes backward through, and whose optimizer leaves them; and
gradients that one pass makes and the next zero_grad() throws away."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code, called
from gpumem_magic.advice.evidence.definitions import Definitions, names_in
from gpumem_magic.advice.evidence.gradient_flow import GradientFlow, goes_backward, with_graph
from gpumem_magic.advice.evidence.training_code import (
    find_built,
    find_steps,
    reads_gradients,
    receiver,
)
from gpumem_magic.advice.tree import header, lines_of, parameters
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_MOVES = frozenset({"to", "cuda", "eval", "train", "half", "float", "bfloat16"})
_PARAMETERS = (".parameters", ".named_parameters")


@dataclass(frozen=True, slots=True)
class UntrainedCall:
    """A call of `model` whose graph `backward` goes through, though the step after it, of these
    optimizers, does not change the model, nor anything that the call is given. alone: nothing else
    of the call's statement needs a graph. needed: a later backward pass has a use for its graph."""

    call: ast.Call
    model: str
    backward: ast.Call
    optimizers: tuple[str, ...]
    alone: bool
    needed: bool


def untrained_calls(cell: Code, lives: Lifetimes, names: Names) -> Iterator[UntrainedCall]:
    """Such calls, by the backward pass that reaches them: as the cell's text says, which counts
    what it cannot follow as trained."""
    if reads_gradients(cell):
        return
    stepped = _stepped(cell, names)
    built = {one for group in stepped.values() for one in group}
    trained = {one: trained_words(cell, names, one) for one in built}
    if not _calls_others(cell, names, [words for words in trained.values() if words]):
        return
    flow, known = GradientFlow(cell, names), _parameter_words(lives)
    later: set[ast.stmt] = set()
    for backward in reversed(cell.calls(".backward")):
        own = cell.statement(backward)
        reached = flow.origin(goes_backward(backward)).statements
        optimizers = tuple(dict.fromkeys(stepped.get(backward, ())))
        words = [trained[optimizer] for optimizer in optimizers]
        if words and all(words):
            step = _TrainingStep(cell, names, flow, set().union(*words), known)
            for statement in sorted({*reached} | {own}, key=lambda s: s.lineno):
                for call, model in step.untrained(statement):
                    alone = not step.needs_graph(header(statement))
                    needed = statement in later
                    yield UntrainedCall(call, model, backward, optimizers, alone, needed)
        later |= reached  # a graph that is told of, or that a later pass has a use for


def _stepped(cell: Code, names: Names) -> dict[ast.Call, list[str]]:
    """The optimizers whose steps come next after each backward pass, in its function."""
    places: list[tuple[int, bool, ast.AST | None, ast.Call | str]] = [
        *((s.line, True, cell.function(s.statement), s.optimizer) for s in find_steps(cell, names)),
        *((c.lineno, False, cell.function(c), c) for c in cell.calls(".backward")),
    ]
    found: dict[ast.Call, list[str]] = {}
    waiting: dict[ast.AST | None, list[ast.Call]] = defaultdict(list)
    run: dict[ast.AST | None, list[str]] = {}
    for _, _, function, one in sorted(places, key=lambda place: place[:2]):
        if isinstance(one, ast.Call):
            waiting[function].append(one)
            continue
        if before := waiting.pop(function, None):
            run[function] = []
            found |= dict.fromkeys(before, run[function])
        run.setdefault(function, []).append(given_for(cell, function, one))
    return found


def given_for(cell: Code, function: ast.AST | None, name: str) -> str:
    """What a function is given for a parameter, where all calls of it say the same."""
    if not isinstance(function, ast.FunctionDef) or name not in parameters(function):
        return name
    place = parameters(function).index(name)
    given: set[str] = set()
    for call in cell.calls_of(function.name):
        values = [k.value for k in call.keywords if k.arg == name] or call.args[place:][:1]
        given.update(cell.text(value) for value in values)
    return given.pop() if len(given) == 1 else name


def _parameter_words(lives: Lifetimes) -> list[set[str]]:
    """The words of each parameter's name: {"trainer", "gen", "0", "weight"}."""
    rows = np.unique(lives.label[lives.of(Category.PARAMETER) & (lives.label >= 0)])
    return [words_of(lives.labels[label].name or "") for label in rows.tolist()]


def trained_words(cell: Code, names: Names, optimizer: str) -> set[str]:
    """The words of the models, or of the tensors, that an optimizer was given; empty where that is
    not known."""
    built = [one.call for one in find_built(cell) if one.target == optimizer]
    if not built:
        facts = names.optimizers.get(optimizer)
        size = facts.parameters if facts else 0
        alike = {n for n, m in names.modules.items() if size and m.optimized == m.trainable == size}
        return alike if len(alike) == 1 else set()  # of several by their size alone it is any
    found: set[str] = set()
    for one in built:
        if tensors := _listed(cell, names, one):
            found |= tensors
            continue
        calls = [c for c in cell.calls(*_PARAMETERS) if cell.inside(c, one)]
        told = {name for call in calls for name in names_in(call)}
        used = cell.nodes(ast.Name, within=one.args[0] if one.args else one)
        told |= {n.id for n in used if isinstance(n.ctx, ast.Store)}
        libraries = ("torch", "itertools", "list", "filter", "lambda")
        if not calls or any(
            n.id not in told and not cell.dotted(n).startswith(libraries) for n in used
        ):
            return set()
        found |= {word for call in calls for word in words_of(receiver(call, cell))}
    return found


def _listed(cell: Code, names: Names, built: ast.Call) -> set[str]:
    """The names in a list of tensors that an optimizer is given: `Adam([image])`."""
    given = built.args[0] if built.args else None
    items = given.elts if isinstance(given, (ast.List, ast.Tuple)) else []
    listed = {cell.text(item) for item in items}
    return listed if listed <= names.tensors.keys() else set()


def _calls_others(cell: Code, names: Names, trained: list[set[str]]) -> bool:
    """Whether the cell calls anything known that not all of these optimizers change: a first look
    at a long cell, most of which call only the one model that they train."""
    definitions = cell.once(Definitions)
    for function in (call.func for call in cell.nodes(ast.Call)):
        if isinstance(function, ast.Name):
            known = function.id in names.modules
        else:
            known = isinstance(function, ast.Attribute) and bool(
                definitions.of_attribute(function.attr)
            )
        if known and not all(words_of(cell.text(function)) & words for words in trained):
            return True
    return False


def words_of(text: str) -> set[str]:
    """The words of a name, whatever the places in it: {"model", "0", "weight"}."""
    return {*text.replace("[", ".").replace("]", "").split(".")} - {"self"}


@dataclass(frozen=True, slots=True)
class _TrainingStep:
    """Which calls belong to a step that trains these words' models. known: the words of each
    parameter's name."""

    cell: Code
    names: Names
    flow: GradientFlow
    trained: set[str]
    known: list[set[str]]

    def untrained(self, statement: ast.stmt) -> Iterator[tuple[ast.Call, str]]:
        """Calls of models in a statement that the step has no use for the graph of."""
        for call in (c for part in header(statement) for c in with_graph(part)):
            if isinstance(call, ast.Call) and isinstance(call.func, (ast.Name, ast.Attribute)):
                model = self.cell.text(call.func)
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                if self._is_left_out(call.func, model) and not self.needs_graph(given):
                    yield call, model

    def _is_left_out(self, function: ast.expr, model: str) -> bool:
        if words_of(model) & self.trained:
            return False
        if isinstance(function, ast.Attribute):
            if self.cell.once(_speaks_of_freezing):
                return False
            if any(function.attr in words for words in self.known):
                return self._lies_apart(function.attr)
            assigned = self.cell.once(Definitions).of_attribute(function.attr)
            values = [s.value for s in assigned if isinstance(s, ast.Assign)]
            plain = bool(values) and len(values) == len(assigned)
            return plain and all(map(self._is_new_model, values))
        facts = self.names.modules.get(model)
        around = self.cell.function(function)
        if facts is None or not facts.trainable or (around and model in parameters(around)):
            return False
        others = {*self.names.optimizers, *(one.target for one in find_built(self.cell))}
        own = any(model in trained_words(self.cell, self.names, other) for other in others)
        return own or (not facts.optimized and self._are_models(self.trained))

    def _lies_apart(self, attribute: str) -> bool:
        """Whether parameters are found at an attribute, others at what is trained, none at both."""
        own = [words for words in self.known if attribute in words]
        others = [words for words in self.known if words & self.trained]
        return bool(own and others) and not any(words & self.trained for words in own)

    def _are_models(self, words: set[str]) -> bool:
        """Whether all that is trained has a name: it is no other name's model in disguise."""
        known = (self.names.modules.get(word) for word in words - self.names.tensors.keys())
        return all(facts is not None and facts.optimized for facts in known)

    def _is_new_model(self, value: ast.expr) -> bool:
        """Whether an attribute's value is made there: a class is called, or a copy is made."""
        while isinstance(value, ast.Call) and called(value) in _MOVES:
            if not isinstance(value.func, ast.Attribute):
                return False
            value = value.func.value
        if not isinstance(value, ast.Call):
            return False
        name = called(value)
        given = _spoken(self.cell, [value])
        return name == "deepcopy" or (name[:1].isupper() and not given & self.trained)

    def needs_graph(self, given: list[ast.expr]) -> bool:
        """Whether these may come from what is trained, or from what asks for gradients itself."""
        behind = self.flow.origin(given).statements
        parts = [*given, *(part for statement in behind for part in self._others(statement))]
        texts = [self.cell.text(part) for part in parts]
        used = bool(_spoken(self.cell, parts) & self.trained)
        return used or any("requires_grad" in text for text in texts)

    def _others(self, statement: ast.stmt) -> list[ast.expr]:
        """The expressions of a statement, less those that give what is trained its name."""
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=to)], value=ast.Tuple(elts=of)) if len(
                to
            ) == len(of):
                pairs = zip(to, of, strict=True)
                return [value for name, value in pairs if not self._is_trained(name)]
        return list(header(statement))

    def _is_trained(self, name: ast.expr) -> bool:
        return bool(words_of(self.cell.text(name)) & self.trained)


def _speaks_of_freezing(cell: Code) -> bool:
    return "requires_grad" in cell.source


def _spoken(cell: Code, parts: list[ast.expr]) -> set[str]:
    """All names and attributes in some expressions."""
    attributes = (n for part in parts for n in cell.nodes(ast.Attribute, within=part))
    return {n.attr for n in attributes}.union(*(cell.spoken(part) for part in parts))


@dataclass(frozen=True, slots=True)
class ThrownGradients:
    """Gradients that `backward` made and `cleared` freed, with no step of that optimizer between.

    size: bytes of them, of one pass. alive: the events at which the first of them was made and
    freed. made: all that backward passes made from the first of them on.
    """

    backward: ast.Call
    cleared: ast.Call
    size: int
    alive: tuple[int, int]
    made: NDArray[np.bool_]


def thrown_gradients(cell: Code, lives: Lifetimes, names: Names) -> Iterator[ThrownGradients]:
    """Such gradients where they are the last that the pass makes: it could have ended before."""
    if reads_gradients(cell):
        return
    steps = _StepLines(cell, names)
    freed = _freed_by_line(lives)
    clears: dict[int, list[ast.Call]] = defaultdict(list)
    for cleared in cell.calls(".zero_grad"):
        for line in lines_of(cleared):
            clears[line].append(cleared)
    for backward in cell.calls(".backward"):
        lines = {at for line in lines_of(backward) for at in freed.get(line, ())}
        for cleared in dict.fromkeys(c for line in sorted(lines) for c in clears.get(line, ())):
            cell.work.spend(1)
            found = _thrown(lives, backward, cleared)
            if found is None:
                continue
            within = cell.function(cleared) is cell.function(backward)
            ends = backward.lineno, cleared.lineno, receiver(cleared, cell)
            if steps.only_of_others(*ends) if within else steps.ran(lives, found):
                yield found


class _StepLines:
    """The lines of optimizers' steps, of all and of each."""

    def __init__(self, cell: Code, names: Names) -> None:
        self._cell = cell
        self._all: list[int] = []
        self._of: dict[str, list[int]] = defaultdict(list)
        for step in find_steps(cell, names):  # in the order of the text
            self._all.append(step.line)
            self._of[step.optimizer].append(step.line)

    def only_of_others(self, first: int, end: int, optimizer: str) -> bool:
        """Whether steps are made from one line on and before another, and none of an optimizer."""
        own = self._of.get(optimizer, [])
        return _any_in(self._all, first, end) and not _any_in(own, first, end)

    def ran(self, lives: Lifetimes, thrown: ThrownGradients) -> bool:
        """Whether steps ran while these gradients were there, and none of their optimizer, whose
        steps are seen at other times: of text in different functions the trace knows the order."""
        optimizer = receiver(thrown.cleared, self._cell)
        own = self._of.get(optimizer, [])
        function = self._cell.function(thrown.cleared)
        if function is not None and optimizer in parameters(function):  # others have another there
            own = [line for line in own if line in lines_of(function)]
        stepping = lives.born == Phase.OPTIMIZER
        first, last = thrown.alive
        between = stepping & (lives.birth > first) & (lives.birth < last)
        is_own = np.isin(lives.line, own)
        seen = (stepping & is_own).any() and between.any()
        return bool(seen and not (between & is_own).any())


def _any_in(ordered: list[int], first: int, end: int) -> bool:
    return bisect_left(ordered, first) < bisect_left(ordered, end)


def _freed_by_line(lives: Lifetimes) -> dict[int, list[int]]:
    """Where the gradients that backward passes made were freed, by the line that made them."""
    gradients = (lives.born == Phase.BACKWARD) & lives.of(Category.GRADIENT)
    lines = zip(lives.line[gradients].tolist(), lives.freed_line[gradients].tolist(), strict=True)
    found: dict[int, list[int]] = defaultdict(list)
    for made, freed in sorted(set(lines)):
        found[made].append(freed)
    return found


def _thrown(lives: Lifetimes, backward: ast.Call, cleared: ast.Call) -> ThrownGradients | None:
    inside = (lives.born == Phase.BACKWARD) & np.isin(lives.line, list(lines_of(backward)))
    gradients = inside & lives.of(Category.GRADIENT)
    thrown = gradients & np.isin(lives.freed_line, list(lines_of(cleared)))
    if not thrown.any():
        return None
    step = int(lives.step[thrown][0])
    here = lives.step == step
    first = int(lives.birth[thrown & here].min())
    if (gradients & here & ~thrown & (lives.birth > first)).any():
        return None  # the way to the others leads through
    before = int(np.count_nonzero(inside & here & (lives.birth < first)))
    made = np.zeros(len(lives), bool)
    for number in np.unique(lives.step[inside]).tolist():
        rows = np.flatnonzero(inside & (lives.step == number))
        made[rows[before:]] = True
    ends = first, int(lives.death[thrown & here].min())
    return ThrownGradients(backward, cleared, lives.bytes(thrown & here), ends, made)
