"""A whole data set, or all outputs, on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.batches import (
    Gathered,
    Moved,
    gathered,
    move_batches,
    moved,
    to_host,
)
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.rule import Rule
from gpumem_magic.advice.tree import lines_of
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Cost, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category

_LARGE = 0.2
"""Of the card: a batch is smaller."""

_ROUNDS = 3
"""Equal outputs that live at one time: fewer are no list that grows."""

_DATA = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 512)).cuda()
images = torch.randn(16384, 512)
labels = torch.randint(512, (16384,))
device = torch.device("cuda")
"""
_TRAINING = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = images.to(device)  # the whole set
target = labels.to(device)
for i in range(0, len(data), 4096):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(data[i : i + 4096]), target[i : i + 4096])
    loss.backward()
    optimizer.step()"""
_FEATURES = """\
def extract(model, images):
    features = []
    with torch.no_grad():
        for batch in images.split(2048):
            features.append(model(batch.cuda()))
    return torch.cat(features).cpu()

features = extract(model, images)"""


class DatasetOnDevice(Rule):
    """A tensor that is only ever read batch by batch lies on the device as a whole, or outputs are
    gathered there until the last one is made.

    The device needs one batch at a time. Leave the data set on the host and move each batch, with
    `pin_memory` and `non_blocking=True` so that the copy runs beside the computation; move each
    output to the host as soon as it is made. A small data set may well stay on the device, which
    saves these copies: this is for when memory is short.
    """

    name: ClassVar[str] = "dataset-on-device"
    problem: ClassVar[str] = "a whole data set, or all outputs, lie on the device at once"
    kind: ClassVar[Kind] = Kind.TRADE
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            setup=_DATA,
            before=_TRAINING,
            after=_TRAINING.replace("images.to(device)", "images").replace(
                "data[i : i + 4096]", "data[i : i + 4096].to(device)"
            ),
            results=("loss",),
        ),
        Example(
            setup=_DATA,
            before=_FEATURES,
            after=_FEATURES.replace("model(batch.cuda())", "model(batch.cuda()).cpu()"),
            results=("features",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lifetimes
        if lives is None:
            return
        yield from self._too_large(trace, cell)
        for whole in moved(cell, names):
            if (advice := self._of_data(trace, lives, cell, whole)) is not None:
                yield advice
        for kept in gathered(cell):
            if (advice := self._of_outputs(trace, lives, cell, kept)) is not None:
                yield advice

    def _too_large(self, trace: Trace, cell: Code) -> Iterator[Advice]:
        """Data whose copy to the device is what memory ran out for."""
        oom = trace.oom
        room = trace.device.total if trace.device else 0
        if oom is None or oom.op != "aten._to_copy" or (oom.requested or 0) < _LARGE * room:
            return
        if _only_casts(cell, oom.line):
            return
        yield Advice(
            self.name,
            problem=f"{oom.place} moves {format_bytes(oom.requested or 0)} to the device at once, "
            f"which has {format_bytes(room)} in all.",
            change="Leave the data on the host, and move each batch where it is read.",
            line=oom.line,
            size=oom.requested,
            saving=oom.requested,
            known=Known.ESTIMATED,
            price="a copy to the device in each iteration",
            cost=Cost.TIME,
        )

    def _of_data(self, trace: Trace, lives: Lifetimes, cell: Code, whole: Moved) -> Advice | None:
        line = whole.call.lineno
        mask = _born_on(lives, lines_of(whole.call)) & lives.at_peak
        saving = lives.saved_at_peak(mask)
        if saving < least_saving(trace):
            return None
        advice = Advice(
            self.name,
            problem=(
                f"line {line} moves all of {whole.name} to the device, "
                f"{format_bytes(lives.bytes(mask))}; it is only read a batch at a time."
            ),
            change=f"Leave {whole.name} on the host and move each batch where it is read.",
            line=line,
            name=whole.name,
            size=lives.bytes(mask),
            saving=saving,
            known=Known.ESTIMATED,
            price=f"a copy to the device in each iteration; {whole.name} is on the host afterwards",
            cost=Cost.TIME,
        )
        return self.propose(cell, advice, partial(move_batches, cell, whole))

    def _of_outputs(
        self, trace: Trace, lives: Lifetimes, cell: Code, kept: Gathered
    ) -> Advice | None:
        outputs, newest = _outputs(lives, kept.lines)
        joined = _born_on(lives, kept.joined) & lives.at_peak
        saving = lives.saved_at_peak((outputs & ~newest) | joined)
        if not outputs.any() or saving < least_saving(trace):
            return None
        line = kept.value.lineno
        count = int(np.count_nonzero(outputs))
        advice = Advice(
            self.name,
            problem=(
                f"line {line} gathers outputs on the device in {kept.name}: at the peak "
                f"{count:,}, {format_bytes(lives.bytes(outputs))}."
            ),
            change=f"Move each to the host as it is made: .cpu() on line {line}.",
            line=line,
            name=kept.name,
            size=lives.bytes(outputs),
            saving=saving,
            known=Known.ESTIMATED,
            price="a copy from the device in each iteration, which waits for it",
            cost=Cost.TIME,
        )
        return self.propose(cell, advice, partial(to_host, cell, kept))


def _only_casts(cell: Code, line: int | None) -> bool:
    """Whether the line changes the type of what is on the device: that is a copy, too."""
    statement = cell.statement_at(line) if line else None
    if statement is None:
        return False
    casts = cell.calls(".float", ".double", ".half", ".bfloat16", ".long", within=statement)
    return bool(casts) and not cell.calls(".to", ".cuda", within=statement)


def _born_on(lives: Lifetimes, lines: Iterable[int]) -> NDArray[np.bool_]:
    found = np.isin(lives.line, list(lines))
    return found & ~lives.of(Category.PARAMETER, Category.WORKSPACE, Category.GRADIENT)


def _outputs(lives: Lifetimes, lines: Iterable[int]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Storages without a graph of which several of one line and one size are alive at the peak, and
    the newest of these."""
    here = _born_on(lives, lines) & lives.at_peak & ~lives.graph
    here &= ~lives.of(Category.OPTIMIZER_STATE, Category.ACTIVATION)
    found, newest = np.zeros(len(lives), bool), np.zeros(len(lives), bool)
    for line in np.unique(lives.line[here]).tolist():
        of_line = here & (lives.line == line)
        for size in np.unique(lives.size[of_line]).tolist():
            alike = np.flatnonzero(of_line & (lives.size == size))
            if len(alike) >= _ROUNDS:
                found[alike] = True
                newest[alike[-1]] = True
    return found, newest
