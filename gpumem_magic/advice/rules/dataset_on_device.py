"""A whole data set on the device."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpumem_magic.advice.code import Code, called
from gpumem_magic.advice.evidence.batches import born_on, move_batches, moved
from gpumem_magic.advice.evidence.shortage import is_short, least_saving
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.tree import FUNCTIONS, defined, lines_of
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Cost, Example, Kind, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import BEFORE
from gpumem_magic.values.names import Names, variable_of
from gpumem_magic.values.recording import Category

_LARGE = 0.2
"""Of the card: a batch is smaller."""

_LOADERS = frozenset({"DataLoader", "TensorDataset", "Subset", "random_split"})
"""What reads a data set, or is a part of it, for the cell."""

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
_FUNCTION = """\
def score(model, samples):
    total = 0.0
    whole = samples.cuda()
    with torch.no_grad():
        for first in range(0, len(whole), 2048):
            total += model(whole[first : first + 2048]).square().mean().item()
    return total

total = score(model, images)"""


class DatasetOnDevice(Rule):
    """A tensor that is only ever read batch by batch, or could be, lies on the device as a whole.

    The device needs one batch at a time. Leave the data set on the host and move each batch, with
    `pin_memory` and `non_blocking=True` so that the copy runs beside the computation. A small data
    set may well stay on the device, which saves these copies: this is for when memory is short.
    """

    name: ClassVar[str] = "dataset-on-device"
    problem: ClassVar[str] = "a whole data set lies on the device at once"
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
        mended(
            ("    whole = samples.cuda()\n", "    whole = samples\n"),
            ("whole[first : first + 2048]", "whole[first : first + 2048].cuda()"),
            setup=_DATA,
            before=_FUNCTION,
            results=("total",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        yield from self._too_large(trace, cell)
        of_sets = [*self._of_sets(trace, cell)]
        yield from of_sets or self._of_loaders(trace, cell, names)
        of_data = [*self._of_data(trace, cell, names)]
        yield from of_data
        if not of_data and is_short(trace):
            yield from self._of_slices(trace, cell)

    def _too_large(self, trace: Trace, cell: Code) -> Iterator[Advice]:
        """Data whose copy to the device is what memory ran out for."""
        oom = trace.oom
        room = trace.device.total if trace.device else 0
        if oom is None or oom.op != "aten._to_copy" or (oom.requested or 0) < _LARGE * room:
            return
        if oom.of_module:
            return  # weights are no data
        if _only_casts(cell, oom.line) or any(one.shape == oom.shape for one in trace.enlarged):
            return  # what was made on the device, and changes its type
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

    def _of_sets(self, trace: Trace, cell: Code) -> Iterator[Advice]:
        """What data sets hold, which give a sample or a batch at a time."""
        calls = [call for call in cell.calls(".to", ".cuda") if _is_of_set(cell, call)]
        lines = sorted({line for call in calls for line in lines_of(cell.statement(call))})
        if lines:
            told = f"The data set made on line {lines[0]} holds SIZE on the device; it is only "
            told += "read a sample or a batch at a time."
            yield from self._whole(trace, born_on(trace.lives, lines), told, lines[0], _LARGE)

    def _of_loaders(self, trace: Trace, cell: Code, names: Names) -> Iterator[Advice]:
        """What a data set holds that is read through a loader, wherever its class is written."""
        for name, mask in _loaded(trace, cell, names).items():
            told = f"{name} holds SIZE on the device; a loader reads it a batch at a time."
            line = max(int(trace.lives.line[mask].max(initial=0)), 0)
            for advice in self._whole(trace, mask, told, line, _LARGE):
                yield replace(advice, name=name)

    def _of_data(self, trace: Trace, cell: Code, names: Names) -> Iterator[Advice]:
        """What the cell moves as a whole, and reads in pieces."""
        for whole in moved(cell, names):
            line, name = whole.call.lineno, whole.name
            told = f"line {line} moves all of {name} to the device, SIZE; it is only read a batch "
            told += "at a time."
            mask = born_on(trace.lives, lines_of(whole.call))
            for told_of in self._whole(trace, mask, told, line):
                advice = replace(
                    told_of,
                    change=f"Leave {name} on the host and move each batch where it is read.",
                    name=name,
                    price=f"{told_of.price}; {name} is on the host afterwards",
                )
                yield self.propose(cell, advice, partial(move_batches, cell, whole))

    def _of_slices(self, trace: Trace, cell: Code) -> Iterator[Advice]:
        """What a function moved, or an earlier cell, and a loop here reads in pieces."""
        lives = trace.lives
        for name in sorted(cell.spoken()):
            reads = [read for read in cell.reads(name) if cell.loop(read) is not None]
            if not reads or not all(_is_piece(cell, read) for read in cell.reads(name)):
                continue
            named = [label.name == name for label in lives.labels]
            mask = lives.of(Category.INPUT) & np.array([*named, False])[lives.label]
            line = max(int(lives.line[mask].max(initial=0)), 0)
            told = f"{name} holds SIZE on the device; a loop reads it a piece at a time."
            for advice in self._whole(trace, mask, told, line, _LARGE):
                yield replace(advice, name=name)

    def _whole(
        self, trace: Trace, mask: NDArray[np.bool_], told: str, line: int, share: float = 0
    ) -> Iterator[Advice]:
        """The advice on data, where it saves so much of the peak; SIZE in the text is its bytes."""
        lives = trace.lives
        alive = mask & lives.at_peak
        size, saving = lives.bytes(alive), lives.saved_at_peak(alive)
        if saving >= max(least_saving(trace), share * (trace.peak.allocated or 0)):
            yield Advice(
                self.name,
                problem=told.replace("SIZE", format_bytes(size), 1),
                change="Leave the data on the host, and move each batch where it is read.",
                line=line or None,
                size=size,
                saving=saving,
                known=Known.ESTIMATED,
                price="a copy to the device in each iteration",
                cost=Cost.TIME,
            )


def _loaded(trace: Trace, cell: Code, names: Names) -> Mapping[str, NDArray[np.bool_]]:
    """By its name, what a data set holds at the peak that the cell gives a loader and reads nowhere
    else; what a loader of an earlier cell leads to, where that is known."""
    lives = trace.lives
    alive = lives.at_peak & ~lives.of(Category.PARAMETER, Category.GRADIENT, Category.WORKSPACE)
    found: dict[str, NDArray[np.bool_]] = {}
    loaders = {n for n in cell.spoken() if names.others.get(n, "").endswith(".DataLoader")}
    sets: set[str] = set()  # that hold what other names have, too
    for name in cell.spoken() - names.modules.keys():
        reads = cell.reads(name)
        given = [_given_to(cell, read) for read in reads]
        if not _LOADERS.isdisjoint(given) and _LOADERS.issuperset({*given} - {"len"}):
            roots = [variable_of(label.name or "") for label in lives.labels]
            mask = alive & np.array([*(root == name for root in roots), False])[lives.label]
            found[name] = mask
            sets |= {name} if not mask.any() else set()
    for row in np.flatnonzero(alive & (lives.line == BEFORE)).tolist():
        address, name = int(lives.address[row]), lives.name(row) or ""
        leading = (names.holders or {}).get(address) or frozenset()
        if names.holders is None:
            root = {variable_of(name)} - {""}
            by = {n for n in loaders | sets if address in names.loaded.get(n, ())}
            leading = frozenset(root | by if by else ())
        spoken = leading & cell.spoken()
        if spoken and spoken <= loaders | sets:
            named = min(spoken & sets or leading - loaders or leading)
            mask = found.setdefault(named, np.zeros(len(lives), bool))
            mask[row] = True
    return found


def _is_piece(cell: Code, read: ast.Name) -> bool:
    """Whether a name is read as `x[i:j]`, asked how long it is, or moved as it is."""
    above = cell.parent(read)
    if isinstance(above, ast.Subscript):
        return above.value is read
    if isinstance(above, ast.Attribute):
        moves = above.attr in ("to", "cuda") and read.id in defined(cell.statement(read))
        return moves or above.attr in ("shape", "split", "device")
    return _given_to(cell, read) == "len"


def _given_to(cell: Code, read: ast.Name) -> str:
    """The function that a name is an argument of; "" where it is none."""
    above = cell.parent(read)
    above = cell.parent(above) if isinstance(above, ast.keyword) else above
    return called(above) if isinstance(above, ast.Call) and above.func is not read else ""


def _only_casts(cell: Code, line: int | None) -> bool:
    """Whether the line changes the type of what is on the device: that is a copy, too."""
    statement = cell.statement_at(line)
    if statement is None:
        return False
    casts = cell.calls(".float", ".double", ".half", ".bfloat16", ".long", within=statement)
    moves = [c for c in cell.calls(".to", ".cuda", within=statement) if not _to_a_type(cell, c)]
    return not moves and bool(casts or cell.calls(".to", within=statement))


def _is_of_set(cell: Code, call: ast.Call) -> bool:
    """Whether what is moved becomes part of a data set: in the __init__() of a class of such, or as
    an argument of TensorDataset()."""
    if _to_a_type(cell, call):
        return False
    for above in cell.ancestors(call):
        if isinstance(above, ast.Call) and called(above) == "TensorDataset":
            return True
        if isinstance(above, ast.ClassDef):
            own = {f.name for f in above.body if isinstance(f, FUNCTIONS)}
            function = cell.function(call)
            return "__getitem__" in own and function is not None and function.name == "__init__"
    return False


def _to_a_type(cell: Code, call: ast.Call) -> bool:
    """Whether `.to()` is given nothing but a type of torch's."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    names = [cell.dotted(one) for one in given]
    return bool(names) and all(n.startswith("torch.") or n.endswith(".dtype") for n in names)
