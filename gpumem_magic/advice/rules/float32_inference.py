"""Inference in single precision."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

import numpy as np

from gpumem_magic.advice.changes.mixed_precision import AUTOCAST, has_bfloat16
from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.evidence.training_pass import before_loops
from gpumem_magic.advice.evidence.unused_graphs import WITHOUT_GRAPH
from gpumem_magic.advice.rewrite import UnsafeError, enclose
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Cost, Edit, Example, Kind, Known, Saves
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names, TensorFacts
from gpumem_magic.values.recording import Category, Phase

_MODEL = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()) for _ in range(6)]).cuda()
x = torch.randn(64, 1024, device="cuda")
"""


class Float32Inference(Rule):
    """Inference seldom needs 32 bits for each weight.

    In half precision the weights and what the layers compute take half of the memory. bfloat16 has
    the range of float32 and fewer digits; where the card computes it (compute capability 8.0 and
    newer) nothing overflows. float16 has more digits and overflows beyond 65504. The results differ
    in the third digit. A model that is trained further should keep its float32 weights: convert a
    copy, or load them again.
    """

    name: ClassVar[str] = "float32-inference"
    problem: ClassVar[str] = "a model that only predicts has its weights in float32"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_MODEL,
            before="with torch.no_grad():\n    y = model(x)\ny.shape",
            after="with torch.no_grad():\n    model.half()\n    y = model(x.half()).float()\n"
            "y.shape",
            results=("y",),
            within=0.02,
        ),
        mended(
            ("    for i in range(4):\n", "    model.bfloat16()\n    for i in range(4):\n"),
            (
                "scores = model(batch)  # one row for each input",
                "scores = model(batch.bfloat16()).float()  # one row for each input",
            ),
            setup=_MODEL + "inputs = x.split(16)",
            card="A100-40GB",
            before="""\
model.eval()
labels = []
with torch.inference_mode():
    for i in range(4):
        batch = inputs[i]
        scores = model(batch)  # one row for each input
        labels.append(scores[:, :8].cpu())
result = torch.cat(labels)""",
            results=("result",),
            within=0.05,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        trains = np.any(lives.born != Phase.FORWARD)
        if trains or cell.calls(".backward", ".train", *AUTOCAST):
            return
        bfloat16 = has_bfloat16(trace.device.capability if trace.device else None)
        for name, facts in names.modules.items():
            size = facts.dtypes.get("float32", 0)
            saving = size // 2
            calls = [c for c in _calls(cell, name) if cell.is_under(c, *WITHOUT_GRAPH)]
            if not calls or saving < least_saving(trace) or 2 * size < facts.parameters:
                continue
            moved = lives.bytes(lives.of(Category.PARAMETER) & (lives.birth >= 0)) >= size
            advice = Advice(
                self.name,
                problem=f"{name} predicts without a graph, with {format_bytes(size)} of weights "
                "in float32.",
                change=f"Convert the model and its input to "
                f"{'bfloat16' if bfloat16 else 'float16'}: the weights take half.",
                line=calls[0].lineno,
                name=name,
                size=size,
                saving=saving,
                known=Known.ESTIMATED,
                saves=Saves.AFTER,
                price="Results differ in the third digit; train further with float32 weights only.",
                cost=Cost.ACCURACY,
            )
            kind = "bfloat16" if bfloat16 else "half"
            edits = partial(_converted, cell, names, name, calls, kind, moved)
            yield self.propose(cell, advice, edits)


def _calls(cell: Code, name: str) -> Iterator[ast.Call]:
    """Calls of the model by its name, or as the argument of a function of the cell."""
    yield from cell.calls(name)
    for function in cell.walk():
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        own = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        for call in cell.calls(function.name):
            given = [*zip(own, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
            for parameter, value in given:
                if parameter and parameter != name and cell.dotted(value) == name:
                    yield from cell.calls(parameter, within=function)


def _converted(
    cell: Code,
    names: Names,
    name: str,
    calls: list[ast.Call],
    kind: str,
    moved: bool,
) -> Iterator[Edit]:
    """The model and what it is called with in half precision, its output in float32 again."""
    if len(calls) != len(list(_calls(cell, name))):
        raise UnsafeError(f"{name} is also called elsewhere")
    if cell.function(calls[0]) is not None:
        raise UnsafeError("a function calls the model, with what is not seen here")
    if any(isinstance(s, ast.Assign) for s in cell.assigned(name)) and not moved:
        raise UnsafeError(f"{name} is made in this cell")
    yield from before_loops(cell, cell.statement(calls[0]), f"{name}.{kind}()")
    for call in calls:
        if len(call.args) != 1 or call.keywords or not isinstance(call.args[0], ast.Name):
            raise UnsafeError("what the model is called with has no name of its own")
        given = names.tensors.get(call.args[0].id)
        if given is None:
            raise UnsafeError(f"it is not known what {call.args[0].id} is")
        if given.dtype == "float32":
            yield from enclose(cell, call.args[0], "", f".{kind}()")
        if _output(cell, names, call).dtype == "float32":
            yield from enclose(cell, call, "", ".float()")


def _output(cell: Code, names: Names, call: ast.Call) -> TensorFacts:
    statement = cell.statement(call)
    if isinstance(statement, ast.Assign) and statement.value is call:
        target = statement.targets[0]
        if isinstance(target, ast.Name) and target.id in names.tensors:
            return names.tensors[target.id]
    raise UnsafeError("it is not known what the model returns")
