"""Every form of the text gives its numbers, however it was pasted; nothing makes it raise."""

from __future__ import annotations

import re
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumem_magic.oom_text import Origin, Outlook, Size, explain, parse
from gpumem_magic.values.oom_text import SIZES

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def about(reading):
    """The sizes that a text tells, in bytes."""
    sizes = {name: getattr(reading, name) for name in SIZES}
    return {name: size.about for name, size in sizes.items() if size is not None}


SENTENCES = {
    "asked": 20 * MIB,
    "total": int(14.5 * GIB),
    "free": int(3.25 * MIB),
    "process": int(12.5 * GIB),
    "allocated": int(12.25 * GIB),
    "cached": 128 * MIB,
}
WANTED = {
    "cached": ("CUDA", 0, {
        "asked": int(1.5 * GIB), "total": 8 * GIB, "allocated": 6 * GIB,
        "free": int(512.5 * MIB), "cached": 64 * MIB,
    }),
    "reserved": ("CUDA", 2, {
        "asked": int(1.5 * GIB), "total": 16 * GIB, "allocated": 11 * GIB,
        "free": int(512.5 * MIB), "cached": int(3.25 * GIB),
    }),
    "split": ("CUDA", 0, {
        "asked": 10 * MIB, "total": 6 * GIB, "allocated": 5 * GIB, "free": 0, "cached": GIB // 4,
    }),
    "capacty": ("CUDA", 1, SENTENCES),
    "capacity": ("CUDA", 1, SENTENCES),
    "allowed": ("CUDA", 0, {
        "asked": 512 * MIB, "total": 24 * GIB, "free": 20 * GIB, "allowed": 3 * GIB,
        "allocated": int(2.75 * GIB), "cached": 64 * MIB,
    }),
    "pools": ("CUDA", 1, {**SENTENCES, "pools": 16 * MIB}),
    "hip": ("HIP", 1, SENTENCES),
    "xpu": ("XPU", 0, {
        "asked": 32 * GIB, "total": int(11.5 * GIB), "free": 9 * GIB, "allocated": 0, "cached": 0,
    }),
    "async": ("CUDA", 3, {
        "asked": 320 * MIB, "total": 8 * GIB, "free": int(2.5 * MIB), "allocated": int(6.5 * GIB),
    }),
    "mps": ("MPS", None, {
        "asked": GIB, "allocated": int(8.5 * GIB), "other": 512 * KIB, "allowed": 9 * GIB,
    }),
    "endless": ("CUDA", None, {}),
}  # fmt: skip
FORMS = sorted(WANTED)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_its_numbers(form, texts):
    backend, device, sizes = WANTED[form]
    reading = parse(texts[form])
    assert reading.origin is Origin.ALLOCATOR
    assert (reading.backend, reading.device) == (backend, device)
    assert about(reading) == sizes
    assert set(reading.unknown) == set(SIZES) - set(sizes)
    assert all(reading.unknown.values())


def test_the_forms_above_are_all_there_are(texts):
    assert sorted(texts) == FORMS


@pytest.mark.parametrize(
    ("form", "version"),
    [
        ("cached", "PyTorch 1.0 to 1.3"),
        ("reserved", "PyTorch 1.4 to 2.0"),
        ("split", "PyTorch 1.10 to 2.0"),
        ("capacty", "PyTorch 2.1"),
        ("capacity", "PyTorch 2.2 or newer"),
        ("endless", ""),
    ],
)
def test_the_words_tell_the_version(form, version, texts):
    assert parse(texts[form]).written_by == version


def as_traceback(text):
    frames = '  File "/home/u/train.py", line 12, in <module>\n    loss.backward()\n'
    return f"Traceback (most recent call last):\n{frames}{text}\n\nDuring handling of this ...\n"


