"""Every rule on its own examples: it fires, it changes what it says, and saves what it claims."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from gpumem_magic.advice import (  # noqa: E402 - needs torch for what it is tested with
    RULES,
    find_rule,
)
from gpumem_magic.values.advice import Kind, Saves  # noqa: E402

from .more_examples import MORE  # noqa: E402

EXAMPLES = [(rule, example) for rule in RULES for example in rule.examples]
IDS = [f"{rule.name}-{i}" for rule in RULES for i, _ in enumerate(rule.examples)]
EXAMPLES += [(find_rule(name), example) for name, example in MORE]
IDS += [f"{name}-more{i}" for i, (name, _) in enumerate(MORE)]
for needed in sorted({example.needs for _, example in EXAMPLES} - {""}):
    with suppress(ImportError):
        import_module(needed)  # here, as they change torch for good
CLAIM = 0.02
NOTHING = 0.01


@pytest.fixture(autouse=True)
def _same_environment():
    with mock.patch.dict(os.environ):
        yield


def of(rule, advice):
    return [one for one in advice if one.rule == rule.name]


def size(report, saves):
    if saves is Saves.AFTER:
        return report.after.allocated
    return report.peak.reserved if saves is Saves.RESERVED else report.peak.allocated


def on_host(value):
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def values(notebook, example):
    return [on_host(notebook.shell.user_ns[name]) for name in example.results]


def fires(rule, example, advice):
    """The rule's advice; only that whose changed cell is the one without the problem, if any is."""
    proven = of(rule, advice)
    if proven and example.rewritten:
        assert example.after in [advice.source for advice in proven]
        proven = [advice for advice in proven if advice.source == example.after]
    return proven


def saves(advice, before, after):
    saved = size(before, advice.saves) - size(after, advice.saves)
    claimed = advice.saving or 0
    slack = max(CLAIM * abs(claimed), NOTHING * size(before, advice.saves))
    return abs(saved - claimed) <= (CLAIM * claimed if claimed else slack)


def proven_dry(rule, example, notebook):
    """As `prove_live`, by dry runs alone; False where they cannot tell."""
    with notebook(example.card) as one:
        one.set_up(example)
        before = one.assess(example.before, rule.name)
    proven = fires(rule, example, [*before.advice, *before.useless])
    if not proven:
        return False
    with notebook(example.card) as other:
        other.set_up(example, mended=True)
        after = other.assess(example.after, rule.name)
    assert after.report.error is None
    assert not of(rule, [*after.advice, *after.useless]), "fires on its own `after`"
    return saves(proven[0], before.report, after.report)


def prove_live(rule, example, notebook):
    # GIVEN a notebook in which the cell was not run yet
    with notebook(example.card) as one:
        one.set_up(example)
        # WHEN the cell is assessed by dry runs
        assessment = one.assess(example.before, rule.name)
        proven = fires(rule, example, [*assessment.advice, *assessment.useless])
        # AND run, which alone tells of failures, of older cells and of the machine
        before = one.measure(example.before)
        # THEN the rule fires, and its changed cell is the one without the problem
        proven = proven or fires(rule, example, before.advice)
        assert proven, f"{rule.name} is silent on\n{example.before}"
        # AND it fires on the cell as it runs, too
        if rule.kind is not Kind.TRADE:
            assert of(rule, before.advice), "silent on the cell as it ran"
        results = [] if before.oom else values(one, example)
    if before.oom is not None:
        with notebook("64TiB") as one:
            one.set_up(example)
            before = one.measure(example.before)
            results = values(one, example)

    with notebook(example.card) as other:
        other.set_up(example, mended=True)
        again = other.assess(example.after, rule.name)
        assert not of(rule, [*again.advice, *again.useless]), "fires on its own `after`"
        after = other.measure(example.after)
        assert after.error is None
        assert not of(rule, after.advice), "fires on its own `after` as it runs"
        # AND the change saves what was claimed, and changes no result
        for was, now in zip(results, values(other, example), strict=True):
            assert torch.allclose(
                torch.as_tensor(was, dtype=torch.float64),
                torch.as_tensor(now, dtype=torch.float64),
                rtol=example.within,
                atol=example.within,
            )
    assert saves(proven[0], before, after)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=IDS)
def test_a_rule_keeps_its_word(rule, example, notebook):
    """The first example of each rule runs; the others where dry runs cannot tell."""
    if example.needs and example.needs not in sys.modules:
        pytest.skip(f"needs {example.needs}")
    if example is rule.examples[0] or not proven_dry(rule, example, notebook):
        prove_live(rule, example, notebook)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_documented_and_proven_twice(rule):
    assert rule.__doc__
    assert rule.problem[0].islower()
    assert len(rule.examples) >= 2
