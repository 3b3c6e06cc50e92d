"""The device's own random numbers: as on a GPU, drawing there does not disturb the host's
generator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_HostGenerator = torch._C.Generator


class _DeviceGenerator(_HostGenerator):
    """A host generator that answers as one of the device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)


def device_generator() -> torch.Generator:
    """A new generator of the device, seeded as CUDA's default generator is."""
    generator = _DeviceGenerator()
    generator.manual_seed(torch.initial_seed())
    return generator


def generator_class() -> type:
    """A replacement of torch.Generator that also makes generators of the device."""

    class Answers(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _HostGenerator)

        def __call__(cls, device: Any = None) -> torch.Generator:
            if device is not None and torch.device(device).type == "cuda":
                return device_generator()
            return _HostGenerator() if device is None else _HostGenerator(device)

    return Answers("Generator", (), {"__doc__": _HostGenerator.__doc__})


class DeviceRandom:
    """The default generator of the device. CPU kernels draw from the host's default generator, so
    its state is exchanged for the device's while an operator with device results runs."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

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
