"""LBFGS: when a step of it ends early goes by values, so here none does before its history is full;
that is most of what it takes."""

from __future__ import annotations

import functools
import sys
from typing import Any

from torch.optim import LBFGS

_BEYOND = 3
"""Iterations with a full history that are run."""

_LEFT_OUT = "LBFGS: iterations with a full history were left out: each repeats the one before."


def install(notes: list[str]) -> None:
    """Have each LBFGS of torch's go on so, in this process. notes: where it is said."""
    module: Any = sys.modules[LBFGS.__module__]
    step_of_torch: Any = LBFGS.step
    search = module._strong_wolfe

    @functools.wraps(search)
    def search_once(*args: Any, max_ls: int = 1, **options: Any) -> Any:
        return search(*args, max_ls=min(max_ls, 1), **options)

    @functools.wraps(step_of_torch)
    def step(optimizer: LBFGS, closure: Any) -> Any:
        group = optimizer.param_groups[0]
        stored = len(optimizer.state[group["params"][0]].get("old_dirs") or ())
        whole = group["max_iter"]
        run = min(whole, group["history_size"] - stored + _BEYOND)
        if run < whole and _LEFT_OUT not in notes:
            notes.append(_LEFT_OUT)
        # neither a number of evaluations nor what is gained by them ends it
        kept = {name: group[name] for name in ("max_iter", "max_eval", "tolerance_change")}
        group.update(max_iter=run, max_eval=3 * run, tolerance_change=-1.0)
        try:
            return step_of_torch(optimizer, closure)
        finally:
            group.update(kept)

    module._strong_wolfe = search_once
    LBFGS.step = step  # type: ignore[method-assign]
