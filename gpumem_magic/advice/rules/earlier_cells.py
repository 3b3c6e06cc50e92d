"""What earlier cells left on the device, and this one does not use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import is_short
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.oom_text.cures import FREE
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, Phase

_SHARE: Final = 0.1
"""Of what is allocated at the peak: less is not why memory is short."""

_SHOWN: Final = 4

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
small = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.Adam(small.parameters())
small(torch.randn(64, 1024, device="cuda")).sum().backward()
optimizer.step()
"""
_CELL = """\
large = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda()
score = large(torch.ones(64, 2048, device="cuda")).sum().item()
"""
_OUTPUT = """\
import torch
torch.manual_seed(0)
weight = torch.randn(1024, 1024, device="cuda", requires_grad=True)
hidden = torch.randn(20_000, 1024, device="cuda") @ weight
"""
_PRODUCT = """\
x = torch.ones(10_000, 1024, device="cuda")
total = (x @ x.T[:, :512]).sum().item()
"""


class EarlierCells(Rule):
    """A notebook keeps what earlier cells made until a name is assigned again or deleted.

    The model of the last experiment with its gradients and its optimizer's state, a batch, an
    output with the graph that it was computed by: they stay on the device while the next cell runs,
    whether it needs them or not. Where memory is short they are the first to go: `del` the names,
    or `model.cpu()` what is wanted again. The rule names what neither this cell nor a function of
    another one speaks of.
    """

    name: ClassVar[str] = "earlier-cells"
    problem: ClassVar[str] = "earlier cells hold memory that this one does not use"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            setup=_SETUP,
            before=_CELL,
            first="del small, optimizer",
            card="300MiB",
            results=("score",),
            rewritten=False,
        ),
        mended(
            setup=_OUTPUT,
            before=_PRODUCT,
            first="del hidden, weight",
            card="240MiB",
            results=("total",),
            rewritten=False,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        own = trace.lives.at_peak & (trace.lives.birth >= 0)
        if not is_short(trace) or (trace.oom is None and not own.any()):
            return  # a cell that takes nothing needs no room
        graphs = [*self._of_graphs(trace, cell, names)]
        yield from graphs
        left = trace.left_over
        if left is None or (graphs and not left.names):
            return
        if left.size < _SHARE * (trace.peak.allocated or 0):
            return
        if not left.names:
            yield self._of_nobody(left.size)
            return
        shown = ", ".join(left.names[:_SHOWN])
        more = len(left.names) - _SHOWN
        also = f" and {more} more" if more > 0 else ""
        yield Advice(
            self.name,
            problem=f"Earlier cells hold {format_bytes(left.size)} that this cell does not use: "
            f"{shown}{also}.",
            change=f"del {shown} (and what else holds them, such as an optimizer) before this cell "
            "if they are not needed any more, or move them to the host (.cpu()).",
            name=left.names[0],
            size=left.size,
            saving=left.size,
            known=Known.ESTIMATED,
        )

    def _of_graphs(self, trace: Trace, cell: Code, names: Names) -> Iterator[Advice]:
        """Results that earlier cells collected with their graphs, and that this cell does not read,
        or reads where nothing goes backward: what graphs keep has no name."""
        lives = trace.lives
        backward = bool(cell.calls(".backward", "torch.autograd.grad"))
        backward |= bool((lives.born == Phase.BACKWARD).any())
        several = (n for n, count in names.containers.items() if count > 1)
        lists = [n for n in several if not (backward and cell.reads(n))]
        if not lists:
            return
        older = lives.at_peak & (lives.birth < 0) & (lives.label < 0)
        size = lives.bytes(older & ~lives.of(Category.WORKSPACE, Category.GRADIENT))
        if size < _SHARE * (trace.peak.allocated or 0):
            return
        name = max(lists, key=names.containers.__getitem__)
        yield Advice(
            self.name,
            problem=f"{name}, of an earlier cell, keeps {names.containers[name]} results with "
            f"their autograd graphs; {format_bytes(size)} older than this cell have no "
            "name, as what graphs keep has none.",
            change=f"If nothing is to go backward through {name}, fill it under torch.no_grad(), "
            "or with .detach(): then run the cells again."
            + ("" if cell.reads(name) else f" del {name} before this cell lets go of it, too."),
            name=name,
            size=size,
        )

    def _of_nobody(self, size: int) -> Advice:
        return Advice(
            self.name,
            problem=f"{format_bytes(size)} are older than this cell, and no name leads to them: an "
            "error that is over may hold them, or objects that hold each other until Python "
            "collects them.",
            change=f"Run {FREE} before this cell; %gpucheck shows what holds the rest.",
            size=size,
            saving=size,
            known=Known.ESTIMATED,
        )
