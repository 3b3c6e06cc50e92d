"""Forward passes under `torch.no_grad()`, or under what says whether they train."""

from __future__ import annotations

import ast

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.unused_graphs import UnusedGraph
from gpumem_magic.advice.rewrite import UnsafeError, wrap_in_context
from gpumem_magic.advice.tree import defined
from gpumem_magic.values.advice import Edit
from gpumem_magic.values.names import SkippedBackward


def without_graph(cell: Code, graph: UnusedGraph) -> tuple[Edit, ...]:
    """The statements under `torch.no_grad()`, or under what says whether they train. Raises
    UnsafeError where others would come under it, too."""
    context = "no_grad()"
    if graph.skipped is not None:
        _require_known(cell, graph.statements, graph.skipped)
        context = f"set_grad_enabled({graph.skipped.trains})"
    for statement in graph.statements:
        if cell.nodes(ast.Yield, ast.YieldFrom, ast.Await, within=statement):
            raise UnsafeError("whoever takes what it yields would run without gradients, too")
    return wrap_in_context(cell, graph.statements, context)


def _require_known(cell: Code, statements: tuple[ast.stmt, ...], skipped: SkippedBackward) -> None:
    """Raises UnsafeError where it is not certain that the test says there what it says later."""
    function = cell.function(statements[0]) if statements else None
    if not statements or (function.name if function else "") != skipped.function:
        raise UnsafeError("its text is not this cell's, or of several places")
    words = {node.id for node in ast.walk(ast.parse(skipped.trains)) if isinstance(node, ast.Name)}
    later = (s for s in cell.nodes(ast.stmt) if s.lineno >= statements[0].lineno)
    if any(words & defined(s) and cell.function(s) is function for s in later):
        raise UnsafeError("what its test reads may change")


def how_to_wrap(cell: Code, graph: UnusedGraph) -> str:
    """The change in words: the statements, or the function that does nothing else."""
    if graph.skipped is not None:
        return (
            "Evaluate under torch.no_grad(); where one function does both, put its forward pass "
            f"under torch.set_grad_enabled({graph.skipped.trains})."
        )
    function = cell.function(graph.statements[0])
    text = f"Wrap {graph.place} in torch.no_grad()"
    if function is not None and not cell.calls(".backward", within=function):
        text += f", or decorate {function.name}() with @torch.no_grad()"
    return f"{text}; torch.inference_mode() does as well where nothing trains on its outputs."
