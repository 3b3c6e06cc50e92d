"""Tensors of a real device in the child, where no call may reach the driver: each goes on, the same
object, as a tensor on the host without values."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from gpumem_magic.dryrun.graphs import Graphs
from gpumem_magic.dryrun.shapes.valueless import Valueless, tensor_over
from gpumem_magic.sources.objects.ownership import sparse_parts
from gpumem_magic.virtual.accumulation import as_in_new_thread
from gpumem_magic.virtual.gpu import VirtualGPU
from gpumem_magic.virtual.storages import ON_DEVICE_WITHOUT_BLOCK

_base: Any = torch._C.TensorBase
_node: Any = _base.grad_fn.__get__


class StandIns:
    """Puts every tensor of a CUDA device on the host, the same object, without its values."""

    def __init__(
        self, gpu: VirtualGPU, valueless: Valueless, moved: dict[int, int], notes: list[str]
    ) -> None:
        self._gpu = gpu
        self._valueless = valueless
        self._moved = moved
        self._notes = notes
        self._graphs = Graphs(self._stand_in, self._say)
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def put_in_place(self) -> list[torch.UntypedStorage]:
        """Do so for all; gives what they were on, which must not be freed here."""
        tensors = list(_all_tensors())
        here = [t for t in tensors if _base.is_cuda.__get__(t)]
        recorded = [
            t for t in tensors if _node(t) is not None and self._graphs.is_on_device(_node(t))
        ]
        leaves = [t for t in here if _node(t) is None]
        for leaf in leaves:
            is_strided = _base.layout.__get__(leaf) is torch.strided
            over = (self._graphs.over_stand_in if is_strided else self._over_parts)(leaf)
            with torch.inference_mode(leaf.is_inference()):
                _base.data.__set__(leaf, over)
        with as_in_new_thread():
            for tensor in recorded:
                self._graphs.move(tensor)
        originals = [original for original, _ in self._storages.values()]
        self._storages.clear()
        self._graphs.forget()
        return originals

    def _over_parts(self, tensor: torch.Tensor) -> torch.Tensor:
        """A sparse tensor of as many elements over what stands for its parts."""
        shape, layout = tensor.shape, _base.layout.__get__(tensor)
        first, *rest = (self._graphs.over_stand_in(part) for _, part in sparse_parts(torch, tensor))
        if layout is torch.sparse_coo:
            made = torch.sparse_coo_tensor(first, rest[0], shape, check_invariants=False)
            made._coalesced_(tensor.is_coalesced())
            return made
        return torch.sparse_compressed_tensor(
            rest[0], rest[1], first, list(shape), layout=layout, check_invariants=False
        )

    def _say(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _stand_in(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """What stands for a storage; one of the host stands for itself."""
        if device_of(storage).type != "cuda":
            return storage
        known = self._storages.get(storage._cdata)
        if known is None:
            standing = self._valueless.blank(storage.nbytes())
            whole = tensor_over(standing, torch.uint8, (standing.nbytes(),), (1,))
            at = self._moved.get(storage.data_ptr(), ON_DEVICE_WITHOUT_BLOCK)
            self._gpu.storages.place(whole, at)
            known = self._storages[storage._cdata] = storage, standing
        return known[1]


def _all_tensors() -> Iterator[torch.Tensor]:
    """Every tensor that Python knows of, gradients that nobody has read among them."""
    for thing in gc.get_objects():
        # A proxy may stand for something that is no more.
        if issubclass(type(thing), torch.Tensor) and _has_memory(thing):
            yield thing
            gradient = _base.grad.__get__(thing) if thing.is_leaf else None
            if gradient is not None and _has_memory(gradient):
                yield gradient


def _has_memory(tensor: torch.Tensor) -> bool:
    if is_lazy(tensor):  # its size is not known yet
        return False
    if torch._C._has_storage(tensor):
        is_fake = device_of(_base.untyped_storage(tensor)).type == "meta"  # dynamo keeps some
        return _base.layout.__get__(tensor) is torch.strided and not is_fake
    return bool(sparse_parts(torch, tensor)) and _node(tensor) is None


def device_of(storage: torch.UntypedStorage) -> torch.device:
    """Where C++ has the storage, whatever a virtual card answers."""
    device: torch.device = torch._C.StorageBase.device.__get__(storage)  # type: ignore[attr-defined]
    return device
