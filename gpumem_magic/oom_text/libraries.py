"""Out-of-memory errors of the libraries beside PyTorch's allocator, which print few numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpumem_magic.values.oom_text import SIZES, Origin, Reading, Size


@dataclass(frozen=True, slots=True)
class _Sign:
    """Words, without spaces, that an error is known by; certain: they have no other cause."""

    library: str
    pattern: re.Pattern[str]
    certain: bool = True
    origin: Origin = Origin.LIBRARY


def _sign(library: str, pattern: str, certain: bool = True) -> _Sign:
    return _Sign(library, re.compile(pattern), certain)


# Certain ones first: the first that fits decides.
_SIGNS = (
    _sign("cuBLAS", "(?:CU|HIP|ROC)BLAS_STATUS_ALLOC_FAILED"),
    _sign("cuDNN", "CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)"),
    _sign("cuSOLVER", "CUSOLVER_STATUS_ALLOC_FAILED"),
    _sign("cuSPARSE", "CUSPARSE_STATUS_(?:ALLOC_FAILED|INSUFFICIENT_RESOURCES)"),
    _sign("cuFFT", "CUFFT_ALLOC_FAILED"),
    _sign("MIOpen", "miopenStatusAllocFailed"),
    _sign("NCCL", "(?:NCCL|nccl).*?(?i:(?:cuda|hip)failure(?:2)?'outofmemory')"),
    _sign("NCCL", "(?i:(?:cuda|hip)failure(?:2)?'outofmemory')"),
    _sign("NCCL", "FailedtoCUDAcallocasync"),
    _sign("CUDA", r"(?:CUDA|HIP)(?:driver)?error:outofmemory"),
    _sign("CUDA", r"(?:cuda|hip)runtimeerror\(2\):outofmemory|error=2:outofmemory"),
    _sign("CUDA", "(?:CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory)"),
    _sign("Triton", r"TritonError\[(?:CUDA|HIP)\]:outofmemory"),
    _sign("cuDNN", "UnabletofindavalidcuDNNalgorithm", certain=False),
    _sign("cuDNN", "unabletofindanenginetoexecutethiscomputation", certain=False),
    _sign("cuDNN", "CUDNN_STATUS_(?:NOT_SUPPORTED|NOT_INITIALIZED|INTERNAL_ERROR)", certain=False),
    _sign("cuBLAS", "CUBLAS_STATUS_NOT_INITIALIZED", certain=False),
)
_HOST = re.compile(
    r"DefaultCPUAllocator:(?:can'tallocatememory|notenoughmemory):youtriedtoallocate([0-9]{1,18})"
    r"|\$Torch:notenoughmemory:youtriedtoallocate([0-9]{1,9})GB"
)
_UNTOLD = "this library does not say how much"


def find_library(squeezed: str) -> Reading | None:
    """The library whose words stand in a text without spaces; None for none."""
    for sign in _SIGNS:
        if found := sign.pattern.search(squeezed):
            unknown = dict.fromkeys(SIZES, _UNTOLD)
            words = _words(found.group())
            return Reading(
                sign.origin, unknown=unknown, certain=sign.certain, library=f"{sign.library}{words}"
            )
    return _host(squeezed)


def _words(found: str) -> str:
    """The status code, where the text has one."""
    code = re.search(r"[A-Za-z]+(?:_[A-Z]+)+$", found)
    return f" ({code.group()})" if code else ""


def _host(squeezed: str) -> Reading | None:
    found = _HOST.search(squeezed)
    if found is None:
        return None
    size = int(found[1]) if found[1] else int(found[2]) << 30
    unknown = {name: "texts of this form do not tell it" for name in SIZES if name != "asked"}
    return Reading(Origin.HOST, "CPU", asked=Size(size), unknown=unknown)
