"""Out-of-memory errors of the libraries beside PyTorch's allocator, which print few numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpumem_magic.units import parse_bytes
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


def _host(what: str, pattern: str, certain: bool = True) -> _Sign:
    return _Sign(what, re.compile(pattern), certain, Origin.HOST)


_NUMBER = r"[0-9][0-9,]{0,17}(?:\.[0-9]{0,6})?(?:[KMGT](?:i?B)?|bytes)?"
_BYTES = f"(?P<asked>{_NUMBER})"
_FREE = f"(?P<free>{_NUMBER})"
_OF = rf"(?P<free>[0-9.]+)/(?P<total>{_NUMBER})"

_OF_SIZES = "[0-9.KMGTiBbytes]"
_GOES_ON = r"withfreed_by_count=\d+\.Thecallerindicatesthatthisisnotafailure"
"""What XLA says of a request that it then makes otherwise."""

_PINNED = (
    _host("pinned memory", rf"alloc(?:ate)?{_BYTES}onhost:CUDA_ERROR_OUT_OF_MEMORY"),
    _host("pinned memory", "outofmemorywhencalling`?cu(?:daHost|MemHost|MemAllocHost)"),
    _host("pinned memory", rf"FailedtoCUDAhostalloc{_BYTES}"),
)
"""Of the host, in words that are CUDA's."""

