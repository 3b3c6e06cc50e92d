"""Other devices that nobody uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import is_short
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.units import GIB, format_bytes
from gpumem_magic.values.advice import Advice, Example, Kind
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category, IdleDevice, Machine

_STATE = (*(Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE),)
_TRAINING = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(4096, 128, device="cuda")
y = torch.randint(10, (4096,), device="cuda")
"""
_LOOP = """\
for step in range(2):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_FUNCTION = """\
def fit(model, optimizer, x, y, steps):
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.detach()

last = fit(model, optimizer, x, y, steps=2)
"""


class IdleGpus(Rule):
    """This device is full, and another one that PyTorch sees is idle.

    A tensor lies on one device, and a model trains on the one that it was moved to, however many
    there are. `DistributedDataParallel` (one process for each GPU, each with the whole model and
    its share of the batch) divides activations. `FSDP` (`fully_shard`) divides parameters,
    gradients and the optimizer's state as well, and gathers the parameters of one layer at a time.
    Model parallelism puts some layers on each. `nn.DataParallel` is no cure: it replicates the
    model from device 0 in each step and gathers outputs there, so that device 0, the one that is
    full, keeps the parameters, gradients, states and outputs of all.
    """

    name: ClassVar[str] = "idle-gpus"
    problem: ClassVar[str] = "this device is full while another one is idle"
    kind: ClassVar[Kind] = Kind.FACT
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            setup=_TRAINING,
            before=_LOOP,
            card="380MiB",
            machine=Machine(idle=(IdleDevice(1, "Tesla T4", 15 * GIB, 0),)),
            results=("loss",),
            rewritten=False,
        ),
        mended(
            setup=_TRAINING,
            before=_FUNCTION,
            card="380MiB",
            machine=Machine(idle=tuple(IdleDevice(i, "Tesla T4", 15 * GIB, 0) for i in (1, 2, 3))),
            results=("last",),
            rewritten=False,
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        idle = trace.machine.idle
        if not idle or not is_short(trace) or not trace.peak.allocated:
            return
        held = trace.oom.held if trace.oom is not None and trace.oom.held else trace.at_peak
        total = sum(held.values())
        state = sum(held.get(category, 0) for category in _STATE)
        here = f"{trace.device.name} {trace.device.index}" if trace.device else "this device"
        yield Advice(
            self.name,
            problem=f"{here} is full, with {format_bytes(total)} in tensors; idle {_list(idle)}.",
            change=_change(state, total - state, held.get(Category.GRADIENT, 0), 1 + len(idle)),
            size=total,
            price="one process for each device, or a model in parts",
        )


def _change(state: int, rest: int, gradients: int, devices: int) -> str:
    """state: bytes of parameters, buffers, gradients and optimizer states; rest: of all else."""
    part = rest // devices
    data = f"about {format_bytes(state + gradients + part)} with DistributedDataParallel"
    sharded = f"{format_bytes(state // devices + part)} and one gathered layer with FSDP"
    layers = f"{format_bytes((state + rest) // devices)} with the layers divided among them"
    if state and gradients:
        data += " (its buckets hold the gradients again; gradient_as_bucket_view=True saves that)"
    return (
        f"Spread the work over {devices} devices. Each would then hold {data}; {sharded}; "
        f"{layers}. The batch stays as large as it is, divided among them. DataParallel does not "
        "help: it keeps all states, and gathers the outputs, on device 0."
    )


def _list(idle: tuple[IdleDevice, ...]) -> str:
    first = idle[0]
    free = format_bytes(first.total - first.used)
    if len(idle) == 1:
        return f"is {first.name} {first.index}, with {free} free"
    return f"are {len(idle)} other devices, such as {first.name} {first.index} with {free} free"
