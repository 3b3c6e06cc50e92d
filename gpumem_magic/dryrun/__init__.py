"""A cell run without kernels, in a process of its own: what it would do to the memory."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from gpumem_magic.dryrun.runs import DryRun, Flow, Runner, carry_out, together
from gpumem_magic.dryrun.scenario import Scenario
from gpumem_magic.isolation.child import Child, DryRunError, can_fork

if TYPE_CHECKING:  # magics load this file also where there is no torch
    from gpumem_magic.dryrun.fresh import FreshProcess
    from gpumem_magic.dryrun.in_use import CardInUse
    from gpumem_magic.dryrun.inside import Plan
    from gpumem_magic.sources import Source
    from gpumem_magic.virtual.catalog import GPUModel

__all__ = [
    "DryRun",
    "DryRunError",
    "Flow",
    "Runner",
    "Scenario",
    "carry_out",
    "plan_dry_run",
    "together",
]

_CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""What importing torch's compiler names in the environment, for all processes started later."""

UNLIMITED = 2**42
"""Bytes of a card that never runs out: 4 TiB. Each expandable segment has addresses for more than
all of it, and there are 2**47 of them."""


def plan_dry_run(
    scenario: Scenario, card: GPUModel, origin: Source | None = None, *, writes: bool = False
) -> DryRun:
    """The dry run that tells what the scenario's cell would do to the memory of `card`.

    origin: the source in use, whose memory it starts from, as of when the run is started. writes:
    see Plan. The namespace, and everything else of this process, stays as it is.
    """
    from gpumem_magic.allocator.caching import clone
    from gpumem_magic.dryrun.in_use import card_in_use
    from gpumem_magic.dryrun.inside import Plan

    _do_for_all_children()
    total = card.total
    if not scenario.limited:
        card = replace(card, total=UNLIMITED)
    plan = Plan(scenario, card, total, writes)
    in_use = card_in_use(origin)
    return DryRun(
        plan, lambda plan: _start(plan, in_use), lambda: clone(in_use.state(card).allocator)
    )


def _do_for_all_children() -> None:
    """What each of them would do again: import what torch's optimizers and meta kernels need, two
    seconds the first time, list the user's modules, what ours keep of C and the functions that
    remember the device, find out how torch counts references."""
    _import_whole("torch._dynamo")

    import torch

    from gpumem_magic.isolation.builtin_functions import builtins_of_ours
    from gpumem_magic.isolation.telling import users_modules
    from gpumem_magic.virtual.accumulation import Accumulation
    from gpumem_magic.virtual.libraries.remembered import functions_that_ask

    users_modules()
    builtins_of_ours()
    functions_that_ask()
    if not torch.backends.cuda.is_built():  # there, backward() would start threads for the device
        Accumulation()


def _import_whole(name: str) -> None:
    """Import a module of torch, which an interrupt would leave half there: in a thread, which goes
    on to the end when an interrupt has ended the wait for it."""

    def load() -> None:
        sys.settrace(None)  # it is no thread of the user's to be traced
        sys.setprofile(None)
        named = _CACHE in os.environ
        importlib.import_module(name)
        if not named:
            os.environ.pop(_CACHE, None)

    if name not in sys.modules:
        thread = threading.Thread(target=load, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.05)  # without a limit, Windows waits through interrupts
    importlib.import_module(name)


def _start(plan: Plan, in_use: CardInUse) -> Child | FreshProcess:
    from gpumem_magic.dryrun.fresh import FreshProcess
    from gpumem_magic.dryrun.inside import run_inside
    from gpumem_magic.isolation.effects import stop_effects

    _check_capture()
    if can_fork():
        filename = plan.scenario.cell.filename
        return Child(lambda inside: run_inside(plan, in_use, stop_effects(inside, filename)))
    return FreshProcess(plan, in_use)


def _check_capture() -> None:
    """Raises DryRunError while a CUDA graph is being captured: nothing may be done beside it."""
    import torch

    from gpumem_magic.sources.cuda.device import is_in_use

    if is_in_use() and torch.cuda.is_current_stream_capturing():
        raise DryRunError("a CUDA graph is being captured; predict before or after it")
