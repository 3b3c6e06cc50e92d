"""How user code names devices, and what it means on the virtual GPU with its one card; apart
because all rooms here ask for it."""

from __future__ import annotations

from typing import Any

import torch

from gpumem_magic.sources import torch_release

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


def _release() -> tuple[int, int]:
    """The installed one where it is built for CUDA. What a build for the host foretells is to run
    on another, of which nothing is known: up to 2.13 it is taken for 2.11, by which most rules were
    measured, and which takes a MiB more for cuBLASLt than 2.12 and 2.13."""
    as_installed = torch.version.cuda is not None or torch_release() > (2, 13)
    return torch_release() if as_installed else (2, 11)


RELEASE = _release()
"""Of PyTorch, by whose CUDA build the virtual GPU goes where they differ."""
