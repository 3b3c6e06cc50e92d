"""One dry run, and what it records."""

from __future__ import annotations

from gpumem_magic.dryrun import carry_out, plan_dry_run
from gpumem_magic.dryrun.runs import outcome_of


def dry_run(scenario, card, origin=None):
    def flow():
        (result,) = yield (plan_dry_run(scenario, card, origin),)
        return outcome_of(result).recording

    return carry_out(flow())
