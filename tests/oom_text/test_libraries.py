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


@pytest.mark.parametrize(
    ("text", "library", "asked"),
    [
        (
            (
                "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 "
                "bytes (allocated so far: 4,000,000,000 bytes)."
            ),
            "CuPy",
            8000000000,
        ),
        (
            (
                "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory "
                "while trying to allocate 8589934592 bytes."
            ),
            "JAX",
            8589934592,
        ),
        (
            ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes."),
            "JAX",
            4294967296,
        ),
        (
            (
                "ResourceExhaustedError: {{function_node "
                "__wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:GPU:0}} OOM "
                "when allocating tensor with shape[20000,20000] and type float on "
                "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc "
                "[Op:AddV2]"
            ),
            "TensorFlow",
            None,
        ),
        (
            (
                "onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: "
                "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned "
                "while running Conv node. Name:'Conv_0' Status Message: "
                "/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:342 void* "
                "onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate "
                "memory for requested buffer of size 67108864"
            ),
            "ONNX Runtime",
            67108864,
        ),
        (
            ("Error out of memory at line 380 in file /src/bitsandbytes/csrc/ops.cu"),
            "bitsandbytes",
            None,
        ),
        (
            (
                "ValueError: No available memory for the cache blocks. Try increasing "
                "`gpu_memory_utilization` when initializing the engine."
            ),
            "vLLM",
            None,
        ),
        (
            (
                "ValueError: The model's max seq len (32768) is larger than the maximum "
                "number of tokens that can be stored in KV cache (8192). Try increasing "
                "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the"
                " engine."
            ),
            "vLLM",
            None,
        ),
        (
            (
                "ValueError: Free memory on device (3.2/14.74 GiB) on startup is less than "
                "desired GPU memory utilization (0.9, 13.27 GiB). Decrease GPU memory "
                "utilization or reduce GPU memory used by other processes."
            ),
            "vLLM",
            14248554004,
        ),
        (
            (
                "ggml_cuda_device_malloc: CUDA error 2: out of memory\n"
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device"
                " 0: cudaMalloc failed: out of memory"
            ),
            "llama.cpp",
            4294967296,
        ),
        (
            (
                "ResourceExhaustedError: Out of memory error on GPU 0. Cannot allocate "
                "2.000000GB memory on GPU 0, 14.5GB memory has been allocated and available "
                "memory is only 256.0MB."
            ),
            "PaddlePaddle",
            2147483648,
        ),
        (("mxnet.base.MXNetError: cudaMalloc retry failed: out of memory"), "MXNet", None),
        (
            (
                "[E] Error Code 1: Cuda Runtime (out of memory)\n Requested amount of GPU "
                "memory (4294967296 bytes) could not be allocated."
            ),
            "TensorRT",
            4294967296,
        ),
        (("pycuda._driver.MemoryError: cuMemAlloc failed: out of memory"), "PyCUDA", None),
        (
            (
                "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: "
                "/include/rmm/mr/device/cuda_memory_resource.hpp:70: "
                "cudaErrorMemoryAllocation out of memory"
            ),
            "RMM",
            None,
        ),
        (
            (
                "xgboost.core.XGBoostError: [10:11:12] Memory allocation error on worker 0: "
                "bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: 12582912\n"
                "- Requested memory: 9232383"
            ),
            "XGBoost",
            9232383,
        ),
    ],
)
def test_frameworks_with_allocators_of_their_own(text, library, asked):
    reading = parse(text)
    assert (reading.origin, reading.library) == (Origin.LIBRARY, library)
    assert (reading.asked.about if reading.asked else None) == asked
    assert library in explain(text).headline
    assert str(explain(text))


