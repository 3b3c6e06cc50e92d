"""What to do about an out-of-memory error, in the order that its numbers suggest."""

from __future__ import annotations

from types import MappingProxyType

from gpumem_magic.oom_text.cures import RECOVERY, end_others, grow_segments
from gpumem_magic.units import MIB, format_bytes
from gpumem_magic.values.oom_text import Origin, Outlook, Reading

_CONTEXT = 1331 * MIB  # the most that a CUDA context was seen to take: no more needs another owner
_WHERE = "%%gpumem on top of the cell shows which line and which variables take the memory."
_FIT = "%%gpucheck --fit batch_size finds, without running anything, the largest one that fits."
_HOLDS = "%gpucheck shows what holds the memory now."


SERVERS = MappingProxyType(
    {
        "vLLM": "A larger gpu_memory_utilization gives it more of the card, if nobody else has it; "
        "a smaller max_model_len or max_num_seqs needs less.",
        "SGLang": "A larger --mem-fraction-static gives it more of the card, if nobody else has "
        "it; a smaller --context-length or --max-running-requests needs less.",
        "TGI": "A smaller --max-batch-prefill-tokens or --max-total-tokens needs less; a larger "
        "--cuda-memory-fraction gives it more of the card, if nobody else has it.",
        "ExLlama": "A smaller max_seq_len, or a cache of 8 or 4 bits, needs less.",
        "Accelerate": "Free the card first (a restart, or %gpucheck --free), load fewer bits "
        "(load_in_4bit=True), or let parts stay on the host: llm_int8_enable_fp32_cpu_offload=True "
        "with a device_map.",
    }
)
"""What helps libraries that divide the card before they start."""

_OWN = MappingProxyType(
    {
        "JAX": "JAX takes three quarters of the card when it starts: beside PyTorch set "
        "XLA_PYTHON_CLIENT_PREALLOCATE=false, or XLA_PYTHON_CLIENT_MEM_FRACTION, before its "
        "import.",
        "TensorFlow": "TensorFlow takes the whole card when it starts: beside PyTorch call "
        "tf.config.experimental.set_memory_growth(gpu, True) for each GPU first.",
        "llama.cpp": "Fewer layers on the card (-ngl; Ollama: num_gpu) or a smaller context (-c; "
        "num_ctx) need less of it.",
        "CuPy": "cupy.get_default_memory_pool().free_all_blocks() gives back what CuPy keeps for "
        "itself.",
        "ONNX Runtime": "Its arena doubles as it grows: the provider's options "
        '{"arena_extend_strategy": "kSameAsRequested"} make it grow by what is asked for.',
        "the batch system": "Ask for more of the computer's memory with the job (Slurm: --mem).",
        "pinned memory": "Pin less: DataLoader(..., pin_memory=False) or fewer prefetched batches; "
        "what is page-locked cannot be swapped, and the system limits it.",
        "the Java machine": "Give its heap more: -Xmx, or Spark's spark.driver.memory and "
        "spark.executor.memory, before it starts.",
    }
)
"""What helps against the habits of frameworks that take memory of their own (JAX: "GPU memory
allocation"; TensorFlow: "Use a GPU", limiting GPU memory growth)."""


def next_steps(reading: Reading, outlook: Outlook) -> tuple[str, ...]:
    """Sentences, the most promising first."""
    if reading.origin is Origin.NONE:
        if reading.certain:
            return (_HOLDS,)
        return (
            'Paste the error from "CUDA out of memory" (or the name of the library) to its end.',
        )
    if reading.library == "shared memory":
        return (
            "Give the loader's workers more shared memory (docker run --shm-size=8g), or none of "
            "it: DataLoader(..., num_workers=0).",
        )
    if reading.library == "Windows":
        return (
            "Make Windows' paging file larger (advanced system settings, virtual memory).",
            "Let fewer processes import torch: DataLoader(..., num_workers=0).",
        )
    if reading.origin is Origin.HOST:
        return (
            *_own(reading),
            "Make the data in pieces, or directly on the GPU: torch.empty(..., device='cuda').",
            "Look for lists of CPU tensors that grow, and for DataLoader workers that each hold a "
            "copy.",
        )
    if reading.library in SERVERS:
        return (SERVERS[reading.library], _HOLDS)
    if reading.backend == "MPS" or reading.library == "Metal":
        return _for_metal()
    if reading.origin is Origin.LIBRARY:
        return _for_library(reading)
    gaps = outlook is Outlook.EITHER and not reading.has_large_gaps
    last = (_against_gaps(reading),) if gaps else ()
    first = () if gaps else _first(reading, outlook)
    return (*first, *_others(reading, outlook), RECOVERY, *_last(outlook), *last)


