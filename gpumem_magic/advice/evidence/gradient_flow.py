"""Which statements of a cell a value comes from, so far as gradients could flow back along it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from gpumem_magic.advice.code import Code, called
from gpumem_magic.advice.evidence.definitions import Definitions
from gpumem_magic.advice.tree import header, parameters, targets
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Phase

NO_GRAPH = ("torch.no_grad", "torch.inference_mode")
_ENDS_GRAPH = frozenset(
    {"detach", "item", "tolist", "numpy", "argmax", "argmin", "data", "shape", "size", "dtype"}
    | {"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"}
    | {"device", "grad", "numel", "dim", "ndim"}
)
_OF_RECEIVER = frozenset(
    {"to", "cuda", "cpu", "float", "double", "half", "bfloat16", "clone", "contiguous"}
    | {"view", "reshape", "flatten", "squeeze", "unsqueeze", "permute", "transpose"}
)
"""Methods whose result has a graph only where what they are called on has one."""

_GRADIENTS = (
    "torch.autograd.grad",
    "torch.autograd.backward",
    "torch.func.grad",
    "torch.func.vjp",
    "torch.autograd.functional.jacobian",
    "torch.autograd.functional.hessian",
    "torch.nn.utils.parametrize",
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from. statements: all that took part. carried: those of an earlier pass
    of a loop."""

    statements: set[ast.stmt] = field(default_factory=set)
    carried: set[ast.stmt] = field(default_factory=set)


class GradientFlow:
    """Follows values backwards through assignments, containers, attributes and the functions of
    the cell. What a value may come from counts as if it did.

    everywhere: also through statements under `torch.no_grad()`.
    """

    def __init__(self, code: Code, names: Names, *, everywhere: bool = False) -> None:
        self._code = code
        self._everywhere = everywhere
        self._definitions = code.once(Definitions)
        self._opaque = {*names.modules, *names.optimizers, *names.known}

    def origin(self, values: Iterable[ast.expr]) -> Origin:
        """What these expressions come from; the statements that they are in are not part of it."""
        found = Origin()
        waiting = list(values)
        followed: set[ast.expr] = set()
        while waiting:
            value = waiting.pop()
            if value in followed:
                continue
            followed.add(value)
            at = self._code.statement(value)
            for node in with_graph(value):
                self._code.work.spend(1)
                waiting += self._behind(node, at, found)
        return found

    def _behind(self, node: ast.expr, at: ast.stmt, found: Origin) -> Iterator[ast.expr]:
        """The expressions that a name, an attribute or a call got its value from."""
        if isinstance(node, ast.Name) and node.id not in self._opaque:
            reaching = self._definitions.reaching(node.id, at)
            found.carried.update(reaching.carried)
            if reaching.is_parameter:
                yield from self._arguments(node.id, at)
            above = self._code.parent(node)
            read = above.attr if isinstance(above, ast.Attribute) else ""
            for statement in reaching.statements:
                if not read or read in _given(statement, node.id, read):
                    yield from self._add(statement, found)
        elif isinstance(node, ast.Attribute):
            for statement in self._definitions.of_attribute(node.attr):
                yield from self._add(statement, found)
        elif isinstance(node, ast.Call):
            for function in self._definitions.functions.get(called(node), ()):
                for inner in self._code.walk(function):
                    if not isinstance(inner, ast.Return | ast.Yield | ast.YieldFrom):
                        continue
                    if inner.value is not None and self._code.function(inner) is function:
                        found.statements.add(self._code.statement(inner))
                        yield inner.value

    def _add(self, statement: ast.stmt, found: Origin) -> Iterator[ast.expr]:
        if statement in found.statements:
            return
        if not self._everywhere and self._code.is_under(statement, *NO_GRAPH):
            return
        found.statements.add(statement)
        yield from header(statement)
        if isinstance(statement, ast.AugAssign):
            yield statement.target

    def _arguments(self, name: str, at: ast.stmt) -> Iterator[ast.expr]:
        """What the cell passes to the function around `at` for this parameter: any argument."""
        function = self._code.function(at)
        while function is not None and name not in parameters(function):
            function = self._code.function(function)
        if function is None:
            return
        for call in self._code.calls_of(function.name):
            yield from self._matching(call, name, parameters(function))

    def _matching(self, call: ast.Call, name: str, expected: list[str]) -> Iterator[ast.expr]:
        offset = 1 if expected[:1] in (["self"], ["cls"]) else 0
        for number, argument in enumerate(call.args):
            at = number + offset
            if isinstance(argument, ast.Starred) or at >= len(expected) or expected[at] == name:
                yield argument
        for keyword in call.keywords:
            if keyword.arg in (None, name):
                yield keyword.value


