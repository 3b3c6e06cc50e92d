"""What torch.save and its kin would write, kept in memory, with a file that stands for it: neither
the values of its tensors nor zeros in their place are written."""

from __future__ import annotations

import functools
import io
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import _weights_only_unpickler

from gpumem_magic.isolation.effects.overlay import HEAD, MARK

_COPIED = 64 << 20
"""Bytes of a storage on the host that is copied when it is saved; larger ones are remembered."""

_PADDED = 16 << 20
"""Bytes up to which what stands for an object has its length."""

_ARCHIVE, _RECORD = 1240, 215
"""Bytes that the format of torch.save takes in all, and for each storage."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor, or a storage (as a flat tensor), of a saved object."""

    kind: type
    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool


class Kept:
    """An object as it was when it was saved. Tensors over one storage share one again."""

    def __init__(self, obj: Any) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file, protocol=2)
        pickler.dump(obj)
        self._pickled = file.getvalue()
        self._parts, self._storages = pickler.parts, pickler.storages
        sizes = [-(-flat.numel() * flat.element_size() // 64) * 64 for _, flat in self._storages]
        self.nbytes = sum(sizes) + len(self._pickled) + _ARCHIVE + _RECORD * len(sizes)

    def load(self, map_location: Any = None, weights_only: bool = False) -> Any:
        """What torch.load makes of it: new tensors, where `map_location` wants them."""

        @functools.cache
        def storage(number: int) -> torch.Tensor:
            return _placed(*self._storages[number], map_location)

        @functools.cache
        def part(number: int) -> Any:
            return _rebuilt(self._parts[number], storage(self._parts[number].storage))

        make: Any = _weights_only_unpickler.Unpickler if weights_only else _Unpickler
        unpickler = make(io.BytesIO(self._pickled), encoding="utf-8")
        unpickler.persistent_load = part
        return unpickler.load()


class KeptObjects:
    """Objects by what is written at the start of the files that stand for them."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def write(self, kept: Any, nbytes: int, file: Any) -> None:
        """Make `file` stand for `kept`, from its position on."""
        file.write((MARK + b" %d %d" % (len(self._kept), nbytes)).ljust(HEAD))
        self._kept.append(kept)
        if nbytes <= _PADDED:
            file.write(bytes(nbytes - HEAD))

    def read(self, file: Any) -> Any:
        """What `file` stands for at its position, which moves behind it; None for another file."""
        if not self._kept:
            return None
        position = file.tell()
        head = file.read(HEAD)
        file.seek(position)
        if not isinstance(head, bytes) or not head.startswith(MARK):
            return None
        number, nbytes = map(int, head[len(MARK) :].split())
        file.seek(position + (nbytes if nbytes <= _PADDED else HEAD))
        return self._kept[number]


class _Pickler(pickle.Pickler):
    """Takes tensors and storages out of what it pickles."""

    def __init__(self, file: Any, protocol: int) -> None:
        super().__init__(file, protocol)
        self.parts: list[_Part] = []
        self.storages: list[tuple[torch.device, torch.Tensor]] = []
        self._seen: dict[int, tuple[int, Any]] = {}
        self._keys: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        """The number of a part; its object is held, so that its id stays its own."""
        if id(obj) not in self._seen:
            tensor = _as_tensor(obj)
            if tensor is None:
                return None
            self._seen[id(obj)] = len(self.parts), (obj, tensor)
            self.parts.append(self._part(type(obj), tensor))
        return self._seen[id(obj)][0]

    def _part(self, kind: type, tensor: torch.Tensor) -> _Part:
        key = tensor.untyped_storage()._cdata
        if key not in self._keys:
            self._keys[key] = len(self.storages)
            self.storages.append((tensor.device, _flat(tensor)))
        geometry = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
        return _Part(kind, self._keys[key], tensor.dtype, *geometry, tensor.requires_grad)


class _Unpickler(pickle.Unpickler):
    """One whose `persistent_load` can be set."""


def _as_tensor(obj: Any) -> torch.Tensor | None:
    """Of a plain tensor, or a storage; others are pickled by way of these."""
    if isinstance(obj, torch.UntypedStorage):
        return torch.empty(0, dtype=torch.uint8, device=obj.device).set_(obj)
    if isinstance(obj, torch.storage.TypedStorage):
        return torch.empty(0, dtype=obj.dtype, device=obj.device).set_(obj)
    if type(obj) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return None
    return obj if obj.layout is torch.strided and not obj.is_quantized else None


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, on the host."""
    nbytes = tensor.untyped_storage().nbytes()
    flat = tensor.detach().as_strided((nbytes // tensor.element_size(),), (1,), 0)
    if flat.device.type not in ("cpu", "meta"):
        return flat.cpu()
    return flat.clone() if nbytes <= _COPIED else flat


def _placed(device: torch.device, flat: torch.Tensor, map_location: Any) -> torch.Tensor:
    place = _located(device, map_location)
    return flat.clone() if place.type == flat.device.type else flat.to(place)


def _rebuilt(part: _Part, flat: torch.Tensor) -> Any:
    flat = flat if flat.dtype is part.dtype else flat.view(part.dtype)
    tensor = flat.as_strided(part.size, part.stride, part.offset).detach()
    if part.kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, part.requires_grad)
    if part.kind is torch.UntypedStorage:
        return tensor.untyped_storage()
    if part.kind is torch.storage.TypedStorage:
        return torch.storage.TypedStorage(
            wrap_storage=tensor.untyped_storage(), dtype=part.dtype, _internal=True
        )
    return tensor.requires_grad_(part.requires_grad)


def _located(device: torch.device, map_location: Any) -> torch.device:
    if map_location is None:
        return device
    if isinstance(map_location, dict):
        return torch.device(map_location.get(str(device), device))
    if callable(map_location):
        located = map_location(torch.UntypedStorage(0), str(device))
        return torch.device("cpu") if located is None else torch.device(located.device)
    return torch.device(map_location)