def _first(reading: Reading, outlook: Outlook) -> tuple[str, ...]:
    if outlook in (Outlook.FRAGMENTED, Outlook.EITHER):
        return (_against_gaps(reading),)
    if outlook is Outlook.LIMITED:
        return ("Raise the limit: torch.cuda.set_per_process_memory_fraction(1.0).",)
    if outlook is Outlook.TOO_LARGE:
        return ("Look at the shapes in the line that failed: %%gpumem names it.",)
    if outlook is Outlook.CONTRADICTORY:
        return ("Run it again: if it fails alike, look for set_per_process_memory_fraction.",)
    return ()


def _against_gaps(reading: Reading) -> str:
    if reading.written_by.endswith("to 2.0"):
        return (
            "Set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 (PyTorch 1.10 and newer) before "
            "PyTorch first uses the GPU; from PyTorch 2.1 on, expandable_segments:True does better."
        )
    if reading.written_by.startswith("PyTorch 1."):
        return "This version has no setting against fragmentation; PyTorch 1.10 and newer have."
    return grow_segments()


def _others(reading: Reading, outlook: Outlook) -> tuple[str, ...]:
    others, outside = reading.others, reading.outside
    if reading.asked is None or reading.free is None or outlook is Outlook.LIMITED:
        return ()
    missing = reading.asked - reading.free
    if others is not None and others.low > 0 and others.low >= missing.high:
        enough = "more than was missing" if missing.high > 0 else "of the card"
        return (end_others(others.about, f" ({enough})"),)
    if others is None and outside is not None and outside.low - _CONTEXT >= missing.high > 0:
        return (
            f"nvidia-smi tells whether the {format_bytes(outside.about)} outside PyTorch belong to "
            "other processes: if so, ending those is enough.",
        )
    return ()


def _last(outlook: Outlook) -> tuple[str, ...]:
    if outlook in (Outlook.TOO_LARGE, Outlook.LIMITED):
        return (_HOLDS,)
    return (_HOLDS, _WHERE, _FIT)


def _for_library(reading: Reading) -> tuple[str, ...]:
    torch = "torch.xpu" if reading.library.startswith("Level Zero") else "torch.cuda"
    steps = [
        *_own(reading),
        f"{torch}.empty_cache() before the line gives PyTorch's free memory back to the card.",
        f"Keep some of the card for libraries: {torch}.set_per_process_memory_fraction(0.95).",
        RECOVERY,
        _HOLDS,
    ]
    if not reading.certain:
        steps.insert(0, "Try a smaller batch: if the error goes or changes, it was memory.")
    if reading.library.startswith(("cuBLAS", "CUDA")):
        steps.append(
            "If much memory is free: an earlier kernel may have failed, by an index out of range "
            "say. CUDA_LAUNCH_BLOCKING=1 shows the line."
        )
    return tuple(steps)


def _own(reading: Reading) -> tuple[str, ...]:
    return (_OWN[reading.library],) if reading.library in _OWN else ()


def _for_metal() -> tuple[str, ...]:
    return (
        "torch.mps.empty_cache() gives back what PyTorch keeps; close other programs, which share "
        "this memory.",
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 takes the limit away, and the system may then stall.",
        "%%gpucheck --gpu 16GiB shows, on a virtual card, where the memory of a cell goes.",
    )