def _given(statement: ast.stmt, name: str, otherwise: str) -> set[str]:
    """The attributes of what a name means that a statement gives values, or puts something into;
    `otherwise` where it does so to the whole."""
    inner = [node for target in targets(statement) for node in ast.walk(target)]
    parts = [n for n in inner if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    given = {n.attr for n in parts if getattr(n.value, "id", "") == name}
    whole = sum(getattr(n, "id", "") == name for n in inner) > len(given)
    return {otherwise} if whole or not given else given


def with_graph(value: ast.expr) -> Iterator[ast.expr]:
    """The expression and all inside it that a graph may come through: not what is detached."""
    if isinstance(value, ast.Attribute) and value.attr in _ENDS_GRAPH:
        return
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in _ENDS_GRAPH:
            return
        if isinstance(value.func, ast.Name) and value.func.id in ("float", "int", "len", "str"):
            return
        method = value.func if isinstance(value.func, ast.Attribute) else None
        if method and method.attr in _OF_RECEIVER and not any(with_graph(method.value)):
            return
    if isinstance(value, (ast.Lambda, ast.Compare, ast.JoinedStr, ast.Constant)):
        return
    yield value
    for child in ast.iter_child_nodes(value):
        if isinstance(child, ast.expr):
            yield from with_graph(child)
        elif isinstance(child, (ast.keyword, ast.comprehension)):
            yield from with_graph(child.value if isinstance(child, ast.keyword) else child.iter)


def backward_calls(code: Code) -> Iterator[ast.Call]:
    """Calls that go backwards through a graph, as the text shows them."""
    for call in code.calls(".backward", *_GRADIENTS):
        if code.dotted(call.func) != "super.backward":
            yield call


def goes_backward(call: ast.Call) -> list[ast.expr]:
    """What such a call goes backwards from."""
    values = [*call.args, *(k.value for k in call.keywords if k.arg not in ("retain_graph",))]
    if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
        values.append(call.func.value)
    return values


def backward_lines(lives: Lifetimes) -> set[int]:
    """Lines where a backward pass ran, or that made what one gave back."""
    freed, born = lives.freed == Phase.BACKWARD, lives.born == Phase.BACKWARD
    lines = [lives.freed_line[freed], lives.line[freed], lives.line[born]]
    return {n for n in np.unique(np.concatenate(lines)).tolist() if n > 0}


def went_backward(code: Code, lives: Lifetimes) -> set[ast.stmt]:
    """Statements where a backward pass ran, or that made what one gave back."""
    lines = backward_lines(lives) | set(
        np.unique(code.calling_lines(lives)[lives.freed == Phase.BACKWARD]).tolist()
    )
    return {s for n in lines if n > 0 and (s := code.statement_at(n)) is not None}


def used_statements(code: Code, lives: Lifetimes, names: Names) -> set[ast.stmt]:
    """Statements whose graph a backward pass of the cell used, or may have used."""
    flow, here = GradientFlow(code, names), went_backward(code, lives)
    values = [value for call in backward_calls(code) for value in goes_backward(call)]
    values += [value for statement in here for value in header(statement)]
    return here | flow.origin(values).statements
