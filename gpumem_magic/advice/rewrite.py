"""Changes to the text of a cell, located by its syntax tree, that leave all the rest as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from gpumem_magic.advice.code import Code
from gpumem_magic.values.advice import Edit


class UnsafeError(ValueError):
    """A change cannot be made without touching more than it should; the text says why."""


def applied(source: str, edits: Iterable[Edit]) -> str:
    """The text after all edits. Raises UnsafeError where two of them touch the same characters,
    unless both take them out.

    Insertions at one place stand in the order in which they are given.
    """
    ordered = sorted(edits, key=lambda edit: (edit.start, edit.end))
    pieces, done, removes = [], 0, False
    for edit in ordered:
        if edit.start < done and (edit.text or not removes):
            raise UnsafeError("two changes touch the same text")
        pieces += [source[done : edit.start], edit.text]
        done, removes = max(done, edit.end), not edit.text
    return "".join([*pieces, source[done:]])


def indent_of(source: str) -> str:
    """What a block of a text is indented by: a tab where its own lines are, also among others."""
    return "\t" if source.startswith("\t") or "\n\t" in source else "    "


def agree(edits: Sequence[Edit], others: Sequence[Edit]) -> bool:
    """Whether both changes can be made together: none of one lies inside one of the other."""
    return not any(
        edit.start < other.end and other.start < edit.end for edit in edits for other in others
    )


def replace(code: Code, node: ast.expr | ast.stmt, text: str) -> tuple[Edit, ...]:
    """`text` in place of an expression or statement."""
    start, end = code.span(node)
    return (Edit(start, end, text),)


def enclose(code: Code, node: ast.expr, before: str, after: str) -> tuple[Edit, ...]:
    """`before` and `after` around an expression, which stays as it is."""
    start, end = code.span(node)
    return (Edit(start, start, before), Edit(end, end, after))


def insert_before(code: Code, statement: ast.stmt, text: str) -> tuple[Edit, ...]:
    """A line above a statement (and its decorators), as far indented; on the statement's own line
    where others share that: `text; statement`."""
    if _can_share(code, statement, text):
        start = code.span(statement)[0]
        return (Edit(start, start, f"{text}; "),)
    require_own_lines(code, statement)
    first = code.first_line(statement)
    at = code.offset(first, 0)
    return (Edit(at, at, f"{code.indentation(first)}{text}\n"),)


def insert_after(code: Code, statement: ast.stmt, text: str) -> tuple[Edit, ...]:
    """A line below a statement, as far indented; on the statement's own line where others share
    that: `statement; text`."""
    if _can_share(code, statement, text):
        end = code.span(statement)[1]
        return (Edit(end, end, f"; {text}"),)
    require_own_lines(code, statement)
    last = statement.end_lineno or statement.lineno
    at = code.end_of_line(last)
    return (Edit(at, at, f"\n{code.indentation(code.first_line(statement))}{text}"),)


def remove(code: Code, statement: ast.stmt) -> tuple[Edit, ...]:
    """Without the statement's lines; `pass` where a block would be empty."""
    require_own_lines(code, statement)
    if len(code.block(statement)) == 1 and code.parent(statement) is not code.tree:
        start = code.offset(code.first_line(statement), 0)
        start += len(code.indentation(code.first_line(statement)))
        return (Edit(start, code.span(statement)[1], "pass"),)  # decorators go as well
    first, last = code.first_line(statement), statement.end_lineno or statement.lineno
    start, end = code.offset(first, 0), code.end_of_line(last)
    if last < len(code.lines):
        end += 1  # with its line break
    elif first > 1:
        start -= 1
    return (Edit(start, end, ""),)


def wrap(code: Code, statements: Sequence[ast.stmt], header: str) -> tuple[Edit, ...]:
    """Neighbouring statements of one block below `header` ("with torch.no_grad():"), indented.

    Lines inside a string keep their beginning, which is part of its value.
    """
    for statement in statements:
        require_own_lines(code, statement)
    first = code.first_line(statements[0])
    last = statements[-1].end_lineno or statements[-1].lineno
    inside, indent = code.lines_inside_strings(), indent_of(code.source)
    start = code.offset(first, 0)
    edits = [Edit(start, start, f"{code.indentation(first)}{header}\n")]
    for number in range(first, last + 1):
        if number not in inside and code.lines[number - 1].strip():
            at = code.offset(number, 0)
            edits.append(Edit(at, at, indent))
    return tuple(edits)


