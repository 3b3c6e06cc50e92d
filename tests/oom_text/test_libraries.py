"""Errors of the libraries beside PyTorch's allocator, and of the host's memory."""

from __future__ import annotations

import pytest

from gpumem_magic.oom_text import Origin, Outlook, explain, parse
from gpumem_magic.values.oom_text import SIZES


def test_each_library_is_known_by_its_words(libraries):
    for text, (name, certain) in libraries.items():
        reading = parse(f"Traceback (most recent call last):\n  ...\n{text}\n")
        assert reading.origin is Origin.LIBRARY, text
        assert (reading.library, reading.certain) == (name, certain)
        assert set(reading.unknown) == set(SIZES)


def test_what_has_other_causes_too_is_said_to(libraries):
    for text, (name, certain) in libraries.items():
        explanation = explain(text)
        assert explanation.headline.startswith(name)
        assert ("may have" in explanation.headline) is not certain
        assert ("Try a smaller batch" in explanation.steps[0]) is not certain
        assert explanation.outlook is Outlook.UNKNOWN


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:9] . DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 67108864 bytes. Error code 12 (Cannot allocate memory)",
            64 << 20,
        ),
        ("DefaultCPUAllocator: not enough memory: you tried to allocate 4096 bytes.", 4096),
        ("$ Torch: not enough memory: you tried to allocate 72GB. Buy new RAM!", 72 << 30),
    ],
)
def test_the_hosts_memory_is_not_the_gpus(text, size):
    reading = parse(text)
    assert (reading.origin, reading.asked.about) == (Origin.HOST, size)
    assert "not the GPU" in explain(text).verdict


def test_pytorchs_own_text_comes_before_a_librarys(texts):
    both = f"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling ...\n{texts['capacity']}"
    assert parse(both).origin is Origin.ALLOCATOR
