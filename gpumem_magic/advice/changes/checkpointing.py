"""Writes the repeated blocks of a model so that they are computed again in the backward pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.training_pass import before_loops
from gpumem_magic.advice.rewrite import UnsafeError, import_line, replace
from gpumem_magic.values.advice import Edit
from gpumem_magic.values.names import ModuleFacts

CHECKPOINT = "torch/utils/checkpoint.py"
_NAME = "torch.utils.checkpoint.checkpoint"
_IMPORT = "from torch.utils.checkpoint import checkpoint"


def repeated_path(name: str, facts: ModuleFacts) -> str | None:
    """How to write the list of alike blocks: "model.blocks", "model" itself; None: it has none."""
    if facts.repeated:
        return f"{name}.{facts.repeated}"
    kinds = {part.type for part in facts.parts}
    compound = not any(kind.startswith("torch.nn.modules.") for kind in kinds) or (
        kinds == {"torch.nn.modules.container.Sequential"}
    )
    sequential = facts.type == "torch.nn.modules.container.Sequential"
    return name if sequential and len(facts.parts) > 1 and len(kinds) == 1 and compound else None


def checkpointed(
    cell: Code, start: ast.stmt | None, name: str, facts: ModuleFacts
) -> tuple[Edit, ...]:
    """Each of the repeated blocks through `torch.utils.checkpoint`.

    start: the statement that most of the activations are made in, where that is known.
    """
    if any("BatchNorm" in kind for kind in facts.kinds):
        raise UnsafeError("BatchNorm would update its running averages twice in each step")
    calls = list(_calls_in_loops(cell, facts))
    if len(calls) == 1:
        return _checkpointed_call(cell, *calls)
    if start is None:
        raise UnsafeError("the place where training begins was not found")
    function = cell.function(start)
    if function is not None and name not in [a.arg for a in function.args.args]:
        makers = [cell.function(s) for s in cell.assigned(name)]
        if function in makers:
            raise UnsafeError(f"{name} is made inside {function.name}")
    if facts.type.startswith("transformers."):
        line = f"{name}.gradient_checkpointing_enable()"
        return before_loops(cell, start, line)
    return _wrapped_blocks(cell, start, name, facts)


def _wrapped_blocks(cell: Code, start: ast.stmt, name: str, facts: ModuleFacts) -> tuple[Edit, ...]:
    """Their `forward` replaced before the training begins; doing so twice does not harm."""
    path = repeated_path(name, facts)
    names = cell.spoken()
    if path is None or names & {"block", "checkpoint", "functools"}:
        raise UnsafeError("the repeated blocks were not found, or their names are taken")
    forward = "functools.partial(checkpoint, type(block).forward, block, use_reentrant=False)"
    return (
        *import_line(cell, "import functools"),
        *import_line(cell, _IMPORT),
        *before_loops(cell, start, f"for block in {path}:"),
        *before_loops(cell, start, f"    block.forward = {forward}"),
    )


def _calls_in_loops(cell: Code, facts: ModuleFacts) -> Iterator[ast.Call]:
    """`block(x)` in `for block in self.blocks:`, of the longest list of the model."""
    last = facts.repeated.rsplit(".", 1)[-1]
    for loop in cell.nodes(ast.For):
        listed = loop.iter
        if not isinstance(loop.target, ast.Name):
            continue
        if isinstance(listed, ast.Attribute) and last and listed.attr == last:
            yield from cell.calls(loop.target.id, within=loop)


def _checkpointed_call(cell: Code, call: ast.Call) -> tuple[Edit, ...]:
    if any(k.arg is None for k in call.keywords):
        raise UnsafeError("the block is called with **")
    arguments = ", ".join(cell.text(a) for a in call.args)
    named = "".join(f", {k.arg}={cell.text(k.value)}" for k in call.keywords)
    text = f"({cell.text(call.func)}, {arguments}{named}, use_reentrant=False)"
    here = next((n for n in ("checkpoint",) if cell.dotted(ast.Name(n)) == _NAME), None)
    if here:
        return replace(cell, call, f"{here}{text}")
    if "checkpoint" in cell.spoken():
        raise UnsafeError("checkpoint is a name of the cell already")
    return (*import_line(cell, _IMPORT), *replace(cell, call, f"checkpoint{text}"))