# Frameworks with allocators of their own come before what CUDA says below them, then certain ones:
# the first that fits decides.
_SIGNS = (
    _sign(
        "CuPy",
        rf"Outofmemoryallocating{_BYTES}\(allocatedsofar:{_NUMBER}"
        rf"(?:,limitsetto:(?P<allowed>{_NUMBER}))?",
    ),
    _sign("CUDA.jl", rf"OutofGPUmemory(?:tryingtoallocate{_BYTES})?"),
    _sign("CatBoost", rf"TOutOfMemoryError(?:.{{0,40}}?Requested{_BYTES};Free{_FREE})?"),
    _sign("RAPIDS", r"Gpu(?:SplitAnd)?RetryOOM|GPUOutOfMemory"),
    _sign("Cycles", r"OutofmemoryinCUDAqueue|SystemisoutofGPU(?:andsharedhost)?memory"),
    _sign("JAX", rf"RESOURCE_EXHAUSTED:.{{0,200}}?Outofmemory.{{0,20}}?allocat(?:e|ing){_BYTES}"),
    _sign("JAX", rf"RESOURCE_EXHAUSTED:Failedtoallocaterequestfor{_BYTES}"),
    _sign("JAX", rf"Resourceexhausted:Outofmemorywhiletryingtoallocate{_BYTES}"),
    _sign(
        "JAX",
        rf"RESOURCE_EXHAUSTED:.{{0,200}}?Attemptingto(?:allocate|reserve){_BYTES}"
        rf"(?:atthebottomofmemory)?\.Thatwasnotpossible\.(?:Thereare{_FREE}free)?",
    ),
    _sign("JAX", rf"Ranoutofmemoryinmemoryspace\w+?\.Used{_BYTES}of(?P<total>{_NUMBER})"),
    _sign("JAX", rf"Failedtoallocate{_BYTES}fornewconstant"),
    _sign("JAX", "FAILED_PRECONDITION:DNNlibraryinitializationfailed", certain=False),
    _sign("TensorFlow", rf"ranoutofmemorytryingtoallocate{_BYTES}(?!{_OF_SIZES}|{_GOES_ON})"),
    _sign("TensorFlow", r"OOMwhenallocatingtensorwithshape"),
    _sign("TensorFlow", rf"ranoutofmemorytryingtoallocate{_BYTES}", certain=False),
    _sign(
        "TensorFlow",
        "(?:Graphexecutionerror|ResourceExhaustedError).{0,400}?failedtoallocatememory",
    ),
    _sign("TensorFlow", "Dsttensorisnotinitialized", certain=False),
    _sign("ONNX Runtime", rf"Availablememoryof{_FREE}issmallerthanrequestedbytesof{_BYTES}"),
    _sign("ONNX Runtime", rf"Failedtoallocatememoryforrequestedbufferofsize{_BYTES}"),
    _sign("ONNX Runtime", r"CUDAfailure2:outofmemory"),
    _sign("bitsandbytes", r"Erroroutofmemoryatline\d+infile/src/csrc/"),
    _sign("bitsandbytes", r"Erroroutofmemoryatline\d+infile\S{0,300}?bitsandbytes"),
    _sign("vLLM", r"Noavailablememoryforthecacheblocks"),
    _sign(
        "vLLM",
        rf"\({_BYTES}KVcacheisneeded,whichislargerthantheavailableKVcachememory"
        rf"(?:\((?P<allowed>{_NUMBER})\))?",
    ),
    _sign("vLLM", r"maximumnumberoftokensthatcanbestoredinKVcache"),
    _sign(
        "vLLM",
        rf"Freememoryondevice(?:[\w:]{{0,20}}\({_OF}\))?.{{0,60}}?GPUmemoryutilization"
        rf"(?:\([0-9.]+,{_BYTES})?",
    ),
    _sign("SGLang", r"Notenoughmemory\.Pleasetrytoincrease--mem-fraction-static"),
    _sign("SGLang", r"(?:Prefill|Decode)outofmemory"),
    _sign("TGI", r"Notenoughmemorytohandle\d+\w*?tokens"),
    _sign("tinygrad", rf"Allocationof{_BYTES}failedon(?:CUDA|NV|AMD|HIP|METAL|GPU|CL)\b"),
    _sign("ExLlama", r"InsufficientVRAM"),
    _sign("OpenCV", r"GpuAPIcall\)outofmemory"),
    _sign("FAISS", rf"allocfailtype\w+dev\d+\S{{0,80}}?size{_BYTES}"),
    _sign("Habana", rf"PT_DEVMEMAllocationfailedforsize::{_BYTES}"),
    _sign("llama.cpp", rf"failedtoallocate(?:CUDA|ROCm|Vulkan|SYCL)\d*bufferofsize{_BYTES}"),
    _sign("llama.cpp", r"ggml-cuda\.cu:\d+:outofmemory"),
    _sign("llama.cpp", r"unabletoallocate(?:CUDA|ROCm|SYCL)\d*buffer"),
    _sign("llama.cpp", rf"(?:allocating{_BYTES}ondevice\d+:)?cudaMallocfailed:outofmemory"),
    _sign("llama.cpp", r"ROCmerror:outofmemory"),
    _sign("Vulkan", rf"Devicememoryallocationofsize{_BYTES}failed"),
    _sign("Vulkan", "ErrorOutOfDeviceMemory|VK_ERROR_OUT_OF_DEVICE_MEMORY"),
    _sign("Metal", rf"Invalidbuffersize:{_BYTES}", certain=False),
    _sign("Metal", rf"Attemptingtoallocate{_BYTES}whichisgreaterthanthemaximumallowedbuffersize"),
    _sign("Metal", "kIOGPUCommandBufferCallbackErrorOutOfMemory"),
    _sign(
        "PaddlePaddle",
        rf"OutofmemoryerroronGPU\d+\.Cannotallocate{_BYTES}memory"
        rf"(?:onGPU\d+,{_NUMBER}memoryhasbeenallocatedandavailablememoryisonly{_FREE})?",
    ),
    _sign("MXNet", r"cudaMallocretryfailed:outofmemory"),
    _sign("TensorRT", rf"RequestedamountofGPUmemory\({_BYTES}\)couldnotbeallocated"),
    _sign("TensorRT", r"ErrorCode2:OutOfMemory|Cuda(?:Runtime|Errorin\w+:2)\(outofmemory\)"),
    _sign("PyCUDA", r"cuMemAllocfailed:outofmemory"),
    _sign("RMM", rf"[pP]oolsizeexceeded\(failedtoallocate{_BYTES}\)"),
    _sign("RMM", r"bad_alloc:out_of_memory:CUDAerror|RMMfailure\S{0,200}?poolsizeexceeded"),
    _sign(
        "XGBoost", rf"Memoryallocationerror.{{0,200}}?Freememory:{_FREE}-?Requestedmemory:{_BYTES}"
    ),
    _sign("XGBoost", r"XGBoostError.{0,300}?cudaErrorMemoryAllocation"),
    _sign("Accelerate", "SomemodulesaredispatchedontheCPUorthedisk"),
    _sign("cuBLAS", "(?:CU|HIP|ROC)BLAS_STATUS_ALLOC_FAILED"),
    _sign("cuDNN", "CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)"),
    _sign("cuSOLVER", "CUSOLVER_STATUS_ALLOC_FAILED"),
    _sign("cuSPARSE", "CUSPARSE_STATUS_(?:ALLOC_FAILED|INSUFFICIENT_RESOURCES)"),
    _sign(
        "cuSPARSE", "cusparseerror:insufficientresources|insufficientresourceswhencalling`cusparse"
    ),
    _sign("cuFFT", "CUFFT_ALLOC_FAILED"),
    _sign("MAGMA", "MAGMA_ERR_DEVICE_ALLOC"),
    _sign("rocBLAS", "rocblas_status_memory_error"),
    _sign("Level Zero", "U?R_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"),
    _sign("MIOpen", "miopenStatusAllocFailed"),
    _sign("MIOpen", rf"Memorynotavailabletoallocatebuffer:{_BYTES}"),
    _sign("NCCL", rf"FailedtoCUDAcalloc(?:async)?{_BYTES}"),
    _sign("NCCL", "(?:NCCL|nccl).*?(?i:(?:cuda|hip)failure(?:2)?'outofmemory')"),
    _sign("NCCL", "(?i:(?:cuda|hip)failure(?:2)?'outofmemory')"),
    _sign("HIP", r"HIP(?:driver)?error:outofmemory|hipruntimeerror\(2\):outofmemory"),
    _sign("HIP", "hipErrorOutOfMemory"),
    _sign("CUDA", r"CUDA(?:driver)?[eE]rror:outofmemory|OutOfMemoryError:Allocationondevice"),
    _sign("CUDA", r"cudaruntimeerror\(2\):outofmemory|error=2:outofmemory"),
    _sign("CUDA", rf"\({_BYTES}\)fromdevice:CUDA_ERROR_OUT_OF_MEMORY"),
    _sign("CUDA", rf"alloc{_BYTES}unifiedmemory;result:CUDA_ERROR_OUT_OF_MEMORY"),
    _sign("CUDA", "CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|OutofmemoryincuMemAlloc"),
    _sign(
        "CUDA",
        r"(?i:cuda)(?:\]|:|failedwitherror)?(?:[eE]rror)?(?:\S{0,80}?\(?2\)?\S{0,80}?[:(])?outofmemory",
    ),
    _sign("CUDA", r"(?i:cuda)runtimeerror\S{0,160}?:outofmemory|Cudaerror:2\[cudaMalloc"),
    _sign("CUDA", r"cu(?:daMalloc|MemAlloc)\S{0,120}?outofmemory|(?i:ranoutofmemoryonyourgpu)"),
    _sign("OpenCL", "CL_MEM_OBJECT_ALLOCATION_FAILURE"),
    _sign("Warp", rf"Failedtoallocate{_BYTES}ondevice"),
    _sign("Triton", r"TritonError\[(?:CUDA|HIP)\]:outofmemory"),
    _sign("Direct3D", r"D3Derrorwas0x8007000[eE]|E_OUTOFMEMORY", certain=False),
    _sign("cuDNN", "UnabletofindavalidcuDNNalgorithm", certain=False),
    _sign("cuDNN", "unabletofindanenginetoexecutethiscomputation", certain=False),
    _sign(
        "cuDNN",
        "CUDNN_STATUS_(?:NOT_SUPPORTED|NOT_INITIALIZED|INTERNAL_ERROR(?!_HOST_ALLOCATION))",
        certain=False,
    ),
    _sign("cuSOLVER", "CUSOLVER_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)", certain=False),
    _sign("cuFFT", "CUFFT_INTERNAL_ERROR", certain=False),
    _sign("cuBLAS", "CUBLAS_STATUS_NOT_INITIALIZED", certain=False),
    _sign("cuBLAS", "cublasruntimeerror:(?:resourceallocationfailed|librarynot)", certain=False),
    _sign("Level Zero", "(?:PI|UR_RESULT)_ERROR_OUT_OF_RESOURCES", certain=False),
    _sign("OpenCL", "CL_OUT_OF_RESOURCES", certain=False),
)
_KILLED = (
    r"exit(?:ed)?(?:with)?(?:code|status)?[:=]?137|\$\?137|exitcode:-9|returncode=-9"
    r"|[sS]ignal9\(SIGKILL\)|withsignalSIGKILL|Signals\.SIGKILL:9"
)
"""How torchrun, spawn, accelerate, DeepSpeed and containers tell of a process that was killed."""

