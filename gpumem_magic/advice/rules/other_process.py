"""Memory that somebody else holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.oom_text.cures import end_others
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind
from gpumem_magic.values.findings import Trace, Way
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Machine, Neighbour

_LISTED = 3  # the largest ones
_TRAINING = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4096, 128, device="cuda")
y = torch.randint(10, (4096,), device="cuda")
"""
_STEP = """\
for step in range(2):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_SERVER = Neighbour(4711, "python serve.py", 150 * MIB)


class OtherProcess(Rule):
    """Another process holds the memory that this cell lacked.

    A GPU is shared by all that run on it: another notebook whose kernel was never shut down, a
    training run in the background, the jobs of colleagues. Nothing that this notebook frees gives
    back what they hold. Shut the other kernel down (closing its tab leaves it running), wait, or
    choose another device. Where the driver tells, the process is named by its number.
    """

    name: ClassVar[str] = "other-process"
    problem: ClassVar[str] = "another process holds the memory that was missing"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            setup=_TRAINING,
            before=_STEP,
            card="300MiB",
            machine=Machine((_SERVER,)),
            results=("loss",),
            rewritten=False,
        ),
        mended(
            setup="import torch",
            before="table = torch.ones(25, 1 << 20, device='cuda')\nsums = table.sum(1)",
            card="300MiB",
            machine=Machine((Neighbour(None, "", 100 * MIB), Neighbour(18, "python", 120 * MIB))),
            results=("sums",),
            rewritten=False,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        oom = trace.oom
        remedy = oom.remedy(Way.OTHERS) if oom is not None else None
        if oom is None or remedy is None or not remedy.enough:
            return
        yield Advice(
            self.name,
            problem=(
                f"{oom.place} lacked {format_bytes(oom.missing or 0)}; other processes hold "
                f"{format_bytes(remedy.size)} of this device{_list(trace.machine.neighbours)}."
            ),
            change=(
                f"{end_others(remedy.size)} Nothing that this notebook frees gives that memory "
                "back."
            ),
            line=oom.line,
            size=remedy.size,
        )


def _list(neighbours: Iterable[Neighbour]) -> str:
    known = [one for one in neighbours if one.pid is not None]
    known.sort(key=lambda one: -(one.used or 0))
    if not known:
        return "; the driver does not tell which"
    texts = [_text(one) for one in known[:_LISTED]]
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f": {', '.join(texts)}{more}"


def _text(one: Neighbour) -> str:
    size = "" if one.used is None else f", {format_bytes(one.used)}"
    name = f" ({one.name}{size})" if one.name else f" ({size.removeprefix(', ')})" if size else ""
    return f"process {one.pid}{name}"
