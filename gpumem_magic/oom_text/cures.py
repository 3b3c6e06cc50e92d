"""What helps against a lack of memory, in words: said once, for steps, reports and advice alike."""

from __future__ import annotations

from types import MappingProxyType

from gpumem_magic.units import format_bytes
from gpumem_magic.values.findings import Remedy, Way

SETTINGS = "PYTORCH_CUDA_ALLOC_CONF"
"""What every version reads; from 2.9 on it is also called PYTORCH_ALLOC_CONF
(https://github.com/pytorch/pytorch/releases/tag/v2.9.0)."""

FREE = "%gpucheck --free"
FREE_OUTPUTS = f"{FREE} --outputs"
FREE_ALL = f"{FREE} --all"
RECOVERY = f"{FREE} gives back what the failed cell left, without a restart."


def end_others(size: int, enough: str = "") -> str:
    """Against other processes that hold `size` bytes. enough: how that compares, " (so)"."""
    return (
        f"End what else runs on the card, {format_bytes(size)} in all{enough}: nvidia-smi lists it."
        " Other notebooks keep theirs until their kernels are shut down."
    )


def grow_segments(size: int | None = None) -> str:
    """Against gaps between blocks, of `size` bytes in all."""
    gaps = "" if size is None else f": these take {format_bytes(size)} in all"
    return (
        f"Set {SETTINGS}=expandable_segments:True before PyTorch first uses the GPU (restart the "
        f"kernel; Linux only): its segments grow, and leave no such gaps{gaps}."
    )


_REST = MappingProxyType(
    {
        Way.GRADIENTS: "Call optimizer.zero_grad() before this line: {size} of gradients that the "
        "next backward pass makes anew.",
        Way.HISTORY: f"Run {FREE_OUTPUTS} before this cell: {{size}} that only the notebook's "
        "output history holds.",
        Way.UNUSED: "Write del {name} before this line: {size} that the cell does not mention from "
        "there on.",
    }
)


def worded(remedy: Remedy, name: str = "", left: int | None = None) -> str:
    """A remedy in words, with its bytes. name: of its variable, as it is shown. left: bytes that
    would be free beyond the request that failed."""
    further = "" if left is None else f" {_further(left)}"
    if remedy.way is Way.OTHERS:
        return end_others(remedy.size) + further
    if remedy.way is Way.EXPANDABLE:
        return grow_segments(remedy.size) + further
    return _REST[remedy.way].format(size=format_bytes(remedy.size), name=name) + further


def _further(left: int) -> str:
    if not left:
        return "What comes after this request finds nothing free."
    return f"What comes after this request finds at most {format_bytes(left)} free."
