"""The user's namespace holds copies of what a cell can reach while it runs dry, and afterwards what
it held before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from gpumem_magic.sources.virtual.dryrun.copier import Copier, copying
from gpumem_magic.sources.virtual.dryrun.elsewhere import copies_held
from gpumem_magic.sources.virtual.dryrun.exchanges import Entries, Exchange, exchanged
from gpumem_magic.sources.virtual.dryrun.tensor_copies import CopiesOfStorages as StorageCopies

__all__ = ["Borrowed", "StorageCopies", "borrowed"]

_NOT_COPIED: Final = frozenset(("__builtins__", "__loader__", "__spec__"))


@dataclass(frozen=True, slots=True)
class Borrowed:
    """What became of a namespace. kept: copies (objects, or storages) that names out of the cell's
    reach hold as well, or only something that was not copied: they outlive whatever the cell
    deletes.
    """

    copier: Copier
    kept: tuple[object, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what is shared, and on what was approximated so far."""
        return self.copier.notes()


@contextlib.contextmanager
def borrowed(
    namespace: dict[str, Any], names: frozenset[str] | None, storages: StorageCopies
) -> Iterator[Borrowed]:
    """Within, `namespace` holds copies of what `names` reach; afterwards exactly what it held.

    names: None for all. Raises NotImplementedError, before anything is exchanged, for what lies on
    the device and has no stand-in. Nothing in here keeps a copy alive but `kept`.
    """
    found, exchanges = _copied(namespace, names, storages)
    with exchanged(exchanges):
        yield found


def _copied(
    namespace: dict[str, Any], names: frozenset[str] | None, storages: StorageCopies
) -> tuple[Borrowed, list[Exchange]]:
    """The copies, which nothing but the exchanges holds."""
    chosen = {
        name: value
        for name, value in list(namespace.items())
        if name not in _NOT_COPIED and (names is None or name in names)
    }
    copier = Copier(namespace, storages)
    try:
        with copying(copier):
            copies = {name: copier.copy(value, name) for name, value in chosen.items()}
            copier.finish()
            kept = (*_also_held(namespace, chosen, copier), *copier.held_elsewhere())
    finally:
        exchanges = copier.code.exchanges
        copier.forget()
    exchanges.append(Entries(namespace, copies))
    return Borrowed(copier, kept), exchanges


def _also_held(namespace: dict[str, Any], chosen: dict[str, Any], copier: Copier) -> list[object]:
    rest = {name: value for name, value in namespace.items() if name not in chosen}
    return copies_held(rest, copier.memo, copier.tensors.copied())
