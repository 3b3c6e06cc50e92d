"""Memory of the device that an operator takes and gives back before it ends."""

from __future__ import annotations

from gpumem_magic.virtual.storages import Storages


class Blocks:
    """Blocks that are given back, the last first, when the `with` statement ends."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._addresses: list[int] = []

    def __enter__(self) -> Blocks:
        return self

    def __exit__(self, *error: object) -> None:
        while self._addresses:
            self._storages.release(self._addresses.pop())

    def take(self, *sizes: int) -> None:
        """Blocks of so many bytes, none for 0. Raises torch.OutOfMemoryError."""
        for size in sizes:
            self._addresses.append(self._storages.malloc(size))
