"""One text of every form that PyTorch, and the libraries beside it, have had; numbers made up."""

from __future__ import annotations

import pytest

SPLIT = (
    " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
    "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
HINT = (
    " If reserved but unallocated memory is large try setting {} to avoid fragmentation.  See "
    "documentation for Memory Management  (https://docs.example/notes/cuda.html)"
)
EXPANDABLE = HINT.format("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
SENTENCES = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 14.50 GiB of "
    "which 3.25 MiB is free. Process 4711 has 2.00 GiB memory in use. Including non-PyTorch memory,"
    " this process has 12.50 GiB memory in use. Of the allocated memory 12.25 GiB is allocated by "
    "PyTorch, and 128.00 MiB is reserved by PyTorch but unallocated." + EXPANDABLE
)
TEXTS = {
    "cached": (
        "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 8.00 GiB total "
        "capacity; 6.00 GiB already allocated; 512.50 MiB free; 64.00 MiB cached)"
    ),
    "reserved": (
        "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 2; 16.00 GiB total capacity; "
        "11.00 GiB already allocated; 512.50 MiB free; 14.25 GiB reserved in total by PyTorch)"
    ),
    "split": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 10.00 MiB (GPU 0; "
        "6.00 GiB total capacity; 5.00 GiB already allocated; 0 bytes free; 5.25 GiB reserved in "
        "total by PyTorch)" + SPLIT
    ),
    "capacty": (
        "torch.cuda.OutOfMemoryError: "
        + SENTENCES.replace("capacity", "capacty").replace(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "max_split_size_mb"
        )
    ),
    "capacity": "torch.OutOfMemoryError: " + SENTENCES,
    "allowed": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a "
        "total capacity of 24.00 GiB of which 20.00 GiB is free. 3.00 GiB allowed; Of the "
        "allocated memory 2.75 GiB is allocated by PyTorch, and 64.00 MiB is reserved by PyTorch "
        "but unallocated." + EXPANDABLE
    ),
    "pools": SENTENCES.replace(
        "PyTorch, and",
        "PyTorch, with 16.00 MiB allocated in private pools (e.g., CUDA Graphs), and",
    ),
    "hip": SENTENCES.replace("CUDA out", "HIP out"),
    "xpu": (
        "XPU out of memory. Tried to allocate 32.00 GiB. GPU 0 has a total capacity of 11.50 GiB "
        "of which 9.00 GiB is free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 "
        "bytes is reserved by PyTorch but unallocated."
    ),
    "async": (
        "torch.OutOfMemoryError: Allocation on device 3 would exceed allowed memory. (out of "
        "memory)\n"
        "Currently allocated     : 6.50 GiB\nRequested               : 320.00 MiB\n"
        "Device limit            : 8.00 GiB\nFree (according to CUDA): 2.50 MiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 17179869184.00 GiB"
    ),
    "mps": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 8.50 GB, other allocations: "
        "512.00 KB, max allowed: 9.00 GB). Tried to allocate 1.00 GB on private pool. Use "
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations."
    ),
    "endless": "CUDA out of memory. Tried to allocate more than 1EB memory.",
}
LIBRARIES = {
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": (
        "cuBLAS (CUBLAS_STATUS_ALLOC_FAILED)",
        True,
    ),
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED": ("cuDNN (CUDNN_STATUS_ALLOC_FAILED)", True),
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`": (
        "cuSOLVER (CUSOLVER_STATUS_ALLOC_FAILED)",
        True,
    ),
    "cuFFT error: CUFFT_ALLOC_FAILED": ("cuFFT (CUFFT_ALLOC_FAILED)", True),
    "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be reported later": (
        "CUDA",
        True,
    ),
    "CUDA driver error: out of memory": ("CUDA", True),
    "HIP error: out of memory": ("HIP", True),
    "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:9, unhandled cuda error\nLast error:\n"
    "Cuda failure 2 'out of memory'": ("NCCL", True),
    "Triton Error [CUDA]: out of memory": ("Triton", True),
    "Unable to find a valid cuDNN algorithm to run convolution": ("cuDNN", False),
    "GET was unable to find an engine to execute this computation": ("cuDNN", False),
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in ...": (
        "cuDNN (CUDNN_STATUS_NOT_SUPPORTED)",
        False,
    ),
}


@pytest.fixture
def texts():
    """Texts of PyTorch's allocator, by the name of their form."""
    return TEXTS


@pytest.fixture
def libraries():
    """Texts of libraries: what each is called, and whether the text has no other cause."""
    return LIBRARIES
