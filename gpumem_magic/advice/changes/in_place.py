"""Finds activation functions that could overwrite their input, and writes them so."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rewrite import UnsafeError, set_keyword
from gpumem_magic.values.advice import Edit
from gpumem_magic.values.lifetimes import Lifetimes

_FUNCTIONS = ("relu", "leaky_relu", "relu6", "hardtanh", "elu", "celu", "rrelu", "threshold")
_CLASSES = ("ReLU", "LeakyReLU", "ReLU6", "Hardtanh", "ELU", "CELU", "RReLU")
_FRESH = ("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d",
          "ConvTranspose3d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm",
          "LayerNorm")  # fmt: skip
"""Layers that make a new tensor and do not need it in their own backward pass."""

_FRAMES = 3  # how far inside an activation function the allocation is


def overwritable(lives: Lifetimes) -> NDArray[np.bool_]:
    """The inputs of activation functions that are alive at the peak, beside the outputs."""
    inputs = np.zeros(len(lives), bool)
    made = [_is_activation(lives, stack) for stack in range(len(lives.stacks))]
    outputs = np.flatnonzero(np.array([*made, False], bool)[lives.stack] & lives.at_peak)
    for output in outputs.tolist():
        before = np.flatnonzero(lives.size[:output] == lives.size[output])
        if len(before) and lives.birth[before[-1]] >= 0:
            inputs[before[-1]] = True
    return inputs & lives.at_peak


def in_place(cell: Code) -> tuple[Edit, ...]:
    """Every activation function of the cell that follows a layer of its own, with inplace=True."""
    edits = [*_in_sequences(cell), *_in_forwards(cell)]
    if not edits:
        raise UnsafeError("the activation functions are not in this cell, or share their input")
    return tuple(edits)


def _is_activation(lives: Lifetimes, stack: int) -> bool:
    frames = lives.stacks[stack][:_FRAMES]
    return any(f.function in _FUNCTIONS and "torch/nn/functional" in f.filename for f in frames)


def _in_sequences(cell: Code) -> Iterator[Edit]:
    """`nn.ReLU()` right behind a layer in the same `nn.Sequential(...)`."""
    for sequence in cell.calls("torch.nn.Sequential"):
        for before, after in zip(sequence.args, sequence.args[1:], strict=False):
            if _is_layer(cell, before, _FRESH) and _is_layer(cell, after, _CLASSES):
                assert isinstance(after, ast.Call)
                if not _is_in_place(after):
                    yield from set_keyword(cell, after, "inplace", "True")


def _in_forwards(cell: Code) -> Iterator[Edit]:
    """`F.relu(self.conv(x))`, where the class makes `self.conv` a layer."""
    for function in _FUNCTIONS:
        for call in cell.calls(f"torch.nn.functional.{function}"):
            if len(call.args) == 1 and _makes_fresh(cell, call.args[0]) and not _is_in_place(call):
                yield from set_keyword(cell, call, "inplace", "True")


def _makes_fresh(cell: Code, expression: ast.expr) -> bool:
    if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Attribute):
        return False
    layer = expression.func
    makers = [
        node.value
        for node in cell.walk()
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Attribute) and t.attr == layer.attr for t in node.targets)
    ]
    return bool(makers) and all(_is_layer(cell, maker, _FRESH) for maker in makers)


def _is_layer(cell: Code, node: ast.expr, classes: tuple[str, ...]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    package, _, name = cell.dotted(node.func).rpartition(".")
    return package == "torch.nn" and name in classes


def _is_in_place(call: ast.Call) -> bool:
    return any(k.arg in ("inplace", None) for k in call.keywords)
