"""What grew in code that is not the cell's: that of a framework, a library or another cell."""

from __future__ import annotations

import ast
import re

import numpy as np

from gpumem_magic.advice.changes.frameworks import framework_of
from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.passes import carried_names
from gpumem_magic.trace.growth.ways import without_places
from gpumem_magic.values.findings import Growth
from gpumem_magic.values.inventory import HolderKind
from gpumem_magic.values.lifetimes import Lifetimes

_GENERATED = (
    "generate() keeps these of each new token because it was asked to: leave out output_scores, "
    "output_logits, output_attentions and output_hidden_states, or what of them is wanted can be "
    "computed of the finished text, by one call of the model."
)

_CACHED = (
    "generate() keeps the keys and values of each token, for every layer, sequence and beam: fewer "
    'sequences or beams at a time, fewer new tokens, or cache_implementation="quantized" '
    '("offloaded" keeps them on the host).'
)
_OF_ALL_SAMPLES = (
    "{name}() holds the derivatives of each sample by all of them, which are zero where samples do "
    "not meet: torch.func.vmap(torch.func.{other}(f))(x) makes those of each by itself alone; or "
    "take fewer samples at a time."
)
_DERIVATIVES = {"jacobian": "jacrev", "hessian": "hessian"}


def of_libraries(lives: Lifetimes, code: Code, growth: Growth) -> str:
    """What to pass to the library whose function collects it; "" where none does."""
    told = _of_framework(lives, growth) or _of_derivatives(lives, growth)
    words = re.findall(r"\w+", without_places(growth.holder))
    if told or any(node.attr == words[-1] for node in code.nodes(ast.Attribute) if words[1:]):
        return told  # the text's own attribute, of an object that the library was given
    return _of_library(lives, growth)


def _of_framework(lives: Lifetimes, growth: Growth) -> str:
    """The arguments by which a framework's own loop keeps less; "" where it is none."""
    framework = framework_of(lives)
    function = growth.holder.partition("().")[0]
    for knob in framework.knobs if framework else ():
        stacks = ({f.function for f in stack} for stack in lives.stacks) if knob.born_in else ()
        if framework and any({knob.born_in, function} <= functions for functions in stacks):
            said = ", ".join(f"{name}={value!r}" for name, value in knob.values.items())
            return f"{knob.change}: pass {said} to {framework.owner.rpartition('.')[2]}."
    return ""


def _of_derivatives(lives: Lifetimes, growth: Growth) -> str:
    """Where torch.autograd.functional makes the derivatives of a batch, one by one."""
    for frame in lives.frames(growth.rows[0]) if growth.rows else ():
        in_torch = frame.filename.replace("\\", "/").endswith("torch/autograd/functional.py")
        if in_torch and frame.function in _DERIVATIVES:
            name = frame.function
            return _OF_ALL_SAMPLES.format(name=name, other=_DERIVATIVES[name])
    return ""


def _of_library(lives: Lifetimes, growth: Growth) -> str:
    """Where a variable of a library's function holds it, which failed: that is no error's."""
    function = re.match(r"(\w+)\(\)\.", growth.holder)
    if growth.kind != HolderKind.EXCEPTION.value or function is None:
        return ""
    stacks = np.unique(lives.stack[list(growth.rows)])
    frames = [f for stack in stacks.tolist() if stack >= 0 for f in lives.stacks[stack]]
    files = {f.filename.replace("\\", "/") for f in frames if f.function == function[1]}
    file = min(files, default="")
    if any(f.filename.endswith("cache_utils.py") for f in frames):
        return _CACHED
    if "/transformers/generation/" in file:
        return _GENERATED
    if not file:
        return ""
    package = file.partition("-packages/")[2].partition("/")[0] or file.rpartition("/")[2][:-3]
    return (
        f"{function[1]}() of {package} collects it: give it less at a time, or what is on the host "
        "(.cpu()), or ask it to keep less."
    )


def came_of(lives: Lifetimes, cell: Code, growth: Growth) -> bool:
    """Whether the holder is what came of a loop in another cell, rather than what this one's loop
    carries on."""
    if not growth.cell or not growth.graph or not growth.rows or not growth.holder.isidentifier():
        return False
    loop = cell.looped(int(lives.line[growth.rows[-1]]))[1]
    return loop is None or growth.holder not in carried_names(cell, loop)
