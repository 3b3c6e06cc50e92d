"""Optimizers that keep states for parameters which another one trains by now."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np

from gpumem_magic.advice.code import Code
from gpumem_magic.advice.evidence.shortage import least_saving
from gpumem_magic.advice.rule import Rule, mended
from gpumem_magic.advice.rules.optimizer_state import LBFGS_CODE, line_of_state
from gpumem_magic.units import format_bytes
from gpumem_magic.values.advice import Advice, Example, Known
from gpumem_magic.values.findings import Trace
from gpumem_magic.values.lifetimes import Lifetimes
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import Category

_STATE = re.compile(r"(.+?)\.state\[(.+)\]\['\w+'\]")
_PLACE = re.compile(r"\[\d+\]")

_SETUP = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 2048), nn.Tanh(), nn.Linear(2048, 1024)).cuda()
x = torch.randn(64, 1024, device="cuda")
"""
_STEP = """\
loss = model(x).square().mean()
{0}optimizer.zero_grad()
{0}loss.backward()
{0}optimizer.step()
"""
_EPOCHS = (
    """\
history = []
for epoch in range(3):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * 0.5**epoch)
    history.append(optimizer)
    """
    + _STEP.format("    ")
    + "last = loss.item()"
)
_AGAIN = (
    "optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)\n"
    + _STEP.format("")
    + "last = loss.item()"
)


_STATES = 3
"""Large ones for each parameter are at most that many."""

_SMALL = 1 << 10
"""Bytes up to which a state is one number."""


class SecondOptimizer(Rule):
    """Several optimizers keep states for the same parameters.

    A new `torch.optim.Adam(model.parameters())` begins without states and makes its own with the
    first `step()`, two numbers for each parameter. The old optimizer keeps its states as long as
    anything leads to it: a list, a scheduler, the variable of an earlier cell. Keep one optimizer
    for the whole training and change its learning rate (`torch.optim.lr_scheduler`, or
    `optimizer.param_groups[0]["lr"] = ...`), or let go of the old one before the new one steps.
    """

    name: ClassVar[str] = "second-optimizer"
    problem: ClassVar[str] = "several optimizers keep states for the same parameters"
    examples: ClassVar[tuple[Example, ...]] = (
        mended(
            ("history.append(optimizer)", 'history.append(optimizer.param_groups[0]["lr"])'),
            setup=_SETUP,
            before=_EPOCHS,
            rewritten=False,
            results=("last",),
        ),
        mended(
            ("optimizer = torch", "warm_up = None\noptimizer = torch"),
            setup=_SETUP
            + "warm_up = torch.optim.Adam(model.parameters())\n"
            + _STEP.format("").replace("optimizer", "warm_up"),
            before=_AGAIN,
            rewritten=False,
            results=("last",),
        ),
    )

    def find(self, trace: Trace, cell: Code, names: Names) -> Iterable[Advice]:
        lives = trace.lives
        states = _states_by_parameter(lives)
        shared = [owners for owners in states.values() if len(owners) > 1]
        born: dict[str, int] = {}
        for owners in shared:
            for owner, rows in owners.items():
                born[owner] = max(born.get(owner, -1), int(lives.birth[rows].max()))
        if not shared:
            yield from self._left_by_earlier(lives, least_saving(trace))
            return
        newest = max(born, key=lambda owner: born[owner])
        old = np.zeros(len(lives), bool)
        for owners in shared:
            old[[row for owner, rows in owners.items() if owner != newest for row in rows]] = True
        size = lives.bytes(old)
        if size < least_saving(trace):
            return
        stale = [owner for owner in born if owner != newest]
        places = dict.fromkeys(map(_called, stale))
        told = _called(stale[0], "") if len(stale) == 1 else " and ".join(list(places)[:3])
        yield Advice(
            self.name,
            problem=f"{told} {'hold' if ' and ' in told else 'holds'} {format_bytes(size)} of "
            f"states for parameters that {_called(newest, '')} steps by now, with states of its "
            "own.",
            change="Keep one optimizer for all of the training, and change its learning rate "
            '(a scheduler, or optimizer.param_groups[0]["lr"] = ...); or let go of the old one, '
            "wherever it is kept, before a new one steps.",
            name=told,
            size=size,
            saving=lives.saved_at_peak(old),
            known=Known.ESTIMATED,
        )

    def _left_by_earlier(self, lives: Lifetimes, least: int) -> Iterable[Advice]:
        """States that optimizers made which are gone: the same line made several for each
        parameter, which their names, looked up now and then, do not tell apart."""
        large = lives.at_peak & (lives.size > _SMALL)
        states = np.flatnonzero(large & lives.of(Category.OPTIMIZER_STATE) & (lives.birth >= 0))
        if len(states) <= _STATES * np.count_nonzero(large & lives.of(Category.PARAMETER)):
            return
        if line_of_state(lives, {LBFGS_CODE}):  # one keeps vectors of many steps
            return
        newest = np.full(len(lives.stacks) + 1, -1, np.int64)
        np.maximum.at(newest, lives.stack[states], lives.step[states])
        old = states[lives.step[states] < newest[lives.stack[states]]]
        size = int(lives.size[old].sum())
        if size >= least:
            yield Advice(
                self.name,
                problem=f"{format_bytes(size)} are states that earlier optimizers made: something "
                "keeps them, such as a list of what their state_dict() gave.",
                change="optimizer.state_dict() leads to the states themselves: keep of it what is "
                "to be loaded later on the host (each tensor's .cpu()), or only the last.",
                size=size,
                saving=lives.saved_at_peak(lives.rows(old.tolist())),
                known=Known.ESTIMATED,
            )


def _called(optimizer: str, place: str = "[*]") -> str:
    """Its name, with any number for all of them; "another Adam" where it has none."""
    if optimizer.startswith("<"):
        return f"another {optimizer.strip('<>')}"
    return _PLACE.sub(place, optimizer) if place else optimizer


def _states_by_parameter(lives: Lifetimes) -> Mapping[str, dict[str, list[int]]]:
    """For each parameter, by optimizer, the storages of the states that were there."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in np.flatnonzero(lives.at_peak & lives.of(Category.OPTIMIZER_STATE)).tolist():
        match = _STATE.fullmatch(lives.name(row) or "")
        if match is not None:
            found[match[2]][match[1]].append(row)
    return found
