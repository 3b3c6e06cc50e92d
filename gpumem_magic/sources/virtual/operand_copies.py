"""Dense copies of operands that are not, which CUDA's kernels make for the time they run."""

from __future__ import annotations

from typing import Any

AFTER = {
    "_softmax": (0,),
    "_log_softmax": (0,),
    "_log_softmax_backward_data": (0, 1),
    "adaptive_max_pool3d": (0,),
    "reflection_pad1d": (0,),
    "reflection_pad2d": (0,),
    "replication_pad1d": (0,),
    "replication_pad2d": (0,),
}
"""By operator, the places of the operands that are copied after the results are made
(native/cuda/SoftMax.cu, AdaptiveMaxPooling2d.cu and the padding kernels)."""


def copied(places: tuple[int, ...], args: tuple[Any, ...]) -> list[int]:
    """Bytes of the copies."""
    return [
        args[place].numel() * args[place].dtype.itemsize
        for place in places
        if place < len(args) and not args[place].is_contiguous()
    ]