_HOSTS = (
    _host("the system", rf"unabletommap{_BYTES}fromfile\S{{1,300}}?:Cannotallocatememory"),
    _host("NumPy", rf"Unabletoallocate{_BYTES}foranarraywithshape"),
    _host("shared memory", r"workersareoutofsharedmemory|killedbysignal:Buserror"),
    _host("shared memory", r"sharedmemoryobject</torch_\S{1,60}?>\S{0,40}?Nospaceleftondevice"),
    _host("pinned memory", rf"Notenoughmemorytoallocatethepinnedbufferof{_BYTES}"),
    _host("shared memory", r"insufficientsharedmemory|Unexpectedbuserrorencounteredinworker"),
    _host("shared memory", r"unabletowritetofile</torch_\S{1,60}?>:Nospaceleftondevice"),
    _host("shared memory", r"unabletoallocatesharedmemory\(shm\)forfile"),
    _host("cuDNN", "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
    _host("pinned memory", rf"failedtoallocate{_BYTES}ofpinnedmemory"),
    _host("shared memory", "Errorwhilecreatingsharedmemorysegment"),
    _host("the Java machine", r"java\.lang\.OutOfMemoryError"),
    _host("Windows", r"(?:WinError|oserror)1455"),
    _host("the notebook", "sessioncrashedafterusingallavailableRAM"),
    _host("Ray", "killedduetothenoderunninglowonmemory"),
    _host("OpenCV", rf"Insufficientmemory\)Failedtoallocate{_BYTES}"),
    _host("Arrow", rf"mallocofsize{_BYTES}failed"),
    _host("the system", rf"memoryallocationof{_BYTES}failed"),
    _host("the system", rf"requiresmoresystemmemory\({_BYTES}\)than"),
    _host("the notebook", "triedtoallocatememorythanisavailable|triedtoallocatemorememorythan"),
    _host("the system", r"[oO]utofmemory:Killed?process|oom[-_]kill|OOM(?:Killed|killer)"),
    _host("a killed process", f"^Killed$|{_KILLED}", certain=False),
    _host("a killed worker", "TerminatedWorkerError|BrokenProcessPool", certain=False),
    _host("a killed process", "kernelappearstohavedied|[kK]ernelcrashedwhile", certain=False),
    _host("a killed worker", r"DataLoaderworker\(pid\(?s?\)?[0-9,]+\)iskilledbysignal:Killed"),
    _host(
        "the batch system",
        r"TERM_MEMLIMIT|Exceededjobmemorylimit|exceededmemorylimit\("
        r"|jobkilled:v?mem[0-9]+kbexceededlimit",
    ),
    _host("Dask", r"exceeded[0-9]+%memorybudget"),
    _host("a killed worker", r"KilledWorker", certain=False),
    _host("the system", r"\[Errno12\]|std::bad_alloc|(?<![A-Za-z.])MemoryError"),
)
_HOST = re.compile(
    r"DefaultCPUAllocator:(?:can'tallocatememory|notenoughmemory):youtriedtoallocate([0-9]{1,18})"
    r"|\$Torch:notenoughmemory:youtriedtoallocate([0-9]{1,9})GB"
)
_UNTOLD = "this library does not say how much"


_OLDEST = re.compile(
    r"THC(?:Storage|CachingAllocator|Tensor)[^:]{0,40}:[0-9]+|THC\S{0,80}outofmemory"
)
"""PyTorch 0.4 and older: its allocator's file is all that the text names."""


def find_library(squeezed: str) -> Reading | None:
    """The library whose words stand in a text without spaces; None for none."""
    if "outofmemory" in squeezed and _OLDEST.search(squeezed):
        unknown = dict.fromkeys(SIZES, "texts of this version do not tell it")
        return Reading(Origin.ALLOCATOR, "CUDA", unknown=unknown, written_by="PyTorch 0.4 or older")
    if found := _HOST.search(squeezed):
        size = int(found[1]) if found[1] else int(found[2]) << 30
        unknown = {name: "texts of this form do not tell it" for name in SIZES if name != "asked"}
        return Reading(Origin.HOST, "CPU", asked=Size(size), unknown=unknown)
    tried = ((sign, sign.pattern.search(squeezed)) for sign in (*_PINNED, *_SIGNS, *_HOSTS))
    return next((_told(sign, found) for sign, found in tried if found), None)


def _told(sign: _Sign, found: re.Match[str]) -> Reading:
    """What the words say: how much was asked for, seldom more."""
    is_host = sign.origin is Origin.HOST
    texts = {name: text for name, text in found.groupdict().items() if text}
    if "total" in texts and texts.get("free", "")[-1:].isdigit():  # "3.2/24 GiB": one unit for both
        texts["free"] += texts["total"].lstrip("0123456789.,")
    sizes = {name: _size(text) for name, text in texts.items()}
    return Reading(
        sign.origin,
        "CPU" if is_host else None,
        unknown={name: _UNTOLD for name in SIZES if name not in sizes},
        certain=sign.certain,
        library=sign.library if is_host else f"{sign.library}{_words(found.group())}",
        asked=sizes.get("asked"),
        total=sizes.get("total"),
        free=sizes.get("free"),
        allowed=sizes.get("allowed"),
    )


def _size(text: str) -> Size:
    """A number with its thousands in commas, or with a comma before its decimals; NumPy's may end
    with a point."""
    text = re.sub(r",(?=[0-9]{1,2}(?![0-9]))", ".", text).replace(",", "")
    text = re.sub(r"\.(?![0-9])", "", text)
    return Size(parse_bytes(text.removesuffix("bytes")))


_BESIDE = (
    (
        rf"outofresource:\w+(?:,|\s)?Required:{_NUMBER},?Hardwarelimit",
        "a kernel of Triton wants more of the memory inside the GPU's processors (shared memory) "
        "than they have; the card's memory has no part in it",
    ),
    (
        "outofresource:registers|toomanyresourcesrequestedforlaunch",
        "a kernel wants more registers than the GPU's processors have; the card's memory has no "
        "part in it",
    ),
    (
        r"device-sideasserttriggered|\.cuh?:\d+:\S{0,400}?Assertion`",
        "a kernel failed, by an index out of range most often; it has nothing to do with memory",
    ),
    (
        "anillegalmemoryaccesswasencountered|misalignedaddress",
        "a kernel reached for what is not its own, by an index out of range or a fault of a "
        "library; it has nothing to do with how much memory there is",
    ),
    (
        "uncorrectableECCerror|devicesarebusyorunavailable|thelaunchtimedout|NoCUDAGPUsareavailable",
        "the driver refuses the card, or has lost it: a restart of the kernel, and nvidia-smi, "
        "tell more; it has nothing to do with how much memory there is",
    ),
    (
        "Storagesizecalculationoverflowed|createtensorwithnegativedimension",
        "a shape went wrong: no memory was asked for yet",
    ),
    (
        r"sharedmemoryobject\S{0,80}Toomanyopenfiles|received0itemsofancdata",
        "each tensor that a loader's worker hands over keeps a file open, and there are too many: "
        "torch.multiprocessing.set_sharing_strategy('file_system'), or a higher ulimit -n",
    ),
    (
        "Toomanyopenfiles",
        "too many files are open: a higher ulimit -n helps, or fewer workers of loaders",
    ),
    (
        r"Nospaceleftondevice|\[Errno28\]|filewritefailed",
        "a disk is full (the device that it speaks of is the disk, not the GPU): df -h shows which",
    ),
    (
        "unspecifiedlaunchfailure",
        "a kernel failed, most often by an index out of range or by what an earlier kernel did: "
        "CUDA_LAUNCH_BLOCKING=1 shows the line",
    ),
    (r"NVIDIA-SMI[0-9.]+DriverVersion", "this is nvidia-smi's table, and no error"),
)
"""What is taken for a lack of the card's memory, and is none; and what it is."""


def find_beside(squeezed: str) -> str | None:
    """What a text says that reports no lack of the card's memory."""
    return next((told for words, told in _BESIDE if re.search(words, squeezed)), None)


def _words(found: str) -> str:
    """The status code, where the text has one."""
    code = re.search(r"[A-Za-z]+(?:_[A-Z]+)+$", found)
    return f" ({code.group()})" if code else ""