PASTES = {
    "traceback": as_traceback,
    "wrapped": lambda text: "\n".join(textwrap.wrap(text, 40)),
    "cut by a terminal": lambda text: "\n".join(text[i : i + 37] for i in range(0, len(text), 37)),
    "colours": lambda text: (
        "\x1b[31m" + text.replace("memory", "\x1b[1mmemory\x1b[0m") + "\x1b[39m"
    ),
    "comment": lambda text: "\n".join(f"#  {line}" for line in textwrap.wrap(text, 60)),
    "quoted": lambda text: "\n".join(f"> {line}" for line in textwrap.wrap(text, 60)),
    "framed": lambda text: "\n".join(
        f"\u2502 {line:<60} \u2502" for line in textwrap.wrap(text, 60)
    ),
    "test": lambda text: "\n".join(f"E       {line}" for line in textwrap.wrap(text, 60)),
    "spaces": lambda text: text.replace(" ", "\u00a0 "),
    "log": lambda text: f"2031-01-01 12:00:00,123 | ERROR | worker 3: {text} | step 12",
    "json": lambda text: '{"error": "' + text.replace(". ", ".\\n") + '"}',
    "GB": lambda text: text.replace("iB", "B"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("paste", sorted(PASTES))
def test_it_does_not_matter_how_it_was_pasted(paste, form, texts):
    plain, pasted = parse(texts[form]), parse(PASTES[paste](texts[form]))
    assert about(pasted) == about(plain)
    assert (pasted.backend, pasted.processes) == (plain.backend, plain.processes)


def test_processes_are_listed_but_for_this_one(texts):
    assert parse(texts["capacity"]).processes == ((4711, Size(2 * GIB, 5368710)),)


def test_a_printed_number_stands_for_all_that_round_to_it():
    size = parse("CUDA out of memory. Tried to allocate 1.50 GiB.").asked
    for true in (int(1.4951 * GIB), int(1.5049 * GIB)):
        assert f"{true / GIB:.2f}" == "1.50"
        assert size.low <= true <= size.high
    assert parse("CUDA out of memory. Tried to allocate 512 bytes.").asked == Size(512)


def test_parts_reconcile_within_what_was_rounded(texts):
    reading = parse(texts["capacity"])
    others = 14.5 * GIB - 3.25 * MIB - 12.5 * GIB
    assert reading.others.low <= others <= reading.others.high
    assert reading.reserved.about == int(12.25 * GIB) + 128 * MIB
    assert reading.outside.about == int(14.5 * GIB) - int(3.25 * MIB) - reading.reserved.about


def test_what_the_driver_did_not_know_is_unknown(texts):
    text = texts["capacity"].replace("12.50 GiB memory", "17179869184.00 GiB memory")
    reading = parse(text.replace("4711 has 2.00 GiB", "4711 has 17179869184.00 GiB"))
    assert reading.process is None
    assert "impossible" in reading.unknown["process"]
    assert reading.processes == ()
    assert parse(texts["async"]).unknown["allowed"] == "no limit is set"


def test_a_text_that_is_cut_off_says_what_is_missing(texts):
    text = texts["reserved"]
    reading = parse(text[: text.index("512.50")])
    assert reading.unknown["free"] == reading.unknown["cached"] == "the text is cut off before it"
    assert reading.allocated.about == 11 * GIB


def test_a_garbled_number_is_missing_but_not_the_ones_around_it(texts):
    reading = parse(texts["reserved"].replace("11.00 GiB already", "1l.OO GiB already"))
    assert reading.unknown["allocated"] == "its place in the text is missing or garbled"
    assert "allocated" in reading.unknown["cached"]
    assert reading.free.about == int(512.5 * MIB)


def test_more_allocated_than_reserved_is_a_contradiction(texts):
    reading = parse(texts["reserved"].replace("14.25 GiB", "1.25 GiB"))
    assert reading.cached is None
    assert "cannot be" in reading.unknown["cached"]


def test_of_several_texts_the_fullest_counts(texts):
    reading = parse(
        f"{texts['endless']}\n{texts['capacity']}\nCUDA out of memory. Tried to allocate 1.00 GiB."
    )
    assert reading.device == 1
    assert reading.more == 2
    assert parse(texts["capacity"] + texts["capacity"]).more == 0


@pytest.mark.parametrize("text", ["", "   \n", "out of memory, I fear", "ValueError: 3", "MiB GiB"])
def test_other_texts_are_none(text):
    reading = parse(text)
    assert reading.origin is Origin.NONE
    assert set(reading.unknown) == set(SIZES)


FRAGMENTS = st.sampled_from(
    [
        *("CUDA out of memory. ", "Tried to allocate ", "MPS backend out of memory (", "GPU 0 "),
        *("(GPU ", "total capacity", "capacty of ", " of which ", " is free. ", "99999999999999"),
        *("Process ", " has ", " memory in use. ", " allowed; ", " reserved in total by PyTorch)"),
        *(
            " already allocated; ",
            " free; ",
            " cached)",
            "Of the allocated memory ",
            ".",
            "1.5 GiB",
        ),
        *(
            " is allocated by PyTorch, and ",
            " is reserved by PyTorch but unallocated.",
            "\x1b[3",
            "0",
        ),
        *("Allocation on device 7 would exceed allowed memory", "Requested : ", "CUBLAS_STATUS_"),
        *(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate ",
            "\n",
            "| ",
            "1 KiB",
        ),
    ]
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.one_of(FRAGMENTS, st.text(max_size=8)), max_size=30).map("".join))
def test_no_text_makes_it_raise_and_each_number_is_there_or_has_its_reason(text):
    reading = parse(text)
    sizes = {name: getattr(reading, name) for name in SIZES}
    assert {name for name, size in sizes.items() if size is None} == set(reading.unknown)
    assert all(size.low >= 0 for size in sizes.values() if size is not None)


@pytest.mark.parametrize("form", FORMS)
def test_a_truncated_text_tells_no_other_numbers_than_the_whole(form, texts):
    whole = about(parse(texts[form]))
    for end in range(len(texts[form])):
        reading = parse(texts[form][:end])
        told = about(reading)
        assert told.items() <= whole.items()
        assert set(reading.unknown) == set(SIZES) - set(told)


def test_what_is_cut_off_at_the_beginning_keeps_its_numbers(texts):
    found = parse(texts["capacity"].partition("Tried to allo")[2])
    whole = parse(texts["capacity"])
    told = ("total", "free", "process", "allocated", "cached")
    assert [getattr(found, name) for name in told] == [getattr(whole, name) for name in told]
    assert found.asked is None


def test_a_process_that_has_less_than_pytorch_alone_is_not_known(texts):
    found = explain(texts["capacity"].replace("12.50 GiB memory in use", "0 bytes memory in use"))
    assert found.reading.process is None
    assert "PyTorch alone" in found.reading.unknown["process"]
    assert not any(fact.label == "other processes" for fact in found.facts)


def test_an_impossible_request_is_a_size_that_went_wrong(texts):
    found = explain(texts["capacity"].replace("allocate 20.00 MiB", "allocate 17179869184.00 GiB"))
    assert found.outlook is Outlook.TOO_LARGE


def test_a_librarys_own_limit_is_not_pytorchs():
    text = (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 3,200,000,000 bytes (allocated"
        " so far: 4,800,000,512 bytes, limit set to: 6,000,000,000 bytes)."
    )
    found = explain(text)
    assert found.reading.allowed.about == 6_000_000_000
    assert not any("fraction" in fact.meaning for fact in found.facts)


@pytest.mark.parametrize("tag", ["[rank{}]: ", "2024-05-06 07:08:0{},123 ERROR run.py:7 | "])
def test_what_a_log_puts_before_each_line_is_not_the_texts(tag, texts):
    lines = re.findall(".{1,40}", texts["capacity"])
    text = "\n".join(tag.format(number % 10) + line for number, line in enumerate(lines))
    found, whole = parse(text), parse(texts["capacity"])
    assert (found.asked, found.free, found.cached) == (whole.asked, whole.free, whole.cached)
