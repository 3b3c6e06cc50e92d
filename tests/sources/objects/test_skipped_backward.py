"""Whether the functions that an error went through would have gone backward next."""

from __future__ import annotations

import linecache

import pytest

from gpumem_magic.sources.objects.skipped_backward import find_skipped

TRAIN = """\
def run(train=False, opt=None, phase="val", done=False, step=3):
    loss = fail()
    {}
run()
"""

SKIPPED = {
    "if train:\n        loss.backward()": ("train", "bool(train)"),
    "if not train:\n        return loss\n    loss.backward()": ("not train", "bool(train)"),
    "if opt is not None:\n        loss.backward()": ("opt is not None", "opt is not None"),
    "if phase == 'val':\n        return\n    loss.backward()": ("phase == 'val'", "phase != 'val'"),
    "if phase == 'train' and opt:\n        loss.backward()": (
        "phase == 'train' and opt",
        "bool(phase == 'train' and opt)",
    ),
    "if phase in ('val', 'test'):\n        pass\n    else:\n        loss.backward()": (
        "phase in ('val', 'test')",
        "phase not in ('val', 'test')",
    ),
}

NOT_SKIPPED = (
    "loss.backward()",
    "if phase == 'val':\n        loss.backward()",
    "if done:\n        loss.backward()",  # of all steps together, in a later call
    "if step == 4:\n        loss.backward()",
    "if train and unknown:\n        loss.backward()\n    loss.backward()",
    "return loss",
)


def _failed(text):
    filename = f"<skipped {hash(text)}>"
    linecache.cache[filename] = len(text), None, text.splitlines(keepends=True), filename

    def fail():
        raise MemoryError

    try:
        exec(compile(text, filename, "exec"), {"fail": fail})
    except MemoryError as error:
        return error.with_traceback(error.__traceback__.tb_next)


@pytest.mark.parametrize(("rest", "said"), SKIPPED.items())
def test_a_test_of_the_mode_is_found(rest, said):
    found = find_skipped(_failed(TRAIN.format(rest)))
    assert found is not None
    assert (found.function, found.test, found.trains) == ("run", *said)


@pytest.mark.parametrize("rest", NOT_SKIPPED)
def test_what_may_yet_go_backward_is_not(rest):
    assert find_skipped(_failed(TRAIN.format(rest))) is None


def test_a_caller_that_goes_backward_counts():
    text = TRAIN.format("if train:\n        loss.backward()") + "loss.backward()\n"
    assert find_skipped(_failed(text)) is None
