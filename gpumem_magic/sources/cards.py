"""The card to predict for: one of the catalog, or the one in use, described as the catalog does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from gpumem_magic.sources import ACTIVE, DEFAULT_MODEL, Source, choose_source, cuda_devices
from gpumem_magic.sources.cuda import CudaSource
from gpumem_magic.sources.device import is_initialized
from gpumem_magic.sources.virtual.catalog import MODELS, GPUModel, lookup
from gpumem_magic.sources.virtual.source import VirtualSource
from gpumem_magic.units import MIB

_TYPICAL_CONTEXT = 400 * MIB
"""For a card that the catalog lacks and that runs nothing yet: the middle of those it has."""


@contextmanager
def source_in_use() -> Iterator[Source | None]:
    """The source that acts on the code running now; outside notebooks this machine's CUDA device;
    None where there is neither."""
    active = ACTIVE.get()
    if active is not None:
        yield active.source
    elif not cuda_devices():
        yield None
    else:
        source = CudaSource()
        try:
            yield source
        finally:
            source.close()


def card_for(gpu: str | None, in_use: Source | None) -> GPUModel:
    """The card that `gpu` names: one of the catalog, a size ("24GiB"), "cuda" or "cuda:1".

    None: the card of the source `in_use`, a T4 without one. Raises ValueError, which lists the
    names, for what is unknown.
    """
    if gpu is None:
        return _card_of(in_use) if in_use is not None else lookup(DEFAULT_MODEL)
    if re.fullmatch(r"cuda(:\d+)?", gpu) is None:
        return lookup(gpu)
    if isinstance(in_use, VirtualSource) and gpu in ("cuda", "cuda:0"):
        return in_use.gpu.model
    source = choose_source(gpu)
    assert source is not None  # a CUDA device that exists
    try:
        return _card_of(source)
    finally:
        source.close()


def _card_of(source: Source) -> GPUModel:
    """A real device as it is now: what PyTorch cannot have, others' memory too, is its context."""
    if isinstance(source, VirtualSource):
        return source.gpu.model
    device, level = source.device, source.level()
    known = next((model for model in MODELS if model.name == device.name), None)
    total, origin = device.total, "the device itself"
    taken = known.context if known else _TYPICAL_CONTEXT
    if level.device_used is not None:
        used = level.device_used - (level.reserved or 0)
        taken = max(0, used) if is_initialized() else taken + used
    if not is_initialized() and known is not None:
        total, origin = known.total, known.source  # the driver's total has what CUDA keeps
    return GPUModel(
        device.name,
        device.name,
        total,
        device.capability,
        taken,
        _multiprocessors(device.index, known),
        origin,
    )


def _multiprocessors(index: int, known: GPUModel | None) -> int:
    import torch

    if is_initialized():
        return int(torch.cuda.get_device_properties(index).multi_processor_count)
    return known.multiprocessors if known else lookup(DEFAULT_MODEL).multiprocessors
