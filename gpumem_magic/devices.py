"""The card to predict for: one of the catalog, or the one in use, described as the catalog does."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager

from gpumem_magic.sources import ACTIVE, Source
from gpumem_magic.sources.accelerator.backend import find_backend
from gpumem_magic.sources.accelerator.source import AcceleratorSource
from gpumem_magic.sources.cuda.device import CUDA, cuda_devices, is_initialized
from gpumem_magic.sources.cuda.source import CudaSource
from gpumem_magic.units import MIB
from gpumem_magic.virtual.catalog import MODELS, GPUModel, SeveralCardsError, lookup
from gpumem_magic.virtual.source import VirtualSource

DEFAULT_MODEL = "T4"  # the card of free notebook services, so the one that most people know


def choose_source(name: str = "auto") -> Source | None:
    """The source for a device's name: auto, cuda, cuda:1, mps, xpu, a card ("T4"), a size ("24GiB")
    or off.

    auto: this machine's MPS or XPU device, else its CUDA or ROCm devices; without any, a virtual
    Tesla T4. off: None. Raises ValueError for a wrong name, ModuleNotFoundError without torch.
    """
    name = resolve_device(name)
    if name == "off":
        return None
    backend = find_backend()
    if backend is not None and name == backend.kind:
        if backend.keeps_history:
            return CudaSource(kind=backend.kind)
        return AcceleratorSource(backend)
    if is_cuda_device(name):
        return CudaSource(int(name[5:]) if ":" in name else None)
    return VirtualSource(lookup(name))


def resolve_device(name: str) -> str:
    """What `name` comes to here: auto as another name, a card by its own key. Raises as above."""
    check_device(name)
    if name == "auto":
        here = _devices_here()
        return here[0].partition(":")[0] if here else DEFAULT_MODEL
    if name == "off" or is_cuda_device(name) or name in _devices_here():
        return name
    return lookup(name).key


def check_device(name: str) -> None:
    """Raise ValueError, listing the right names, if `name` is no device of this machine."""
    _require_torch()
    if name in ("auto", "off", *_devices_here()):
        return
    if not is_cuda_device(name):
        try:
            lookup(name)
        except SeveralCardsError:
            raise
        except ValueError as error:
            others = ", ".join(("auto", "off", *_devices_here()))
            raise ValueError(f"{error}; or {others}") from None
    elif (int(name[5:]) if ":" in name else 0) >= cuda_devices():
        here = ", ".join(_devices_here()) or "no CUDA device"
        raise ValueError(f"{name} is not here: this machine has {here}; a virtual one is T4, ...")


def device_names() -> tuple[str, ...]:
    """Every name to offer: auto and off, this machine's devices, the cards of the catalog."""
    return ("auto", "off", *_devices_here(), *(model.key for model in MODELS))


def _devices_here() -> tuple[str, ...]:
    other = find_backend()
    cuda = (f"cuda:{index}" for index in range(cuda_devices()))
    return ((other.kind,) if other else ()) + tuple(cuda)


def is_cuda_device(name: str) -> bool:
    """Whether a name means a CUDA device of this machine."""
    return re.fullmatch(r"cuda(:\d+)?", name) is not None


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError(
            "PyTorch is not installed here: install torch, then %reload_ext gpumem_magic"
        )


_TYPICAL_CONTEXT = 400 * MIB
"""For a card that the catalog lacks and that runs nothing yet: the middle of those it has."""


@contextmanager
def source_in_use() -> Iterator[Source | None]:
    """The source that acts on the code running now; outside notebooks this machine's CUDA device;
    None where there is neither, and where it is an accelerator that no prediction is made for."""
    active = ACTIVE.get()
    if active is not None:
        yield active.source if _is_predicted_for(active.source) else None
    elif not cuda_devices():
        yield None
    else:
        source = CudaSource()
        try:
            yield source
        finally:
            source.close()


def _is_predicted_for(source: Source) -> bool:
    """Whether a prediction can begin with what is on the source's device."""
    if isinstance(source, CudaSource):
        return source.kind == CUDA
    return not isinstance(source, AcceleratorSource)


def card_for(gpu: str | None, in_use: Source | None) -> GPUModel:
    """The card that `gpu` names: one of the catalog, a size ("24GiB"), "cuda" or "cuda:1".

    None: the card of the source `in_use`, a T4 without one. Raises ValueError, which lists the
    names, for what is unknown.
    """
    if gpu is None:
        return _card_of(in_use) if in_use is not None else lookup(DEFAULT_MODEL)
    if not is_cuda_device(gpu):
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
