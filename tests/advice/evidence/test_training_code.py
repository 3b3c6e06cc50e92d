"""What a cell's text tells of optimizers, their steps and who reads gradients."""

from __future__ import annotations

import pytest

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.training_code import (
    find_built,
    find_steps,
    is_always_run_after,
    optimizer_class,
    reads_gradients,
)
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Cell


def code(source, **known):
    return Code(Cell(source, "<cell>"), {"torch": "torch", "optim": "torch.optim", **known})


@pytest.mark.parametrize(
    ("dotted", "kind"),
    [
        ("torch.optim.AdamW", "AdamW"),
        ("torch.optim.adamw.AdamW", "AdamW"),
        ("torch.optim.lr_scheduler.StepLR", ""),
        ("torch.optim.swa_utils.AveragedModel", ""),
        ("bitsandbytes.optim.AdamW8bit", ""),
        ("torch.optim", ""),
    ],
)
def test_the_class_of_an_optimizer(dotted, kind):
    assert optimizer_class(dotted) == kind


def test_built_optimizers_have_a_target():
    cell = code("opt = optim.SGD(p, 1)\nself.o = torch.optim.Adam(p)\nm = torch.nn.Linear(1, 1)")
    assert [(b.target, b.kind) for b in find_built(cell)] == [("opt", "SGD"), ("self.o", "Adam")]


def test_steps_of_schedulers_and_with_closures_are_none():
    cell = code(
        "opt = optim.SGD(p, 1)\n"
        "sched = optim.lr_scheduler.StepLR(opt, 1)\n"
        "opt.step()\nsched.step()\nscaler.step(opt)\nopt.step(closure)\nenv.step(action)"
    )
    assert [(s.line, s.optimizer, s.scaled) for s in find_steps(cell, Names())] == [
        (3, "opt", False),
        (5, "opt", True),
    ]


def test_a_wrapper_of_ones_own_is_no_optimizer_of_torch():
    cell = code("engine.zero_grad()\nengine.step()")
    names = Names(others={"engine": "deepspeed.Engine"})
    assert not list(find_steps(cell, names))


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("norms = [p.grad.norm() for p in ps]", True),
        ("plot_grad_flow(model.named_parameters())", True),
        ("torch.nn.utils.clip_grad_norm_(ps, 1.0)\nopt.zero_grad()", False),
        ("with torch.no_grad():\n    y = model(x)\nmodel.requires_grad_(False)", False),
        ("g = torch.autograd.grad(y, x)", False),
    ],
)
def test_who_reads_gradients(source, reads):
    assert reads_gradients(code(source)) is reads


def test_a_way_out_between_two_statements():
    cell = code("for x in xs:\n    loss.backward()\n    if bad: continue\n    opt.step()")
    backward, _, step = cell.tree.body[0].body
    assert not is_always_run_after(step, backward, cell)
    cell = code("loss.backward()\nprint(loss)\nopt.step()")
    backward, _, step = cell.tree.body
    assert is_always_run_after(step, backward, cell)
    assert not is_always_run_after(backward, step, cell)
