"""How user code names devices, and what it means on the virtual GPU with its one card; apart
because all rooms here ask for it."""

from __future__ import annotations

from typing import Any

import torch

HOST = torch.device("cpu")
HOST_ASKED_FOR = torch.device("cpu", 0)
"""What the façade makes of "cpu" in user code. Without the index it comes from torch's C++ code,
which repeats a tensor's device there, and the virtual GPU's tensors are host tensors to it."""

DEVICE = torch.device("cuda", 0)


def is_cuda(device: Any) -> bool:
    """Whether `device`, as users write it (None, "cuda:0", 0, torch.device), names a GPU."""
    if device is None:
        return False
    if isinstance(device, int):
        return not isinstance(device, bool) and device >= 0
    return (device if isinstance(device, torch.device) else torch.device(device)).type == "cuda"


def checked(device: Any) -> torch.device:
    """`device` as torch.device; raises what CUDA does where the index is not the card's."""
    named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if named.type == "cuda" and named.index not in (None, 0):
        raise getattr(torch, "AcceleratorError", RuntimeError)(
            "CUDA error: invalid device ordinal\n"
            f"(the virtual GPU has one card, cuda:0; {named} was asked for)"
        )
    return named
