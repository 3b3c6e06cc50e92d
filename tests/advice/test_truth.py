"""What is said is true, in code of any shape, run and predicted: of gradients that are needed, of
what would have left room, of what waits for a backward pass, of gaps, of other models' memory."""

from __future__ import annotations

import textwrap

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.values.findings import Way  # noqa: E402 - needs torch for what it is tested with

MIB = 1 << 20
SETUP = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)

def mib(n):
    return torch.zeros(int(n * 2**20), dtype=torch.uint8, device="cuda")
"""


def in_shape(body, shape):
    """The body as it is, in a function, or in a method."""
    if shape == "flat":
        return body
    function = f"def run():\n{textwrap.indent(body, '    ')}"
    if shape == "function":
        return f"{function}\nrun()\n"
    method = textwrap.indent(function.replace("run()", "run(self)"), "    ")
    return f"class Runner:\n{method}\nRunner().run()\n"


@pytest.fixture
def failed(notebook):
    """The report of a cell that runs out of memory, run or predicted."""

    def failed(cell, card, way, *earlier):
        with notebook(card) as one:
            for text in (SETUP, *earlier):
                result, said = one.run(text)
                assert result.success, said
            if way == "predicted":
                one.run(f"%%gpucheck -o _report\n{cell}")
                report = one.shell.user_ns["_report"]
            else:
                report = one.measure(cell)
        assert report.oom is not None
        return report

    return failed


ways = pytest.mark.parametrize("way", ["run", "predicted"])
shapes = pytest.mark.parametrize("shape", ["flat", "function", "class"])


@ways
@shapes
def test_gradients_that_a_first_step_reads_neither_go_nor_grow(failed, shape, way):
    model = "model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]).cuda()"
    body = """\
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(8, 1024, device="cuda")
for _ in range(2):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
    report = failed(in_shape(body, shape), "160MiB", way, model)
    assert "step" in report.cell.source.splitlines()[report.oom.line - 1]
    assert report.oom.remedy(Way.GRADIENTS) is None
    assert "growth" not in [advice.rule for advice in report.advice]
    assert "zero_grad()" not in "".join(advice.change for advice in report.advice)


@ways
def test_a_remedy_says_how_much_further_the_cell_gets(failed, way):
    """Exactly so far: without it, memory runs out later by what it leaves."""
    cell = "".join(f"t{i} = mib({size})\n" for i, size in enumerate((40, 10, 24, 26, 10)))
    report = failed(cell, "100MiB", way, "left = mib(40)")
    remedy = report.oom.remedy(Way.UNUSED)
    assert (remedy.name, remedy.enough) == ("left", True)
    assert report.oom.left_by(remedy) == 26 * MIB
    assert "finds at most 26.00 MiB free" in " ".join(str(report).split())
    without = failed(f"del left\n{cell}", "100MiB", way, "left = mib(40)").oom
    reached = sum(report.oom.held.values()) - remedy.size
    assert sum(without.held.values()) - reached == 26 * MIB + report.oom.requested


OTHERS = """\
def layers(n):
    return nn.Sequential(*[nn.Linear(512, 512) for _ in range(n)]).cuda()

x = torch.randn(8, 512, device="cuda")
other, model = layers(24), layers(3)
adam = torch.optim.Adam(other.parameters())
other(x).sum().backward()
adam.step()
"""


@shapes
def test_memory_of_models_that_a_cell_does_not_train_is_not_its_optimizers(notebook, shape):
    body = """\
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    with notebook("T4") as one:
        one.run(SETUP)
        one.run(OTHERS)
        found = one.assess(in_shape(body, shape))
    assert found.report.error is None
    told = {advice.rule for advice in (*found.advice, *found.useless)}
    assert not told & {"optimizer-state", "step-in-backward"}
