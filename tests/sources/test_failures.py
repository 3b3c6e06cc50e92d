from __future__ import annotations

import pytest

from gpumem_magic.sources import failures
from gpumem_magic.sources.cuda.history import EntryColumns, build_columns
from gpumem_magic.sources.failures import (
    device_of,
    find_failure,
    lacks_cuda,
    one_line,
    out_of_memory,
    outside_allocator,
    read_failure,
)
from gpumem_magic.values.recording import Phase, Rules

MIB = 1 << 20
TEXT = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 15.80 GiB of "
    "which 4.00 MiB is free. Process 7 has 15.79 GiB memory in use."
)
OLD = "CUDA out of memory. Tried to allocate 2.32 GiB (GPU 0; 15.78 GiB total capacity; ...)"


def columns_of(*trace):
    return build_columns(EntryColumns(trace), (), Rules(), 0.0, 1.0)


def test_the_error_itself_or_what_it_was_raised_from():
    error = RuntimeError(TEXT)
    later = ValueError("training failed")
    later.__cause__ = error
    assert out_of_memory(error) == TEXT
    assert out_of_memory(later) == TEXT
    assert out_of_memory(ValueError("out of memory, said the user")) is None
    assert out_of_memory(None) is None


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert out_of_memory(first) is None


@pytest.mark.parametrize(("text", "device"), [(TEXT, 1), (OLD, 0), ("HIP out of memory.", None)])
def test_the_device_that_the_text_names(text, device):
    assert device_of(text) == device


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_memory_that_ran_out_outside_the_allocator_is_said_so(text):
    assert "outside PyTorch's allocator" in outside_allocator(RuntimeError(text))
    assert out_of_memory(RuntimeError(text)) == text
    assert outside_allocator(RuntimeError(TEXT)) is None


def test_what_may_have_another_cause_is_said_to_be_no_more_than_a_sign():
    error = RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if ...")
    assert "not only then" in outside_allocator(error)
    assert out_of_memory(error) is None


@pytest.mark.parametrize(
    "text",
    [
        OLD,
        "HIP out of memory. Tried to allocate 2.00 MiB.",
        "Allocation on device 0 would exceed allowed memory. (out of memory)",
        "CUDA out of memory. Tried to allocate more than 1EB memory.",
    ],
)
def test_texts_of_all_versions_count_whatever_class_carries_them(text):
    assert out_of_memory(RuntimeError(text)) == text
    assert out_of_memory(ValueError(f"worker 3 failed: {text}")) == f"worker 3 failed: {text}"


@pytest.mark.parametrize(
    "text",
    [
        "Torch not compiled with CUDA enabled",
        "Found no NVIDIA driver on your system.",
        "No CUDA GPUs are available",
        "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        "CUDA error: no CUDA-capable device is detected",
    ],
)
def test_texts_of_builds_with_and_without_cuda_say_that_there_is_no_device(text, monkeypatch):
    monkeypatch.setattr(failures, "cuda_devices", lambda: 0)
    assert lacks_cuda(RuntimeError(text))
    assert not lacks_cuda(RuntimeError("CUDA error: device-side assert triggered"))


def test_memory_of_other_devices_is_not_meant():
    text = "MPS backend out of memory (MPS allocated: 9.00 GB, max allowed: 9.07 GB)."
    assert out_of_memory(RuntimeError(text)) is None
    assert out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: ...")) is None


def test_the_class_of_pytorch_counts_whatever_its_text():
    torch = pytest.importorskip("torch")
    assert out_of_memory(torch.OutOfMemoryError("no words")) == "no words"


def test_a_library_tells_nothing_but_that_it_failed():
    text = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    frames = [{"filename": "<cell>", "line": 3, "name": "<module>"}]
    event = {
        "action": "oom",
        "addr": 0,
        "time_us": 0,
        "frames": frames,
        "size": 9,
        "device_free": 1,
    }
    failure = find_failure(text, columns_of(event), Rules())  # an earlier one, that was caught
    assert (failure.requested, failure.segment, failure.device_free) == (None, None, None)
    assert (failure.position, failure.stack) == (1, -1)


def test_the_text_gives_its_free_memory_too():
    text = OLD.replace("...", "11.91 GiB already allocated; 512.00 KiB free; 12.00 GiB reserved in "
                       "total by PyTorch")  # fmt: skip
    failure = read_failure(text, 7)
    assert failure.device_free == 512 << 10
    assert failure.reserved_free == (12 << 30) - int(11.91 * (1 << 30))
    assert failure.position == 7


def test_the_last_failure_of_the_history_is_the_one():
    frames = [{"filename": "<cell>", "line": 3, "name": "<module>"}]
    event = {"action": "oom", "addr": 0, "time_us": 0, "frames": frames}
    columns = columns_of(
        {"action": "segment_alloc", "addr": 0, "size": 2 * MIB, "time_us": 0, "frames": []},
        {**event, "size": 512, "device_free": 1},
        {**event, "size": 3 * MIB, "device_free": 4 * MIB},
    )
    failure = find_failure(TEXT, columns, Rules())
    assert (failure.requested, failure.segment, failure.device_free) == (3 * MIB, 20 * MIB, 4 * MIB)
    assert (failure.reserved_free, failure.largest_free) == (2 * MIB, 2 * MIB)
    assert (failure.position, failure.stack, failure.phase) == (2, 0, Phase.FORWARD)
    assert failure.message == TEXT


def test_without_history_the_text_alone_tells():
    failure = find_failure(OLD, columns_of(), Rules())
    assert failure.requested == failure.segment == int(2.32 * (1 << 30))
    assert (failure.device_free, failure.reserved_free, failure.stack) == (None, None, -1)


def test_an_error_in_one_line_has_no_colon_without_text():
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert one_line(ValueError("first\nsecond")) == "ValueError: first"
    assert one_line(ValueError("x" * 2000)) == f"ValueError: {'x' * 1000}..."


def test_a_syntax_error_is_told_without_the_name_of_a_file():
    error = SyntaxError("expected ':'", ("<ipython-input-6>", 2, 1, "for", 2, 2))
    assert one_line(error) == "SyntaxError: expected ':'"


def test_an_error_that_cannot_be_shown_does_not_hinder():
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    assert one_line(MuteError()) == "MuteError"
    assert out_of_memory(MuteError()) is None
    assert outside_allocator(MuteError()) is None
