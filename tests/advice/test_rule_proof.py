"""What a dry run says that a change saves is what the changed cell saves when it is run, in code of
any shape."""

from __future__ import annotations

import ast
import textwrap

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.advice import RULES  # noqa: E402 - needs torch for what it is tested with
from gpumem_magic.values.advice import Cost, Kind, Known, Saves  # noqa: E402

SETUP = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)]).cuda()
data = torch.randn(4, 512, 256)
"""
LOADER = "data = torch.utils.data.DataLoader(data, batch_size=None)\n"

BODIES = {
    "no backward": """\
outs = []
for x in data:
    outs.append(model(x.cuda()))
found = [float(out.mean()) for out in outs]
""",
    "a sum of losses": """\
total = 0
for x in data:
    x = x.cuda()
    total += F.mse_loss(model(x), x)
found = [float(total)]
""",
    "training": """\
opt = torch.optim.Adam(model.parameters())
found = []
for x in data:
    x = x.cuda()
    loss = F.mse_loss(model(x), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    found.append(loss.item())
""",
}


def shaped(body, shape):
    """Cells that come before, and the cell."""
    inside = textwrap.indent(body, "    ") + "    return found\n"
    function = f"def run():\n{inside}"
    method = f"class Runner:\n{textwrap.indent(inside.replace('def run()', ''), '    ')}"
    method = method.replace("class Runner:\n", "class Runner:\n    def run(self):\n")
    return {
        "flat": ("", body),
        "loader": (LOADER, body),
        "function": ("", f"{function}\nfound = run()\n"),
        "class": ("", f"{method}\nfound = Runner().run()\n"),
        "two cells": (function, "found = run()\n"),
    }[shape]


def size(report, saves):
    if saves is Saves.AFTER:
        return report.after.allocated
    return report.peak.reserved if saves is Saves.RESERVED else report.peak.allocated


def run_live(notebook, earlier, cell):
    with notebook("T4") as one:
        for text in filter(None, (SETUP, earlier)):
            result, said = one.run(text)
            assert result.success, said
        return one.measure(cell), one.shell.user_ns["found"]


@pytest.mark.parametrize("shape", ["flat", "loader", "function", "class", "two cells"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_changed_cell_that_is_run_saves_what_its_dry_run_said(body, shape, notebook):
    earlier, cell = shaped(body, shape)
    with notebook("T4") as one:
        for text in filter(None, (SETUP, earlier)):
            one.run(text)
        found = one.assess(cell)
        before, results = one.measure(cell), one.shell.user_ns["found"]
    assert found.report.peak.allocated == before.peak.allocated
    changes = [a for a in (*found.advice, *found.useless) if a.known is Known.MEASURED]
    assert changes or shape == "two cells"
    assert not found.failed
    kinds = {rule.name: rule.kind for rule in RULES}
    for change in changes:
        after, now = run_live(notebook, earlier, change.source)
        saved = size(before, change.saves) - size(after, change.saves)
        assert abs(saved - change.saving) <= 0.02 * abs(change.saving), change
        if kinds[change.rule] is Kind.MISTAKE:
            assert now == pytest.approx(results, rel=1e-4)


# What they find stands at the notebook's own level, or in a class of its own.
AT_TOP = {"stale-output", "second-model", "float64-by-accident", "float32-inference"}
CHANGING = [
    rule
    for rule in RULES
    if any(example.rewritten and not example.needs for example in rule.examples)
]
DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def stored(code):
    names = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}


def is_flat(example):
    body = ast.parse(example.before).body
    return not any(isinstance(s, (ast.FunctionDef, ast.ClassDef, ast.With)) for s in body)


def in_shapes(rule, example):
    """What comes before the cell, and the cell as it is; with its definitions in a cell before; in
    a method, and in a function of a cell before, which return the results, where it has no
    functions of its own."""
    found = f"found = ({''.join(f'{name}, ' for name in example.results)})\n"
    if rule.name == "stale-output":  # of what the last line shows
        yield "", f"found = ()\n{example.before}"
        return
    yield "", f"{example.before}\n{found}"
    if rule.name in AT_TOP:
        yield "", f"if True:\n{textwrap.indent(example.before, '    ')}\n    {found}"
        return
    body = ast.parse(example.before).body
    defined = [s for s in body if isinstance(s, DEFINITIONS)]
    if not is_flat(example) and defined == body[: len(defined)]:
        start = body[len(defined)].lineno - 1
        lines = example.before.splitlines(keepends=True)
        yield "".join(lines[:start]), f"{''.join(lines[start:])}\n{found}"
    if not is_flat(example):
        return
    shared = stored(example.before) & stored("\n".join((example.setup, *example.earlier)))
    inside = f"global {', '.join(sorted(shared))}\n" if shared else ""
    inside += f"{example.before}\nreturn {found.removeprefix('found = ')}"
    function = f"def run():\n{textwrap.indent(inside, '    ')}\n"
    method = textwrap.indent(function.replace("run()", "run(self)"), "    ")
    yield "", f"class Runner:\n{method}\nfound = Runner().run()\n"
    yield function, "found = run()\n"


def measured(one, cell):
    report = one.measure(cell)
    found = one.shell.user_ns.get("found", ())
    return report, [torch.as_tensor(value).detach().cpu() for value in found]


def proven(rule, example, earlier, cell, notebook):
    """How many changes of the rule were written out, and did what was said of them."""
    with notebook(example.card) as one:
        one.set_up(example)
        one.run(earlier)
        told = one.assess(cell, rule.name)
        assert rule.name not in dict(told.failed), told.failed
        written = [a for a in (*told.advice, *told.useless) if a.rule == rule.name and a.source]
        if not written:
            return 0
        before, results = measured(one, cell)
    for change in written:
        with notebook(example.card) as one:
            one.set_up(example)
            one.run(earlier)
            after, now = measured(one, change.source)
        assert after.error is None, change
        if change.known is not Known.MEASURED:
            continue
        saved = size(before, change.saves) - size(after, change.saves)
        assert abs(saved - change.saving) <= 0.02 * abs(change.saving), change
        if change.cost is not Cost.ACCURACY and rule.name not in ("missing-zero-grad", *AT_TOP):
            # a batch in pieces draws other random numbers, for dropout say
            near = max(1e-2 if rule.name == "activations" else 1e-3, example.within)
            for was, value in zip(results, now, strict=True):
                assert torch.allclose(was.double(), value.double(), near, near), change
    return len(written)


@pytest.mark.parametrize("rule", CHANGING, ids=lambda rule: rule.name)
def test_what_a_rule_writes_out_does_in_any_shape_what_was_said_of_it(rule, notebook):
    """A flat example in all shapes; one with definitions, also where they are a cell of their own;
    the others where the rule writes nothing out there."""
    examples = [e for e in rule.examples if e.rewritten and not e.needs]
    whole = [e for e in examples if is_flat(e)][:1]
    whole += [e for e in examples if not is_flat(e)][:1]
    cells = [(e, *shape) for e in whole for shape in in_shapes(rule, e)]
    more = [(e, *next(in_shapes(rule, e))) for e in examples if e not in whole]
    written = 0
    for number, cell in enumerate([*cells, *more]):
        if number < len(cells) or written < 2:
            written += bool(proven(rule, *cell, notebook))
    assert written >= min(2, len(cells) + len(more))