@pytest.mark.parametrize(
    ("text", "library"),
    [
        (
            (
                "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 14.9 GiB for an"
                " array with shape (50000, 40000) and data type float64"
            ),
            "NumPy",
        ),
        (("OSError: [Errno 12] Cannot allocate memory"), "the system"),
        (
            ("RuntimeError: DataLoader worker (pid 12345) is killed by signal: Killed."),
            "a killed worker",
        ),
        (
            (
                "RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly\nERROR: "
                "Unexpected bus error encountered in worker. This might be caused by "
                "insufficient shared memory (shm)."
            ),
            "shared memory",
        ),
        (
            (
                "RuntimeError: unable to write to file </torch_123_456>: No space left on "
                "device (28)"
            ),
            "shared memory",
        ),
        (("MemoryError"), "the system"),
    ],
)
def test_the_hosts_memory_in_the_words_of_others(text, library):
    reading = parse(text)
    assert (reading.origin, reading.library) == (Origin.HOST, library)
    assert "not the GPU" in explain(text).verdict
    assert str(explain(text))


@pytest.mark.parametrize(
    "text",
    [
        "cuda runtime error (2) : out of memory at /src/torch/lib/THC/generic/THCStorage.cu:66",
        "THCudaCheck FAIL file=/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of memory",
    ],
)
def test_the_oldest_texts_are_of_pytorchs_allocator(text):
    reading = parse(text)
    assert (reading.origin, reading.asked) == (Origin.ALLOCATOR, None)
    assert "outside" not in explain(text).headline


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("RuntimeError: of 24.00 GiB nothing is left", "24.00GiB"),
        ("ValueError: not enough values to unpack (expected 2, got 1)", ""),
        ("OutOfResources: out of resource: shared memory, Required: 147456", ""),
    ],
)
def test_what_is_not_known_is_called_so(text, told):
    explanation = explain(text)
    assert explanation.headline == "Not recognised as an out-of-memory error"
    assert told in explanation.untold[0]
    assert "not one of" not in str(explanation)


@pytest.mark.parametrize(
    ("text", "origin", "library", "certain"),
    [
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            Origin.LIBRARY,
            "SGLang",
            True,
        ),
        (
            "InternalError: Failed copying input tensor from CPU:0 to GPU:0 in order to run "
            "_EagerConst: Dst tensor is not initialized.",
            Origin.LIBRARY,
            "TensorFlow",
            False,
        ),
        (
            "OSError: [WinError 1455] The paging file is too small for this operation to complete",
            Origin.HOST,
            "Windows",
            True,
        ),
        (
            "OSError: The paging file is too small for this operation to complete. (os error 1455)",
            Origin.HOST,
            "Windows",
            True,
        ),
        (
            "Your session crashed after using all available RAM.",
            Origin.HOST,
            "the notebook",
            True,
        ),
    ],
)
def test_texts_without_the_words_out_of_memory(text, origin, library, certain):
    reading = parse(text)
    assert (reading.origin, reading.library, reading.certain) == (origin, library, certain)


@pytest.mark.parametrize(
    ("text", "free"),
    [
        (
            "ValueError: Free memory on device cuda:0 (3.23/23.64 GiB) on startup is less than "
            "desired GPU memory utilization (0.9, 21.28 GiB).",
            int(3.23 * (1 << 30)),
        ),
        (
            "Out of memory error on GPU 0. Cannot allocate 1.5GB memory on GPU 0, 15.4GB memory "
            "has been allocated and available memory is only 379.5MB.",
            397934592,
        ),
        (
            "XGBoostError: Memory allocation error on worker 0: Caching allocator\n"
            "- Free memory: 1048576\n- Requested memory: 25165824",
            1048576,
        ),
    ],
)
def test_what_was_free_is_read_where_a_library_says_it(text, free):
    explanation = explain(text)
    assert explanation.reading.free.about == free
    assert not any("how much was free" in each for each in explanation.untold)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
            "XLA_PYTHON_CLIENT_PREALLOCATE=false",
        ),
        (
            "ResourceExhaustedError: OOM when allocating tensor with shape[32,256,128,128]",
            "set_memory_growth",
        ),
        ("Not enough memory to handle 4096 prefill tokens.", "--max-batch-prefill-tokens"),
        ("java.lang.OutOfMemoryError: Java heap space", "spark.driver.memory"),
    ],
)
def test_who_takes_memory_of_its_own_is_told_how_to_take_less(text, first):
    assert first in explain(text).steps[0]
