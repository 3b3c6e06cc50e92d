"""Writes a training step in mixed precision."""

from __future__ import annotations

import ast

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.training_code import Step, find_steps
from gpumem_magic.advice.evidence.training_pass import TrainingPass, before_loops
from gpumem_magic.advice.rewrite import (
    UnsafeError,
    enclose,
    insert_after,
    insert_before,
    replace,
    wrap,
    wrap_in_context,
)
from gpumem_magic.values.advice import Edit
from gpumem_magic.values.names import Names

AUTOCAST = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")
_BFLOAT16_FROM = (8, 0)
"""Compute capability from which on bfloat16 is done in hardware."""

_CLIP = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")
_UNSTABLE = ("torch.nn.functional.binary_cross_entropy", "torch.nn.BCELoss")
_SCALER = "scaler"


def has_bfloat16(capability: tuple[int, int] | None) -> bool:
    """Whether a device of this compute capability computes in bfloat16."""
    return capability is not None and capability >= _BFLOAT16_FROM


def in_mixed_precision(
    cell: Code, names: Names, found: TrainingPass, bfloat16: bool
) -> tuple[Edit, ...]:
    """The forward pass and the loss under autocast; with a `GradScaler` where it is float16."""
    if cell.calls(*_UNSTABLE) or any(
        facts.type.endswith(".BCELoss") for facts in names.modules.values()
    ):
        raise UnsafeError("autocast refuses BCELoss; BCEWithLogitsLoss works")
    if bfloat16:
        torch = cell.spelling("torch", "torch")
        return wrap_in_context(cell, found.forward, f'autocast("cuda", dtype={torch}.bfloat16)')
    return (*_scaled(cell, names, found), *wrap_in_context(cell, found.forward, 'autocast("cuda")'))


def under_the_same(cell: Code, found: TrainingPass, call: ast.Call) -> tuple[Edit, ...]:
    """The forward pass under autocast as this call of it makes."""
    return wrap(cell, found.forward, f"with {cell.text(call)}:")


def is_covered(cell: Code, statement: ast.stmt) -> bool:
    """Whether a statement runs under autocast, or some of what is in it does."""
    return cell.is_under(statement, *AUTOCAST) or bool(cell.calls(*AUTOCAST, within=statement))


def _scaled(cell: Code, names: Names, found: TrainingPass) -> tuple[Edit, ...]:
    """`scaler` around `backward()` and every step of the optimizer."""
    if _SCALER in cell.spoken():
        raise UnsafeError(f"{_SCALER} is a name of the cell already")
    torch = cell.spelling("torch", "torch")
    step = _one_step(cell, names, found)
    assert isinstance(found.backward.value, ast.Call)
    assert isinstance(found.backward.value.func, ast.Attribute)
    start = found.forward[0]
    if cell.function(start) is not None and cell.loop(start) is None:
        start = cell.at_top(start)  # it has to outlive the function that makes one step
    edits = [
        *before_loops(cell, start, f'{_SCALER} = {torch}.amp.GradScaler("cuda")'),
        *enclose(cell, found.backward.value.func.value, f"{_SCALER}.scale(", ")"),
    ]
    for clip in cell.calls(*_CLIP)[:1]:
        if cell.block(cell.statement(clip)) is not cell.block(step.statement):
            raise UnsafeError("gradients are clipped elsewhere")
        edits += insert_before(cell, cell.statement(clip), f"{_SCALER}.unscale_({step.optimizer})")
    edits += replace(cell, step.statement, f"{_SCALER}.step({step.optimizer})")
    edits += insert_after(cell, step.statement, f"{_SCALER}.update()")
    return tuple(edits)


def _one_step(cell: Code, names: Names, found: TrainingPass) -> Step:
    """The statement `optimizer.step()`."""
    steps = [step for step in find_steps(cell, names) if not step.scaled and not step.call.args]
    if len(steps) != 1:
        raise UnsafeError("the one place where the optimizer steps was not found")
    if cell.function(steps[0].statement) is not cell.function(found.backward):
        raise UnsafeError("the optimizer steps in another function")
    if cell.block(steps[0].statement) is not cell.block(found.backward):
        raise UnsafeError("the optimizer does not step after every backward()")
    return steps[0]
