"""Texts as they are pasted, of many libraries: who ran out of what, and how much was asked for."""

from __future__ import annotations

import pytest

from gpumem_magic.oom_text import Origin, Outlook, explain, parse

TEXTS = {
    "pt0.4": (
        "RuntimeError: cuda runtime error (2) : out of memory at /opt/conda/conda-bld/pytorch_1524586445097/work/aten/src/THC/generic/THCStorage.cu:58",
        Origin.ALLOCATOR,
        "",
        None,
    ),
    "pt0.4b": (
        "THCudaCheck FAIL file=/pytorch/aten/src/THC/THCGeneral.cpp line=663 error=2 : out of memory\nRuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
        Origin.ALLOCATOR,
        "",
        None,
    ),
    "pt0.4.1": (
        "RuntimeError: CUDA error: out of memory",
        Origin.LIBRARY,
        "CUDA",
        None,
    ),
    "pt1.0": (
        "RuntimeError: CUDA out of memory. Tried to allocate 98.00 MiB (GPU 0; 7.93 GiB total capacity; 6.82 GiB already allocated; 12.31 MiB free; 412.50 KiB cached)",
        Origin.ALLOCATOR,
        "",
        102760448,
    ),
    "rocm-err": (
        "RuntimeError: HIP out of memory. Tried to allocate 256.00 MiB (GPU 0; 15.98 GiB total capacity; 15.20 GiB already allocated; 10.00 MiB free; 15.60 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_HIP_ALLOC_CONF",
        Origin.ALLOCATOR,
        "",
        268435456,
    ),
    "hiperr": (
        "RuntimeError: HIP error: out of memory\nHIP kernel errors might be asynchronously reported at some other API call",
        Origin.LIBRARY,
        "HIP",
        None,
    ),
    "hipblas": (
        "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        Origin.LIBRARY,
        "cuBLAS (HIPBLAS_STATUS_ALLOC_FAILED)",
        None,
    ),
    "miopen": (
        "MIOpen Error: /MIOpen/src/ocl/convolutionocl.cpp:204: Out of memory\nRuntimeError: miopenStatusAllocFailed",
        Origin.LIBRARY,
        "MIOpen",
        None,
    ),
    "rocblas": (
        "rocBLAS error: rocblas_status_memory_error",
        Origin.LIBRARY,
        "rocBLAS",
        None,
    ),
    "mps": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 17.33 GB, other allocations: 384.00 KB, max allowed: 18.13 GB). Tried to allocate 1.00 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
        Origin.ALLOCATOR,
        "",
        1073741824,
    ),
    "mps-buf": (
        "RuntimeError: Invalid buffer size: 24.00 GB",
        Origin.LIBRARY,
        "Metal",
        24 << 30,
    ),
    "xpu-ur": (
        "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        Origin.LIBRARY,
        "Level Zero (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        None,
    ),
    "xpu-pi": (
        "RuntimeError: Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES) -5 (PI_ERROR_OUT_OF_RESOURCES)",
        Origin.LIBRARY,
        "Level Zero (PI_ERROR_OUT_OF_RESOURCES)",
        None,
    ),
    "cublas-lt": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        Origin.LIBRARY,
        "cuBLAS (CUBLAS_STATUS_NOT_INITIALIZED)",
        None,
    ),
    "cublas-int": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasSgemm( handle, opa, opb)`",
        Origin.NONE,
        "",
        None,
    ),
    "cudnn-int": (
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        Origin.LIBRARY,
        "cuDNN (CUDNN_STATUS_INTERNAL_ERROR)",
        None,
    ),
    "cudnn-frontend": (
        "cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
        Origin.NONE,
        "",
        None,
    ),
    "cudnn-hostalloc": (
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED_HOST",
        Origin.LIBRARY,
        "cuDNN (CUDNN_STATUS_ALLOC_FAILED)",
        None,
    ),
    "nccl": (
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.1\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 608 bytes",
        Origin.LIBRARY,
        "NCCL",
        608,
    ),
    "cusolver": (
        "torch._C._LinAlgError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        Origin.LIBRARY,
        "cuSOLVER (CUSOLVER_STATUS_ALLOC_FAILED)",
        None,
    ),
    "cusparse": (
        "RuntimeError: CUDA error: insufficient resources when calling `cusparseSpMM(...)` CUSPARSE_STATUS_INSUFFICIENT_RESOURCES",
        Origin.LIBRARY,
        "cuSPARSE (CUSPARSE_STATUS_INSUFFICIENT_RESOURCES)",
        None,
    ),
    "bnb": (
        "Error out of memory at line 380 in file /src/csrc/pythonInterface.c",
        Origin.LIBRARY,
        "bitsandbytes",
        None,
    ),
    "bnb2": (
        "CUDA Setup failed despite GPU being available. cuda out of memory in cget_managed_ptr\nError out of memory at line 463 in file /home/user/git/bitsandbytes/csrc/ops.cu",
        Origin.LIBRARY,
        "bitsandbytes",
        None,
    ),
    "vllm": (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        Origin.LIBRARY,
        "vLLM",
        None,
    ),
    "vllm2": (
        "ValueError: Free memory on device (5.21/14.56 GiB) on startup is less than desired GPU memory utilization (0.9, 13.1 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        Origin.LIBRARY,
        "vLLM",
        14066017894,
    ),
    "vllm3": (
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (18560). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
        Origin.LIBRARY,
        "vLLM",
        None,
    ),
    "vllm4": (
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (5.44 GiB). Based on the available memory, the estimated maximum model length is 44528.",
        Origin.LIBRARY,
        "vLLM",
        17179869184,
    ),
    "onnx": (
        "onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv node. Name:'Conv_0' Status Message: /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to allocate memory for requested buffer of size 536870912",
        Origin.LIBRARY,
        "ONNX Runtime",
        536870912,
    ),
    "onnx-cuda": (
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=box ; file=/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_allocator.cc ; line=47 ; expr=cudaMalloc((void**)&p, size);",
        Origin.LIBRARY,
        "ONNX Runtime",
        None,
    ),
    "cupy": (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,294,967,296 bytes (allocated so far: 12,884,901,888 bytes, limit set to: 15,000,000,000 bytes).",
        Origin.LIBRARY,
        "CuPy",
        4294967296,
    ),
    "cupy2": (
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes (allocated so far: 0 bytes).",
        Origin.LIBRARY,
        "CuPy",
        8000000000,
    ),
    "jax": (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        Origin.LIBRARY,
        "JAX",
        17179869184,
    ),
    "jax2": (
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0",
        Origin.LIBRARY,
        "JAX",
        2147483648,
    ),
    "tf": (
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[256,128,224,224] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Conv2D]",
        Origin.LIBRARY,
        "TensorFlow",
        None,
    ),
    "tf2": (
        "W tensorflow/core/common_runtime/bfc_allocator.cc:462] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB (rounded to 2147483648)requested by op",
        Origin.LIBRARY,
        "TensorFlow",
        2147483648,
    ),
    "tf-init": (
        "failed to allocate 10.76G (11554717696 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        Origin.LIBRARY,
        "CUDA (CUDA_ERROR_OUT_OF_MEMORY)",
        11554717696,
    ),
    "numpy": (
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 14.9 GiB for an array with shape (2000000000,) and data type float64",
        Origin.HOST,
        "NumPy",
        15998753177,
    ),
    "numpy-old": (
        "MemoryError: Unable to allocate array with shape (50000, 50000) and data type float64",
        Origin.HOST,
        "the system",
        None,
    ),
    "memerr": (
        "MemoryError",
        Origin.HOST,
        "the system",
        None,
    ),
    "cpualloc": (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you tried to allocate 51380224000 bytes. Error code 12 (Cannot allocate memory)",
        Origin.HOST,
        "",
        51380224000,
    ),
    "cpualloc-win": (
        "RuntimeError: [enforce fail at ..\\c10\\core\\impl\\alloc_cpu.cpp:72] data. DefaultCPUAllocator: not enough memory: you tried to allocate 1073741824 bytes.",
        Origin.HOST,
        "",
        1073741824,
    ),
    "errno12": (
        "OSError: [Errno 12] Cannot allocate memory",
        Origin.HOST,
        "the system",
        None,
    ),
    "worker": (
        "RuntimeError: DataLoader worker (pid 2871) is killed by signal: Killed.",
        Origin.HOST,
        "a killed worker",
        None,
    ),
    "workers": (
        "RuntimeError: DataLoader worker (pid(s) 15876, 2756) exited unexpectedly",
        Origin.NONE,
        "",
        None,
    ),
    "bus": (
        "RuntimeError: DataLoader worker (pid 4499) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        Origin.HOST,
        "shared memory",
        None,
    ),
    "shm": (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        Origin.HOST,
        "shared memory",
        None,
    ),
    "shm2": (
        "RuntimeError: unable to write to file </torch_22_1>\nRuntimeError: unable to open shared memory object </torch_29919_1396182366> in read-write mode: No space left on device (28)",
        Origin.HOST,
        "shared memory",
        None,
    ),
    "pinned": (
        'RuntimeError: CUDA error: out of memory\n  File "/usr/lib/python3/site-packages/torch/utils/data/_utils/pin_memory.py", line 55, in pin_memory',
        Origin.LIBRARY,
        "CUDA",
        None,
    ),
    "killed": (
        "Killed",
        Origin.HOST,
        "a killed process",
        None,
    ),
    "exit137": (
        "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)",
        Origin.HOST,
        "a killed process",
        None,
    ),
    "triton-shm": (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
        Origin.NONE,
        "",
        None,
    ),
    "numba": (
        "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
        Origin.LIBRARY,
        "CUDA (CUDA_ERROR_OUT_OF_MEMORY)",
        None,
    ),
    "rapids": (
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /opt/conda/include/rmm/mr/device/cuda_memory_resource.hpp:70: cudaErrorMemoryAllocation out of memory",
        Origin.LIBRARY,
        "RMM",
        None,
    ),
    "xgboost": (
        "xgboost.core.XGBoostError: [12:01:44] /workspace/src/c_api/../data/../common/device_helpers.cuh:431: Memory allocation error on worker 0: [12:01:44] std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: 1048576\n- Requested memory: 734003200",
        Origin.LIBRARY,
        "XGBoost",
        734003200,
    ),
    "llamacpp": (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 14336.00 MiB on device 0: cudaMalloc failed: out of memory",
        Origin.LIBRARY,
        "llama.cpp",
        15032385536,
    ),
    "paddle": (
        "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 2.000244GB memory on GPU 0, 14.5GB memory has been allocated and available memory is only 300.0MB.",
        Origin.LIBRARY,
        "PaddlePaddle",
        2147745641,
    ),
    "mxnet": (
        "mxnet.base.MXNetError: src/storage/./pooled_storage_manager.h:161: cudaMalloc retry failed: out of memory",
        Origin.LIBRARY,
        "MXNet",
        None,
    ),
    "deepspeed": (
        "RuntimeError: Not enough memory to allocate the pinned buffer of 4.00 GB",
        Origin.HOST,
        "pinned memory",
        4294967296,
    ),
    "ctranslate2": (
        "RuntimeError: CUDA failed with error out of memory",
        Origin.LIBRARY,
        "CUDA",
        None,
    ),
    "dgl": (
        "dgl._ffi.base.DGLError: [12:00:00] /opt/dgl/src/runtime/cuda/cuda_device_api.cc:117: Check failed: e == cudaSuccess || e == cudaErrorCudartUnloading: CUDA: out of memory",
        Origin.LIBRARY,
        "CUDA",
        None,
    ),
    "blender": (
        "Error: Out of memory in cuMemAlloc",
        Origin.LIBRARY,
        "CUDA",
        None,
    ),
    "tpu": (
        "RuntimeError: RESOURCE_EXHAUSTED: TPU backend error. Error allocating device buffer: Attempting to allocate 2.00G. That was not possible. There are 1.15G free.; (0x0x0_HBM0)",
        Origin.LIBRARY,
        "JAX",
        2147483648,
    ),
    "xla-reserve": (
        "RuntimeError: Bad StatusOr access: RESOURCE_EXHAUSTED: Attempting to reserve 12.00G at the bottom of memory. That was not possible. There are 9.52G free, 0B reserved, and 9.52G reservable.",
        Origin.LIBRARY,
        "JAX",
        12884901888,
    ),
    "xla-hbm": (
        "XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 20.50G of 15.48G hbm. Exceeded hbm capacity by 5.03G.",
        Origin.LIBRARY,
        "JAX",
        22011707392,
    ),
    "tgi": (
        "ERROR text_generation_launcher: Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`",
        Origin.LIBRARY,
        "TGI",
        None,
    ),
    "tinygrad": (
        "MemoryError: Allocation of 8.00 GB failed on CUDA. Used: 6.3 GB",
        Origin.LIBRARY,
        "tinygrad",
        8589934592,
    ),
    "faiss": (
        "RuntimeError: Error in virtual void* faiss::gpu::StandardGpuResourcesImpl::allocMemory(const faiss::gpu::AllocRequest&): Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type TemporaryMemoryBuffer dev 0 space Device stream 0x55d size 1610612736 bytes (cudaMalloc error out of memory [2])",
        Origin.LIBRARY,
        "FAISS",
        1610612736,
    ),
    "habana": (
        "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::1073741824 (1024)MB",
        Origin.LIBRARY,
        "Habana",
        1073741824,
    ),
    "tensorrt-code": (
        "[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory (no further information)",
        Origin.LIBRARY,
        "TensorRT",
        None,
    ),
    "musa": (
        "RuntimeError: MUSA out of memory. Tried to allocate 1.00 GiB (GPU 0; 48.00 GiB total capacity; 40.00 GiB already allocated; 900.00 MiB free; 41.00 GiB reserved in total by PyTorch)",
        Origin.ALLOCATOR,
        "",
        1073741824,
    ),
    "mlu": (
        "RuntimeError: MLU out of memory. Tried to allocate 20.00 MiB (MLU 0; 23.69 GiB total capacity; 21.00 GiB already allocated; 12 MiB free; 22.1 GiB reserved in total by PyTorch)",
        Origin.ALLOCATOR,
        "",
        20971520,
    ),
    "cudnn-host": (
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        Origin.HOST,
        "cuDNN",
        None,
    ),
    "java": (
        "py4j.protocol.Py4JJavaError: java.lang.OutOfMemoryError: Java heap space",
        Origin.HOST,
        "the Java machine",
        None,
    ),
    "vscode": (
        "The Kernel crashed while executing code in the current cell or a previous cell.",
        Origin.HOST,
        "a killed process",
        None,
    ),
    "triton-registers": (
        "triton.runtime.errors.OutOfResources: out of resource: registers, Required: 65536, Hardware limit: 32768",
        Origin.NONE,
        "",
        None,
    ),
    "triton-named": (
        "torch._inductor.exc.InductorError: NoTritonConfigsError: No valid triton configs. OutOfMemoryError: out of resource: triton_tem_fused_mm_0 Required: 163840 Hardware limit:101376 Reducing block sizes or `num_stages` may help.",
        Origin.NONE,
        "",
        None,
    ),
    "nccl-host": (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, internal error\nncclInternalError: Internal check failed.\nLast error:\nFailed to CUDA host alloc 8388608 bytes",
        Origin.HOST,
        "pinned memory",
        8388608,
    ),
    "jax-dnn": (
        "jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above for more details.",
        Origin.LIBRARY,
        "JAX",
        None,
    ),
    "shm-unavailable": (
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1234_567_0>: Resource temporarily unavailable (11)",
        Origin.HOST,
        "shared memory",
        None,
    ),
    "launch": (
        "RuntimeError: CUDA error: too many resources requested for launch",
        Origin.NONE,
        "",
        None,
    ),
    "trtllm": (
        "[TensorRT-LLM][ERROR] Assertion failed: [TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, mMemPool->getPool(), mCudaStream->get()): out of memory",
        Origin.LIBRARY,
        "CUDA",
        None,
    ),
    "tiny-cuda-nn": (
        "Could not allocate memory: CUDA Error: cudaMalloc(&rawptr, n_bytes+DEBUG_GUARD_SIZE*2) failed with error out of memory",
        Origin.LIBRARY,
        "CUDA",
        None,
    ),
    "nvdiffrast": (
        "RuntimeError: Cuda error: 2[cudaMalloc(&m_gpuPtr, bytes);]",
        Origin.LIBRARY,
        "CUDA",
        None,
    ),
    "comfyui-short": (
        "Allocation on device 0\nThis error means you ran out of memory on your GPU.",
        Origin.LIBRARY,
        "CUDA",
        None,
    ),
    "jax-constant": (
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to allocate 2147483648 bytes for new constant",
        Origin.LIBRARY,
        "JAX",
        2147483648,
    ),
    "exllama": (
        "RuntimeError: Insufficient VRAM in split for model and cache",
        Origin.LIBRARY,
        "ExLlama",
        None,
    ),
    "opencv-gpu": (
        "cv2.error: OpenCV(4.8.0) gpu_mat.cu:116: error: (-217:Gpu API call) out of memory in function 'allocate'",
        Origin.LIBRARY,
        "OpenCV",
        None,
    ),
    "opencv-host": (
        "cv2.error: OpenCV(4.5.4) alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate 6220800 bytes in function 'OutOfMemoryError'",
        Origin.HOST,
        "OpenCV",
        6220800,
    ),
    "cusparse-resources": (
        "RuntimeError: CUDA error: insufficient resources when calling `cusparseSpMM_bufferSize(...)`",
        Origin.LIBRARY,
        "cuSPARSE",
        None,
    ),
    "index": (
        "../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [13,0,0], thread: [96,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
        Origin.NONE,
        "",
        None,
    ),
    "ecc": (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        Origin.NONE,
        "",
        None,
    ),
    "overflow": (
        "RuntimeError: Storage size calculation overflowed with sizes=[9223372036854775807]",
        Origin.NONE,
        "",
        None,
    ),
    "assert": (
        "RuntimeError: CUDA error: device-side assert triggered",
        Origin.NONE,
        "",
        None,
    ),
}


@pytest.mark.parametrize(("text", "origin", "library", "asked"), TEXTS.values(), ids=TEXTS)
def test_each_is_known_or_says_what_it_does_not_know(text, origin, library, asked):
    reading = parse(text)
    assert reading.origin is origin
    assert reading.library == library
    assert (reading.asked.about if reading.asked else None) == asked
    if origin is Origin.NONE:
        assert "not an out-of-memory" not in str(explain(text))
        why = set(reading.unknown.values())
        assert reading.certain or all("its form is not known here" in one for one in why)
        assert not reading.certain or explain(text).headline == "No lack of the GPU's memory"


def test_gaps_that_are_smaller_than_the_request_are_not_enough():
    text = (
        "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 14.74 GiB "
        "of which 2.12 MiB is free. Including non-PyTorch memory, this process has 14.70 GiB "
        "memory in use. Of the allocated memory 14.50 GiB is allocated by PyTorch, and 61.44 MiB "
        "is reserved by PyTorch but unallocated."
    )
    found = explain(text)
    assert found.outlook is Outlook.FULL
    assert "63.56 MiB, less than was asked for" in found.verdict
    assert "end" not in " ".join(found.steps[:1])  # 37.85 MiB outside are the driver's
