"""Reads softmax(q @ k^T) @ v in a syntax tree, over one statement or several."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpumem_magic.advice.code import Code

_SOFTMAX = ("torch.nn.functional.softmax", "torch.softmax", ".softmax")
_DROPOUT = ("torch.nn.functional.dropout", "torch.dropout")
_MATMUL = ("torch.matmul", "torch.bmm", ".matmul", ".bmm")
_LAST_TWO = ({-2, -1}, {2, 3})


@dataclass(slots=True)
class Formula:
    """softmax(mask(scale * q @ k^T)) @ v. product: the expression that it ends in. statements:
    those that it stretches over. refusal: why it cannot be written otherwise; "" where it can."""

    product: ast.expr
    value: ast.expr
    scores: ast.expr
    statements: list[ast.stmt]
    query: ast.expr | None = None
    key: ast.expr | None = None
    scale: str = ""
    mask: str = ""
    causal: bool = False
    dropout: str = ""
    refusal: str = ""
    consumed: Counter[str] = field(default_factory=Counter)

    def arguments(self, cell: Code) -> Iterator[str]:
        """What `scaled_dot_product_attention` is called with, as text."""
        assert self.query is not None
        assert self.key is not None
        yield from (cell.text(e) for e in (self.query, self.key, self.value))
        if self.mask:
            yield f"attn_mask={self.mask}"
        if self.dropout:
            yield f"dropout_p={self.dropout}"
        if self.causal:
            yield "is_causal=True"
        yield f"scale={self.scale or '1.0'}"


def find_formulas(cell: Code) -> Iterator[Formula]:
    """Every attention that a cell writes out, in the order of the text."""
    nodes = [n for n in cell.walk() if isinstance(n, (ast.BinOp, ast.Call))]
    for node in sorted(nodes, key=lambda n: (n.lineno, n.col_offset)):
        if (pair := _product(cell, node)) is not None:
            statement = cell.statement(node)
            formula = Formula(node, pair[1], node, [statement])
            if _Reader(cell, formula).weights(pair[0], statement):
                yield formula


def _product(cell: Code, node: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """The factors of a matrix product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if isinstance(node, ast.Call) and cell.is_one_of(node.func, _MATMUL) and not node.keywords:
        if len(node.args) == 2:
            return node.args[0], node.args[1]
        if len(node.args) == 1 and isinstance(node.func, ast.Attribute):
            return node.func.value, node.args[0]
    return None


