"""Gives a loss a name of its own, where a step is written as `F.mse_loss(model(x), y).backward()`:
what changes the forward pass apart from `backward()` needs two statements."""

from __future__ import annotations

import ast
from dataclasses import replace
from os.path import commonprefix

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.training_pass import called_on, one_backward, root_of_loss
from gpumem_magic.advice.rewrite import UnsafeError, require_own_lines
from gpumem_magic.values.advice import Advice, Edit

_NAME = "loss"


def with_named_loss(cell: Code) -> Code:
    """The cell with `loss = ...` on the line where the loss begins, and `loss.backward()` below;
    the cell itself where its loss has a name. Raises UnsafeError where that cannot be written."""
    backward = one_backward(cell)
    if root_of_loss(cell, backward):
        return cell
    require_own_lines(cell, backward)
    value = called_on(backward)
    whole = cell.text(backward).rpartition(".backward")[0].rstrip()
    scaled = isinstance(cell.parent(value), ast.Call)  # by a GradScaler
    text = cell.text(value) if scaled else whole
    after = f"{whole.replace(text, _NAME, 1)}.backward()"
    indent = cell.indentation(backward.lineno)
    found = cell.with_text(backward, f"{_NAME} = {text}\n{indent}{after}")
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
