"""What decides what a layer of transformers asks for, as far as can be told without running it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size)

_INDEX = "layer_idx"
"""What layers, or their attention, call their place in the model and in its cache."""

_MOST = 16
"""Elements of tensors whose values are compared where they are known: counters of caches."""

_KEY, _KEYS = torch._C.DispatchKey, torch._C.DispatchKeySet
_MODES = _KEYS(_KEY.Python) | _KEYS(_KEY.PythonTLSSnapshot)


class UnlikeError(Exception):
    """Something that cannot be done again without running it."""


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Within, what is asked of tensors is no doing of the layer's."""
    with torch._C.DisableTorchFunction(), torch._C._ExcludeDispatchKeyGuard(_MODES):
        yield


def kind_of(layer: Any) -> tuple[int | None, Any]:
    """Its place, None where it cannot be done again, as code of the user's may do anything; and
    types, settings and geometry of weights, of the layer and all within it."""
    found: list[Any] = []
    index: Any = None
    with unseen():
        for module in layer.modules():
            hooks = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
            home = type(module).__module__
            if hooks or home == "__main__" or home not in sys.modules:
                return None, None
            settings = {n: v for n, v in vars(module).items() if isinstance(v, _PLAIN)}
            index = settings.pop(_INDEX, index)
            tensors = (*module._parameters.items(), *module._buffers.items())
            shapes = tuple((name, shape_of(it)) for name, it in tensors if it is not None)
            others = tuple(id(v) for n, v in vars(module).items() if n == "config")
            found.append((type(module), tuple(settings.items()), shapes, others))
    return index, tuple(found)


def shape_of(tensor: torch.Tensor) -> Any:
    """Its geometry within its storage, and its types."""
    return tensor.size(), tensor.stride(), tensor.dtype, tensor.storage_offset(), type(tensor)


def states_of(arguments: tuple[Any, ...], index: int) -> list[Any]:
    """The parts, for this layer, of caches among the arguments. Raises UnlikeError."""
    found: list[Any] = []
    for cache in arguments:
        parts = (getattr(cache, f"{kind}_attention_cache", None) for kind in ("self", "cross"))
        for part in [part for part in parts if part is not None] or [cache]:
            layers = getattr(part, "layers", None)
            if isinstance(layers, list):
                if len(layers) <= index or getattr(part, "offloading", False):
                    raise UnlikeError
                found.append(layers[index])
    return found


def same(value: Any) -> Any:
    """A plain value, or which object it is."""
    return value if isinstance(value, _PLAIN) else id(value)


def plain(value: Any) -> Any:
    """The value. Raises UnlikeError where it is not plain."""
    if not isinstance(value, _PLAIN):
        raise UnlikeError
    return value


def values_of(tensor: torch.Tensor) -> Any:
    """The values of a small tensor. Raises UnlikeError for a larger one."""
    if tensor.numel() > _MOST:
        raise UnlikeError
    return tuple(tensor.flatten().tolist())