class _Reader:
    """Goes from the product backwards through what it was computed of."""

    def __init__(self, cell: Code, formula: Formula) -> None:
        self._cell = cell
        self._formula = formula

    def weights(self, node: ast.expr, at: ast.stmt) -> bool:
        """Whether this is the softmax of scores, perhaps through a dropout."""
        node, at = self._resolved(node, at)
        if isinstance(node, ast.Call) and (inner := self._dropped(node)) is not None:
            node, at = self._resolved(inner, at)
        if not isinstance(node, ast.Call) or not self._cell.is_one_of(node.func, _SOFTMAX):
            return False
        is_method = self._cell.dotted(node.func) not in _SOFTMAX
        arguments = list(node.args)
        if is_method and isinstance(node.func, ast.Attribute):
            arguments.insert(0, node.func.value)
        dims = [*arguments[1:2], *(k.value for k in node.keywords if k.arg == "dim")]
        if not arguments or len(dims) != 1 or _number(dims[0]) not in (-1, 3):
            return False
        if any(k.arg != "dim" for k in node.keywords):
            self._formula.refusal = "softmax has arguments of its own"
        return self._scores(arguments[0], at) and self._settled()

    def _scores(self, node: ast.expr, at: ast.stmt) -> bool:
        node, at = self._resolved(node, at)
        if (factors := _product(self._cell, node)) is not None:
            self._formula.query = factors[0]
            self._formula.key = _transposed(factors[1])
            self._formula.scores = node
            if self._formula.key is None:
                self._formula.refusal = "the keys are not transposed where they are multiplied"
            return True
        if isinstance(node, ast.BinOp):
            return self._scaled(node, at)
        if isinstance(node, ast.Call) and self._cell.is_one_of(node.func, (".masked_fill",)):
            assert isinstance(node.func, ast.Attribute)
            if len(node.args) == 2:
                self._mask_out(node.args[0], node.args[1])
                return self._scores(node.func.value, at)
        return False

    def _scaled(self, node: ast.BinOp, at: ast.stmt) -> bool:
        text = self._cell.text(node.right)
        if isinstance(node.op, ast.Add):
            self._set_mask(text)
        elif isinstance(node.op, (ast.Mult, ast.Div)):
            if self._formula.scale or "torch" in text:
                self._formula.refusal = "the scores are scaled by a tensor, or twice"
            self._formula.scale = f"1 / ({text})" if isinstance(node.op, ast.Div) else text
        else:
            return False
        return self._scores(node.left, at)

    def _mask_out(self, condition: ast.expr, filling: ast.expr) -> None:
        """`scores.masked_fill(mask == 0, -inf)`: what is hidden, where SDPA asks what is seen."""
        seen, hidden = None, condition
        if isinstance(condition, ast.Compare) and len(condition.ops) == 1:
            if isinstance(condition.ops[0], ast.Eq) and _number(condition.comparators[0]) == 0:
                seen = condition.left
        elif isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Invert):
            seen = condition.operand
        if (seen is not None and self._is_triangle(seen, "tril")) or self._is_triangle(
            hidden, "triu"
        ):
            self._formula.causal = True
            if self._formula.mask:
                self._formula.refusal = "there are two masks"
        elif "inf" not in self._cell.text(filling):
            self._formula.refusal = "what is masked is filled with a finite number"
        elif isinstance(condition, ast.Compare) and seen is not None:
            self._set_mask(f"{self._cell.text(seen)} != 0")
        else:
            self._set_mask(self._cell.text(seen) if seen else f"~({self._cell.text(hidden)})")

    def _set_mask(self, text: str) -> None:
        if self._formula.mask or self._formula.causal:
            self._formula.refusal = "there are two masks"
        if self._formula.scale:
            self._formula.refusal = "the mask is scaled, too"
        self._formula.mask = text

    def _is_triangle(self, node: ast.expr, kind: str) -> bool:
        """Whether a mask is `torch.tril(torch.ones(...))`, or above the diagonal, by its name."""
        if isinstance(node, ast.Subscript):
            return self._is_triangle(node.value, kind)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("bool", "to", "view"):
                return self._is_triangle(node.func.value, kind)
            values = [_number(k.value) for k in node.keywords if k.arg == "diagonal"]
            offset = [*(_number(a) for a in node.args[1:2]), *values]
            right = not offset or offset == [0] if kind == "tril" else offset == [1]
            made = bool(node.args) and self._cell.text(node.args[0]).startswith(
                ("torch.ones(", "torch.ones_like(")
            )
            return self._cell.dotted(node.func) == f"torch.{kind}" and right and made
        return any(self._is_triangle(value, kind) for value in self._values(node))

    def _values(self, node: ast.expr) -> Iterator[ast.expr]:
        """What `mask` or `self.mask` is set to in this cell, where it is set once."""
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        found = [
            statement.value
            for statement in self._cell.walk()
            if isinstance(statement, ast.Assign) and _names(statement.targets[0], name)
        ]
        found += [
            call.args[1]
            for call in self._cell.calls(".register_buffer")
            if len(call.args) > 1
            and isinstance(call.args[0], ast.Constant)
            and call.args[0].value == name
        ]
        if len(found) == 1 and not isinstance(found[0], (ast.Name, ast.Attribute)):
            yield found[0]

    def _dropped(self, node: ast.Call) -> ast.expr | None:
        """What a dropout is of."""
        if self._cell.is_one_of(node.func, _DROPOUT) and node.args:
            given = {k.arg or "": self._cell.text(k.value) for k in node.keywords}
            places = zip(("p", "training"), node.args[1:], strict=False)
            names = {name: self._cell.text(value) for name, value in places}
            options: dict[str, str] = {**given, **names}
            training = options.get("training", "True")
            self._formula.dropout = f"{options.get('p', '0.5')} if {training} else 0.0"
            return node.args[0]
        name = self._cell.text(node.func)
        if "drop" in name.rsplit(".", 1)[-1].lower() and len(node.args) == 1 and not node.keywords:
            self._formula.dropout = f"{name}.p if {name}.training else 0.0"
            return node.args[0]
        return None

    def _resolved(self, node: ast.expr, at: ast.stmt) -> tuple[ast.expr, ast.stmt]:
        """For a name, the expression that the nearest statement above in the block gave it."""
        if not isinstance(node, ast.Name):
            return node, at
        for statement in reversed(self._cell.before(at)):
            if isinstance(statement, ast.Assign) and _names(statement.targets[0], node.id):
                self._formula.consumed[node.id] += 1
                self._formula.statements.insert(0, statement)
                return self._resolved(statement.value, statement)
            if any(self._cell.assigned(node.id, statement)):
                break
        return node, at

    def _settled(self) -> bool:
        """Notes where something else reads what lies between."""
        function = self._cell.function(self._formula.product)
        for name, count in self._formula.consumed.items():
            if len(list(self._cell.reads(name, within=function))) != count:
                self._formula.refusal = f"{name} is read elsewhere, too"
        return True


def _names(target: ast.expr, name: str) -> bool:
    return bool(name) and name in (getattr(target, "id", None), getattr(target, "attr", None))


def _transposed(node: ast.expr) -> ast.expr | None:
    """k of k.transpose(-2, -1) or k.mT."""
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        return node.value
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    dims = {_number(argument) for argument in node.args}
    swapped = node.func.attr in ("transpose", "swapaxes") and dims in _LAST_TWO
    return node.func.value if swapped else None


def _number(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
