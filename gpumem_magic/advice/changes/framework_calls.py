"""Writes arguments of a training framework into the calls that make its objects."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from gpumem_magic.advice.changes.frameworks import Framework
from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rewrite import UnsafeError, import_line, replace, set_keyword
from gpumem_magic.values.advice import Argument, Edit

_TRAINER = r"(transformers|trl|sentence_transformers)\..*Trainer"
_LORA = 'LoraConfig(target_modules="all-linear")'


def passed(cell: Code, framework: Framework, arguments: Iterable[Argument]) -> Iterator[Edit]:
    """Each argument in the one call of the cell that takes it. Raises UnsafeError where that call
    is elsewhere."""
    for argument in arguments:
        call = _one_call(cell, framework.spelled_as(argument.owner))
        known = any(keyword.arg == argument.name for keyword in call.keywords)
        if len(call.args) > 1 and not known:
            raise UnsafeError(f"{argument.name} may be passed by its place")
        yield from set_keyword(cell, call, argument.name, repr(argument.value))


def with_adapters(cell: Code) -> tuple[Edit, ...]:
    """The model of the cell's one trainer with LoRA's adapters. Raises UnsafeError."""
    call = _one_call(cell, _TRAINER)
    model = next((k.value for k in call.keywords if k.arg == "model"), None)
    model = model or next(iter(call.args), None)
    if model is None or isinstance(model, ast.Starred):
        raise UnsafeError("the trainer's model was not found")
    imported = import_line(cell, "from peft import LoraConfig, get_peft_model")
    return (*imported, *replace(cell, model, f"get_peft_model({cell.text(model)}, {_LORA})"))


def _one_call(cell: Code, spelled: str) -> ast.Call:
    calls = [c for c in cell.nodes(ast.Call) if re.fullmatch(spelled, cell.dotted(c.func))]
    if len(calls) != 1:
        raise UnsafeError("the call is not in this cell" if not calls else "there are several")
    return calls[0]
