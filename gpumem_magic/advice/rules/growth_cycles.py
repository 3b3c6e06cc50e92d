"""Gradients that hold the graph that they were computed by, which leads back to them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rule import Case
from gpumem_magic.trace.growth.ways import GRADIENTS
from gpumem_magic.values.findings import Growth
from gpumem_magic.values.inventory import HolderKind
from gpumem_magic.values.recording import Category


def cycled(case: Case, growth: Growth) -> Growth:
    """Graphs, what gets gradients, and what else the same passes left, that nothing leads to, are
    held by gradients with a graph, where the cell makes them: each of these holds the others."""
    if growth.holder and growth.kind != HolderKind.CYCLE.value:
        return growth
    cell, rows = case.cell, list(growth.rows)
    given = any(asks_for_graph(cell, "torch.autograd.grad")) and any(_gives_gradients(cell))
    of_models = case.lives.of(Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    leaves = bool(rows) and bool(of_models[rows].all())
    graphs = (g for g in case.trace.growth if g.graph and not g.holder)
    beside = any(abs(one.passes - growth.passes) <= 1 for one in graphs)
    if not (growth.graph or leaves or beside):
        return growth
    asks = given or any(asks_for_graph(cell, ".backward"))
    return replace(growth, holder=GRADIENTS) if asks else growth


def asks_for_graph(code: Code, *names: str) -> Iterator[ast.Call]:
    """Calls with create_graph=True."""
    for call in code.calls(*names):
        asked = [k.value for k in call.keywords if k.arg == "create_graph"]
        if asked and not (isinstance(asked[0], ast.Constant) and not asked[0].value):
            yield call


def _gives_gradients(code: Code) -> Iterator[ast.Attribute]:
    """Where a gradient is assigned: `weight.grad = ...`."""
    for node in code.nodes(ast.Attribute):
        if node.attr == "grad" and isinstance(node.ctx, ast.Store):
            yield node


def of_gradients(code: Code) -> str:
    """What makes them, and what to do in its place."""
    if any(asks_for_graph(code, ".backward")):
        return (
            "backward(create_graph=True) leaves gradients that hold the graph: use "
            "torch.autograd.grad(), or set the gradients to None after the step."
        )
    given = next(_gives_gradients(code), None)
    where = (
        f"{code.text(given)} ({code.place(given.lineno)})" if given is not None else "A gradient"
    )
    return (
        f"{where} is given a gradient with its graph, which leads back to what it is the gradient "
        "of, so that each holds the other: assign its .detach(), or leave out create_graph=True."
    )
