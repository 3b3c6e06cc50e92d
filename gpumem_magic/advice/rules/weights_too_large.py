"""A model whose weights alone, or with their gradients, fill the device."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_SHARE = 0.7
"""Of what is allocated, workspaces aside, that weights and gradients are at least."""

_OTHERS = 0.1
"""Of the weights, that are older than the cell, or that it does not use: those are to go first."""

_ALL = 0.95
"""Of the weights: so many gradients are all that there are to be."""

_TRAINING = (
    "Each trained weight needs a gradient as large, whatever the batch: fewer of them trained "
    "(frozen layers, LoRA), or weights in bfloat16 (model.bfloat16() before .to(device)), whose "
    "gradients take half, too."
)
_FREEZING = (
    "Where the others are not to be trained, call requires_grad_(False) on them before training: "
    "they then get no gradients. "
)
_HALF = "In half precision they take half (.half() or .bfloat16() before they are moved); "
_ONE_BY_ONE = (
    "If these are models of their own, such as an ensemble's, use one at a time, and keep the "
    "others on the host until then (.cpu()). Of layers of one model: "
)
_MOVING = (
    "8 or 4 bits (bitsandbytes) take less; some layers may lie on the host, or on another device. "
    "No smaller batch helps, and training needs as much again for gradients."
)

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(10)])
x = torch.randn(4, 1024, device="cuda")
"""
_STEPS = """\
class Learner:
    def __init__(self, model, lr=1e-3):
        self.model = model.cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)

    def learn(self, batch):
        loss = self.model(batch).float().square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

learner = Learner(net)
for _ in range(2):
    last = learner.learn(x)
"""


class WeightsTooLarge(Rule):
    """The model's weights fill the device, alone or with their gradients.

    Weights, gradients and the optimizer's state are as large as the model makes them: 4 bytes for
    each weight in float32, as many for its gradient, 8 for Adam's state. A smaller batch changes
    nothing about them. What does: half precision, fewer trained weights (frozen layers, LoRA),
    weights in 8 or 4 bits, or a part of the model on another device.
    """

    name: ClassVar[str] = "weights-too-large"
    problem: ClassVar[str] = "the model's weights fill the device"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            ("net.cuda()", "net.bfloat16().cuda()"),
            ("net(x).", "net(x.bfloat16()).float()."),
            setup=_SETUP,
            before="net.cuda()\nnet(x).square().mean().backward()\n",
            card="85MiB",
            rewritten=False,
        ),
        mended(
            ("Learner(net)", "Learner(net.bfloat16())"),
            ("learner.learn(x)", "learner.learn(x.bfloat16())"),
            setup=_SETUP,
            before=_STEPS,
            card="85MiB",
            rewritten=False,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives, oom, left = trace.lives, trace.oom, trace.left_over
        if oom is None or trace.growth or not len(lives):
            return
        size, gradients = (oom.held.get(c, 0) for c in (Category.PARAMETER, Category.GRADIENT))
        others = sum(oom.held.values()) - oom.held.get(Category.WORKSPACE, 0) - size - gradients
        asked = (oom.requested or 0) if oom.of_module else 0
        size += asked
        if others > (1 - _SHARE) / _SHARE * (size + gradients):
            return
        if (left is not None and left.size > _OTHERS * size) or _are_of_several(lives, asked):
            return
        last, weights = int(lives.birth.argmax()), lives.of(Category.PARAMETER)
        older = lives.bytes(weights & (lives.birth < 0))
        moved = asked > 0 or (weights[last] and lives.birth[last] >= 0)
        if moved and older <= _OTHERS * size:
            several = _comprehension(cell, lives, last)
            what = f"modules that line {several} makes one by one" if several else "weights"
            problem = (
                f"Memory ran out as {what} were put on the device: {format_bytes(size - asked)} of "
                f"{'weights' if several else 'them'} are there, and "
                f"{f'{format_bytes(asked)} more were asked for' if asked else 'more were to come'}."
            )
            first, half = _ONE_BY_ONE if several else "", _HALF if _are_single(lives) else ""
            change, saving = f"{first}{half}{_MOVING}", size // 2
        elif lives.born[last] == Phase.BACKWARD and 0 < gradients < _ALL * size:
            problem = (
                f"Memory ran out as gradients were made: {format_bytes(gradients)} of them so far, "
                f"beside {format_bytes(size)} of weights: most of what is no workspace of cuBLAS."
            )
            left_out = _left_out(names)
            problem += f" {left_out}" if left_out else ""
            change, saving = f"{_FREEZING if left_out else ''}{_TRAINING}", size
        else:
            return
        yield Advice(
            self.name,
            problem,
            change,
            line=oom.line,
            size=size + gradients,
            saving=saving,
            known=Known.ESTIMATED,
        )


def _left_out(names: Names) -> str:
    """How little of models that get gradients their optimizers have, in words; "" of most."""
    partly = {name: module for name, module in names.modules.items() if module.optimized}
    few = {n: m for n, m in partly.items() if 2 * m.optimized < m.trainable}
    if not few:
        return ""
    name, module = max(few.items(), key=lambda item: item[1].trainable)
    return (
        f"Optimizers have {format_bytes(module.optimized)} of the "
        f"{format_bytes(module.trainable)} of {name} that require gradients."
    )


def _are_of_several(lives: Lifetimes, asked: int) -> bool:
    """Whether another model has some of the weights; the one that is being made, for which so many
    bytes were asked, has no name."""
    owned = lives.by_owner(lives.at_peak & lives.of(Category.PARAMETER))
    sizes = [int(lives.size[rows].sum()) for rows in owned.values()]
    return max(sizes, default=0) + asked < (1 - _OTHERS) * (sum(sizes) + asked)


def _comprehension(cell: Code, lives: Lifetimes, row: int) -> int | None:
    """The line of a comprehension that makes a list of modules, given to no other module."""
    for frame in lives.frames(row):
        statement = cell.statement_at(frame.line) if frame.filename == cell.cell.filename else None
        for made in cell.nodes(ast.ListComp, ast.DictComp, within=statement) if statement else ():
            if not isinstance(cell.parent(made), ast.Starred | ast.Call):
                return made.lineno
    return None


def _are_single(lives: Lifetimes) -> bool:
    """Whether no weight is known to be of another type than float32."""
    weights = lives.of(Category.PARAMETER) & (lives.birth >= 0)
    return {lives.tensor(row)[1] for row in np.flatnonzero(weights).tolist()} <= {"float32", None}
