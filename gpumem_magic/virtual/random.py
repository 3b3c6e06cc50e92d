"""The device's own random numbers: as on a GPU, drawing there does not disturb the host's
generator."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gpumem_magic.virtual.devices import DEVICE, checked, is_cuda

_HostGenerator = torch._C.Generator
_OF_CARD = 16
"""Bytes of a state of a real card: the seed, then the offset (CUDAGeneratorImpl.cpp)."""

_where: Callable[[Any], torch.device] = _HostGenerator.device.__get__
"""The device that C++ has a generator for."""


def _identity(generator: Any) -> int:
    """The same for a generator and for the wrapper of it that operators are given."""
    identity: int = generator._cdata
    return identity


class _DeviceGenerator(_HostGenerator):
    """A host generator that answers as one of the device."""

    makes: Callable[[], torch.Generator]

    def clone_state(self) -> torch.Generator:
        """Another generator of the device, in this one's state."""
        clone = self.makes()
        clone.set_state(self.get_state())
        return clone

    def set_state(self, new_state: torch.Tensor) -> _DeviceGenerator:
        """Go on from a state; from one of a real card, which an earlier cell has kept, anew."""
        if new_state.numel() == _OF_CARD:
            self.manual_seed(int(new_state[: _OF_CARD // 2].view(torch.int64)))
        else:
            super().set_state(new_state)
        return self

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE


class DeviceRandom:
    """The generators of the device, the default one among them. CPU kernels draw from the host's
    default generator, so its state is exchanged for the device's while an operator with device
    results runs."""

    def __init__(self) -> None:
        self._stand_ins: dict[int, tuple[torch.Generator, torch.Generator]] = {}
        self._made: weakref.WeakSet[_DeviceGenerator] = weakref.WeakSet()
        self.generator = self.make()
        self.generator.manual_seed(torch.initial_seed())

    def make(self) -> torch.Generator:
        """A new generator of the device."""
        generator = _DeviceGenerator()
        generator.makes = self.make
        self._made.add(generator)
        return generator

    def generator_class(self) -> type:
        """A replacement of torch.Generator that also makes generators of the device."""
        make = self.make

        class Answers(type):
            def __instancecheck__(cls, instance: object) -> bool:
                return isinstance(instance, _HostGenerator)

            def __call__(cls, device: Any = None) -> torch.Generator:
                if is_cuda(device) and checked(device):
                    return make()
                return _HostGenerator() if device is None else _HostGenerator(device)

        return Answers("Generator", (), {"__doc__": _HostGenerator.__doc__})

    def of_card(self, generator: torch.Generator) -> torch.Generator:
        """What stands for a real card's generator, which a dry run must not ask for anything; any
        other stands for itself."""
        if _where(generator).type != "cuda":
            return generator
        known = self._stand_ins.get(_identity(generator))
        if known is None:
            known = self._stand_ins[_identity(generator)] = generator, self.make()
        return known[1]

    def check(self, kwargs: dict[str, Any], on_device: bool) -> None:
        """Raise as CUDA does for a generator that is not where the numbers are drawn."""
        if (generator := kwargs.get("generator")) is None:
            return
        generator = kwargs["generator"] = self.of_card(generator)
        if (_identity(generator) in map(_identity, self._made)) != on_device:
            expected, found = ("cuda", "cpu") if on_device else ("cpu", "cuda")
            raise RuntimeError(
                f"Expected a '{expected}' device type for generator but found '{found}'"
            )

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Within, operators that name no generator draw from the device's."""
        host = torch.default_generator
        saved = host.get_state()
        host.set_state(self.generator.get_state())
        try:
            yield
        finally:
            self.generator.set_state(host.get_state())
            host.set_state(saved)

    @contextlib.contextmanager
    def repeated(self, state: torch.Tensor) -> Iterator[None]:
        """Within, the numbers that were drawn from `state` on are drawn again."""
        saved = torch.default_generator.get_state()
        torch.default_generator.set_state(state)
        try:
            yield
        finally:
            torch.default_generator.set_state(saved)
