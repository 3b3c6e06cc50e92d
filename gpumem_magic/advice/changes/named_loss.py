"""Gives a loss a name of its own, where a step is written as `F.mse_loss(model(x), y).backward()`:
what changes the forward pass apart from `backward()` needs two statements."""

from __future__ import annotations

import ast
from dataclasses import replace
from os.path import commonprefix

from gpumem_magic.advice.code import Code, called
from gpumem_magic.advice.evidence.training_pass import one_backward, root_of_loss
from gpumem_magic.advice.rewrite import UnsafeError, require_own_lines
from gpumem_magic.values.advice import Advice, Edit

_NAME = "loss"


def with_named_loss(cell: Code) -> Code:
    """The cell with `loss = ...` on the line where the loss begins, and `loss.backward()` below;
    the cell itself where its loss has a name. Raises UnsafeError where that cannot be written."""
    backward = one_backward(cell)
    function = backward.value.func if isinstance(backward.value, ast.Call) else None
    if root_of_loss(cell, backward) or not isinstance(function, ast.Attribute):
        return cell
    require_own_lines(cell, backward)
    start = cell.span(backward)[0]
    text, after = cell.source[start : cell.span(function)[1]].rsplit(".", 1)[0], ".backward()"
    value = function.value
    if isinstance(value, ast.Call) and len(value.args) == 1 and called(value) == "scale":
        scaled = cell.text(value.args[0])  # by a GradScaler
        after, text = text.replace(scaled, _NAME, 1) + after, scaled
    else:
        after = _NAME + after
    indent = cell.indentation(backward.lineno)
    found = cell.with_text(backward, f"{_NAME} = {text.rstrip()}\n{indent}{after}")
    if not found.tree.body or _NAME in cell.spoken():
        raise UnsafeError("the loss of backward() has no name of its own")
    return found


def of_plain(cell: Code, advice: Advice) -> Advice:
    """The advice about the cell with a named loss, as one about the cell as it was typed."""
    if advice.source is None or not advice.edits:
        return advice
    before, after = cell.source, advice.source
    first = len(commonprefix([before, after]))  # noqa: RUF071 - no paths
    ends = [before[first:][::-1], after[first:][::-1]]
    last = len(commonprefix(ends))  # noqa: RUF071
    edit = Edit(first, len(before) - last, after[first : len(after) - last])
    return replace(advice, edits=(edit,))