def unwrap(code: Code, block: ast.With) -> tuple[Edit, ...]:
    """The statements of a `with` block in its place; lines that begin inside a string stay."""
    context, first = block.items[0].context_expr, block.body[0]
    opened = context.end_lineno or block.lineno
    if len(block.items) != 1 or first.lineno <= opened:
        raise UnsafeError("the block opens something else as well, or stands on one line")
    depth = len(code.indentation(first.lineno)) - len(code.indentation(block.lineno))
    edits = [_without_lines(code, block.lineno, opened)]
    inside = code.lines_inside_strings()
    for number in range(opened + 1, (block.end_lineno or opened) + 1):
        if number not in inside and code.lines[number - 1][:depth].isspace():
            at = code.offset(number, 0)
            edits.append(Edit(at, at + depth, ""))
    return tuple(edits)


def wrap_in_context(code: Code, statements: Sequence[ast.stmt], context: str) -> tuple[Edit, ...]:
    """Statements under a context of torch, such as `no_grad()`; torch is imported if need be."""
    torch = code.spelling("torch")
    imported = () if torch else import_line(code, "import torch")
    return (*imported, *wrap(code, statements, f"with {torch or 'torch'}.{context}:"))


def undecorate(code: Code, decorator: ast.expr) -> tuple[Edit, ...]:
    """The function without the line of this decorator."""
    line = decorator.lineno
    if decorator.end_lineno != line or not code.lines[line - 1].lstrip().startswith("@"):
        raise UnsafeError("the decorator takes more than its line")
    return (_without_lines(code, line, line),)


def import_line(code: Code, text: str) -> tuple[Edit, ...]:
    """A line above the first statement of the cell, below its magics."""
    if not code.tree.body:
        raise UnsafeError("the cell is no Python")
    first = next(
        (s for s in code.tree.body if code.lines[s.lineno - 1].lstrip()[:1] not in ("%", "!")),
        code.tree.body[-1],
    )
    return insert_before(code, first, text)


def set_keyword(code: Code, call: ast.Call, name: str, value: str) -> tuple[Edit, ...]:
    """The call with `name=value`, in place of another value. Raises UnsafeError for `**`."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return replace(code, keyword.value, value)
        if keyword.arg is None:
            raise UnsafeError(f"{name} may be among what ** passes")
    last = max([*call.args, *(k.value for k in call.keywords)], key=code.end, default=None)
    if last is None:
        at = code.span(call)[1] - 1
        return (Edit(at, at, f"{name}={value}"),)
    if isinstance(last, ast.GeneratorExp) and len(call.args) == 1 and not call.keywords:
        start, end = code.span(last)
        if code.source[start] != "(" or code.source[end:].lstrip()[:1] != ")":
            raise UnsafeError("a generator without parentheses of its own cannot have a neighbour")
    at = code.after_parentheses(last, call)
    return (Edit(at, at, f", {name}={value}"),)


def remove_keyword(code: Code, call: ast.Call, name: str) -> tuple[Edit, ...]:
    """The call without this keyword and the comma before it, or after it where it is the first."""
    keyword = next(k for k in call.keywords if k.arg == name)
    value = code.after_parentheses(keyword.value, call)
    start = code.span(keyword)[0]
    head = code.source[:start].rstrip()
    if head.endswith(","):
        return (Edit(len(head) - 1, value, ""),)
    tail = code.source[value:]
    rest = tail.lstrip()
    if rest.startswith(","):
        rest = rest[1:].lstrip()
    return (Edit(start, value + len(tail) - len(rest), ""),)


def _without_lines(code: Code, first: int, last: int) -> Edit:
    """Without these lines, which others follow."""
    return Edit(code.offset(first, 0), code.offset(last + 1, 0), "")


def _can_share(code: Code, statement: ast.stmt, text: str) -> bool:
    """Whether a simple statement shares its line, and a line of text can, too."""
    if hasattr(statement, "body") or "\n" in text or text.endswith(":") or text[:1].isspace():
        return False
    try:
        require_own_lines(code, statement)
    except UnsafeError:
        return True
    return False


def require_own_lines(code: Code, statement: ast.stmt) -> None:
    """Raises UnsafeError where a line is shared: `a = 1; b = 2`, or `for x in y: f(x)`."""
    first = code.first_line(statement)
    if code.lines[first - 1][: _column(code, statement, first)].strip():
        raise UnsafeError(f"line {first} holds more than one statement")
    rest = code.source[code.span(statement)[1] :].split("\n", 1)[0].strip()
    if rest.lstrip(";").strip() and not rest.lstrip(";").lstrip().startswith("#"):
        raise UnsafeError(f"line {statement.end_lineno} holds more than one statement")


def _column(code: Code, statement: ast.stmt, first: int) -> int:
    if first != statement.lineno:
        return len(code.indentation(first))  # a decorator begins its line
    return code.span(statement)[0] - code.offset(first, 0)
