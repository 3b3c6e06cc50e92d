"""What changes to a cell save, each measured by one dry run; and what is said where none can be."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import gpumem_magic  # noqa: E402 - needs torch for what it is tested with
from gpumem_magic.assess import TOGETHER, Question, assess  # noqa: E402
from gpumem_magic.dryrun import Scenario  # noqa: E402
from gpumem_magic.units import MIB  # noqa: E402
from gpumem_magic.values.advice import Advice, Edit, Kind, Known, Saves  # noqa: E402
from gpumem_magic.values.assessment import Assessment  # noqa: E402
from gpumem_magic.values.recording import Cell  # noqa: E402

CELL = "import torch\na = torch.ones(8 * M, device='cuda')\nb = torch.ones(4 * M, device='cuda')\n"


def change(rule, source, old, new, **known):
    """Advice to write `new` for `old`."""
    start = source.index(old)
    text = source.replace(old, new, 1)
    return Advice(rule, f"{old}.", f"{new}.", line=1, source=text,
                  edits=(Edit(start, start + len(old), new),), **known)  # fmt: skip


def half(source=CELL, **known):
    return change("half", source, "8 * M", "4 * M", saving=1, known=Known.ESTIMATED, **known)


@pytest.fixture
def ask():
    """assess on a card of 1 GiB, with the advice of a report."""

    def ask(*known, source=CELL, gpu="1GiB", **options):
        names = {"M": MIB}
        scenario = Scenario(Cell(source, "<cell>"), names, gpu)
        found = assess(Question(scenario, str, known, frozenset({"x"})), **options)
        assert names.keys() == {"M"}
        return found

    return ask


def test_a_change_is_measured_by_one_dry_run(ask):
    told = []
    found = ask(half(), tell=lambda run, runs: told.append((run, runs)))
    (advice,) = found.advice
    assert (advice.known, advice.before, advice.after) == (Known.MEASURED, 48 * MIB, 32 * MIB)
    assert advice.saving == 16 * MIB
    assert (found.runs, told) == (2, [(1, 1), (2, 2)])
    assert found.seconds > 0


def endless():
    return change("endless", CELL, "4 * M", "max(iter(int, 1))")


def interrupt_after(runs):
    def tell(done, asked):
        if done == runs:
            raise KeyboardInterrupt

    return tell


def test_an_interrupt_keeps_what_was_measured(ask):
    found = ask(half(), endless(), tell=interrupt_after(2))
    (advice,) = found.advice
    assert (advice.rule, advice.saving, advice.known) == ("half", 16 * MIB, Known.MEASURED)
    assert (found.runs, found.unmeasured, found.failed) == (2, 1, ())
    assert "stopped: 1 more change not measured" in found.text()


def test_an_interrupt_before_the_cell_itself_was_run_is_raised():
    scenario = Scenario(Cell("while True:\n    pass", "<cell>"), {}, "1GiB")
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        assess(Question(scenario, str))


def test_each_change_is_told_as_soon_as_it_is_measured():
    told, so_far = [], []
    scenario = Scenario(Cell(CELL, "<cell>"), {"M": MIB}, "1GiB")
    question = Question(scenario, str, (half(),), so_far=so_far.append)
    assess(question, lambda done, asked: told.append((done, [one.saving for one in so_far])))
    assert told == [(1, []), (2, [16 * MIB])]


def test_advice_for_the_same_change_is_measured_once(ask):
    other = replace(half(), rule="other", line=7)
    found = ask(half(), replace(half(), line=9), other)
    assert [one.rule for one in found.advice] == ["half", "other"]
    assert found.runs == 2


def test_ignored_rules_are_not_measured(ask):
    assert ask(replace(half(), rule="x")).advice == ()


def test_what_saves_nothing_is_put_apart(ask):
    same = change("same", CELL, "8 * M", "2 * 4 * M", saving=5 * MIB)
    more = change("more", CELL, "8 * M", "9 * M", saving=5 * MIB)
    found = ask(same, more, half())
    assert [one.rule for one in found.advice] == ["half"]
    assert [(one.rule, one.saving) for one in found.useless] == [("same", 0), ("more", -4 * MIB)]
    assert found.together is None


def test_a_mistake_that_never_was_about_memory_stays(ask, monkeypatch):
    monkeypatch.setattr("gpumem_magic.assess.KINDS", {"wrong": Kind.MISTAKE})
    wrong = change("wrong", CELL, "ones(4", "zeros(4")
    found = ask(wrong)
    assert [(one.rule, one.saving) for one in found.advice] == [("wrong", 0)]
    assert found.useless == ()


def test_advice_without_a_changed_cell_keeps_its_claim_and_its_place(ask):
    big = Advice("big", "Big.", "Less.", saving=20 * MIB, known=Known.EXACT)
    fact = Advice("fact", "So it is.", "Know it.")
    found = ask(fact, half(), big)
    assert found.advice[0] == big
    assert [one.rule for one in found.advice] == ["big", "half", "fact"]
    assert found.advice[2] == fact
    assert found.runs == 2


def test_changes_that_agree_are_measured_together(ask):
    other = change("other", CELL, "4 * M", "M", saving=1)
    found = ask(half(), other)
    assert [one.rule for one in found.advice] == ["half", "other"]
    assert found.together.rule == TOGETHER
    assert (found.together.before, found.together.after) == (48 * MIB, 20 * MIB)
    assert found.together.source == CELL.replace("4 * M", "M").replace("8 * M", "4 * M")
    assert found.runs == 4


def test_where_the_best_leaves_nothing_to_the_others_they_are_tried_without_it(ask):
    # GIVEN a best change that leaves the second nothing to save, and touches the text of the third
    source = (
        "import torch\nn, m = 8, 4\nk = 8\n"
        "a = torch.ones(min(n, k) * M, device='cuda')\nb = torch.ones(m * M, device='cuda')\n"
    )
    first = change("first", source, "8, 4", "2, 4")
    second = change("second", source, "k = 8", "k = 3")
    third = change("third", source, "8, 4", "8, 1")
    found = ask(first, second, third, source=source)
    assert [(one.rule, one.saving // MIB) for one in found.advice] == [
        ("first", 24), ("second", 20), ("third", 12)
    ]  # fmt: skip
    assert found.together.problem == "2 second, 3 third."
    assert found.together.saving == 32 * MIB
    assert found.runs == 6


def test_changes_of_the_same_text_are_not_made_together(ask):
    found = ask(half(), change("quarter", CELL, "8 * M", "2 * M", saving=1))
    assert [one.rule for one in found.advice] == ["quarter", "half"]
    assert found.together is None


def test_a_changed_cell_that_fails_is_no_advice(ask):
    fails = change("fails", CELL, "8 * M", "nothing", saving=MIB)
    broken = change("broken", CELL, "8 * M", "8 *", saving=MIB)
    found = ask(fails, broken)
    assert found.advice == found.useless == ()
    assert [rule for rule, _ in found.failed] == ["fails", "broken"]
    assert found.failed[0][1].startswith("NameError")
    assert found.failed[1][1].startswith("SyntaxError")


@pytest.mark.parametrize(
    ("source", "error"),
    [("a = missing", "NameError"), (CELL + "raise ValueError('no')", "ValueError")],
)
def test_where_the_cell_fails_nothing_is_measured(ask, source, error):
    advice = Advice("some", "Some.", "Do.", source="a = 1", saving=5, known=Known.EXACT)
    found = ask(advice, source=source)
    assert found.report.error.startswith(error)
    assert found.advice == (advice,)
    assert (found.runs, found.fits, found.together) == (1, None, None)


def test_it_tells_what_fits_the_card(ask):
    found = ask(half(), gpu="40MiB")
    assert found.limit == 40 * MIB
    assert found.fits is False
    assert found.advice[0].fits is True
    assert ask(half()).fits is True


def test_what_is_told_when_the_card_is_full_is_told_here_too(ask):
    source = (
        "import torch\nvideo = torch.zeros(240, 3, 128, 128, dtype=torch.uint8).to('cuda')\n"
        "clip = video.float() / 255\n"
    )
    found = ask(source=source, gpu="80MiB")
    assert (found.fits, found.runs) == (False, 2)
    assert "large-pass" in [one.rule for one in found.advice]
    assert "large-pass" not in [one.rule for one in ask(source=source).advice]


def test_a_card_without_limit_has_addresses_for_expandable_segments(ask, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    source = CELL + "small = torch.ones(8, device='cuda')\n"
    assert ask(source=source).report.error is None


def test_a_cache_that_can_be_given_back_fits(ask):
    # GIVEN a cell whose cache and tensors together are more than the card, but never the tensors
    source = (
        "import torch\nfor n in (8, 10, 12):\n    a = torch.ones(n * M, device='cuda')\n    del a\n"
    )
    found = ask(source=source, gpu="56MiB")
    assert found.report.peak.reserved > found.limit >= found.report.peak.allocated
    # THEN it fits, as the allocator gives the cache back
    assert found.fits is True
    assert ask(source=source.replace("    del a\n", ""), gpu="56MiB").fits is False


def test_savings_after_the_cell_are_measured_there(ask):
    drop = change("drop", CELL, "cuda')\n", "cuda')\n", saving=1, saves=Saves.AFTER)
    drop = replace(drop, source=CELL + "del b\n", edits=(Edit(len(CELL), len(CELL), "del b\n"),))
    (advice,) = ask(drop).advice
    assert (advice.before, advice.after, advice.saving) == (48 * MIB, 32 * MIB, 16 * MIB)


def test_the_public_function_finds_and_measures():
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
    source = "net = model.cuda()\ny = net(torch.ones(4096, 64, device='cuda'))\n"
    found = gpumem_magic.advise(source, {"torch": torch, "model": model}, gpu="T4")
    assert isinstance(found, Assessment)
    (advice,) = found.advice
    assert (advice.rule, advice.known) == ("missing-no-grad", Known.MEASURED)
    assert advice.saving > 4 * MIB
    assert next(model.parameters()).device.type == "cpu"


def test_the_public_function_takes_the_names_of_its_caller():
    found = gpumem_magic.advise("raise TypeError(MIB)")
    assert found.report.error == "TypeError: 1048576"


def test_the_function_does_not_hide_the_package():
    import gpumem_magic.advice as rules

    assert callable(gpumem_magic.advise)
    assert rules.RULES
