"""What a cell left on the card is taken out of a dry run of the same cell, which begins as the cell
did."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch.optim import Optimizer

from gpumem_magic.virtual.gpu import VirtualGPU
from gpumem_magic.virtual.storages import ON_DEVICE_WITHOUT_BLOCK, storage_id


def take_out(gpu: VirtualGPU, born: set[int]) -> None:
    """Free the blocks at the addresses `born`, in a process of its own.

    Tensors in them go on without a block, as they would be dropped or made anew by the cell; what
    would otherwise be found there and used again, gradients and states of optimizers, is removed.
    """
    addresses = gpu.storages.addresses
    without = {key for key, address in addresses.items() if address in born}
    addresses.update(dict.fromkeys(without, ON_DEVICE_WITHOUT_BLOCK))
    for key in [key for key, address in gpu.scratch.held.items() if address in born]:
        del gpu.scratch.held[key]
    for address in born:
        gpu.allocator.free(address)
    gpu.allocator.empty_cache()
    _forget_results(without)


def _forget_results(without: set[int]) -> None:
    for thing in gc.get_objects():
        if isinstance(thing, Optimizer):
            for parameter in [p for p, state in thing.state.items() if _any_in(state, without)]:
                del thing.state[parameter]
        elif issubclass(type(thing), torch.Tensor) and _has_gradient_in(thing, without):
            thing.grad = None


def _has_gradient_in(tensor: torch.Tensor, without: set[int]) -> bool:
    gradient = tensor.grad if tensor.is_leaf else None
    return gradient is not None and storage_id(gradient) in without


def _any_in(state: Any, without: set[int]) -> bool:
    values = state.values() if isinstance(state, dict) else ()
    return any(isinstance(it, torch.Tensor) and storage_id(it) in without for it in values)
