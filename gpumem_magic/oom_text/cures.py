"""What helps against a lack of memory, in words: said once, for steps, reports and advice alike."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from types import MappingProxyType

from gpumem_magic.units import format_bytes
from gpumem_magic.values.findings import OutOfMemory, Remedy, Way

SETTINGS = "PYTORCH_CUDA_ALLOC_CONF"
"""What every version reads; from 2.9 on it is also called PYTORCH_ALLOC_CONF
(https://github.com/pytorch/pytorch/releases/tag/v2.9.0)."""

EXPANDABLE = f"{SETTINGS}=expandable_segments:True"

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
        f"Set {EXPANDABLE} before PyTorch first uses the GPU (restart the kernel; Linux only): its "
        f"segments grow, and leave no such gaps{gaps}."
    )


_REST = MappingProxyType(
    {
        Way.GRADIENTS: "Call optimizer.zero_grad() before this line: {size} of gradients that the "
        "next backward pass makes anew.",
        Way.HISTORY: f"Run {FREE_OUTPUTS} before this cell: {{size}} that only the notebook's "
        "output history holds.",
        Way.UNUSED: "Write del {name} before {line}: {size} that the cell does not use after that.",
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
    line = f"line {remedy.line}" if remedy.line else "this line"
    return _REST[remedy.way].format(size=format_bytes(remedy.size), name=name, line=line) + further


def _further(left: int) -> str:
    if not left:
        return "What comes after this request finds nothing free."
    return f"What comes after this request finds at most {format_bytes(left)} free."


_SMALLER = MappingProxyType(
    {
        r"one_hot": "an index says what a row of one_hot() says: F.embedding and F.cross_entropy "
        "take it",
        r"repeat\w*|tile": "expand() repeats without a copy",
        r"cat|concat|[hv]?stack": "keep the parts apart, or on the host",
        r"(?:add|bad?d?)?b?mm|matmul|linear|einsum": "compute it, and what is made of it, for "
        "some rows at a time; of a language model's scores only those that are needed",
        r"zeros|ones|empty|full|randn?|randint|arange|eye|new_\w+|\w+_like": "check the numbers of "
        "its shape; make a part at a time, or make it sparse",
        r"_to_copy|copy_|cuda|to": "move one batch at a time, as a DataLoader does",
        r"add|sub|mul|div|pow|eq|ne|[lg][te]|where|\w*cdist\w*|m(?:in|ax)imum|expand|clone": "if "
        "what it is made of is smaller, shapes were broadcast ([n, 1] with [n] gives [n, n]): mend "
        "them, or take some rows at a time",
    }
)
"""By the operator's name, or what the line calls: what makes its result smaller."""


def too_large(oom: OutOfMemory, total: int, source: str = "") -> tuple[str, str]:
    """That one tensor is more than could be had of a card of `total` bytes, and what makes it
    smaller. source: the line that asked for it."""
    asked = oom.requested or 0
    shape = "" if oom.shape is None else f" of shape {[*oom.shape]}"
    rest = "nothing that could be freed makes it fit"
    said = f"This one tensor{shape} wants {format_bytes(asked)} of the card's {format_bytes(total)}"
    return f"{said}: {rest}.", f"What makes it smaller: {'; '.join(_smaller(oom, source))}."


def _smaller(oom: OutOfMemory, source: str) -> Iterator[str]:
    called = [*re.findall(r"(\w+)\(", source), *["matmul"] * ("@" in source)]
    names = [oom.op.removeprefix("aten.")] if oom.op else called
    cures = (
        cure for words, cure in _SMALLER.items() if any(re.fullmatch(words, one) for one in names)
    )
    yield next(cures, "a smaller batch, or some of its rows at a time")
    asked = oom.requested or 0
    each = asked // (math.prod(oom.shape) or 1) if oom.shape else 0
    if each > 2:
        half = format_bytes(asked * 2 // each)
        yield f"in a type of 2 bytes (float16, bfloat16) in place of {each} it wants {half}"
    if free := (oom.device_free or 0) + (oom.reserved_free or 0):
        yield f"the {format_bytes(free)} that were free hold one of {-(-asked // free)} parts of it"
