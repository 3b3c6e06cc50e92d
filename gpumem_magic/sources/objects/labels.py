"""Asks now and then, while a cell runs, who owns the device's blocks: afterwards nobody knows."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem_magic.sources.cuda.regions import STEPPED
from gpumem_magic.sources.failures import out_of_memory
from gpumem_magic.sources.objects.contents import fields
from gpumem_magic.sources.objects.graph_again import find_again
from gpumem_magic.sources.objects.last_error import handled, kept_by, last_error, locals_at
from gpumem_magic.sources.objects.named import read_names
from gpumem_magic.sources.objects.owners import Owned, scan_all
from gpumem_magic.sources.objects.shared import find_holders
from gpumem_magic.sources.objects.skipped_backward import find_skipped
from gpumem_magic.sources.stacks.running import Forward, forwards_of, name_modules
from gpumem_magic.values.names import Names
from gpumem_magic.values.recording import (
    Action,
    Category,
    Events,
    Label,
    LiveBlocks,
    Modules,
    Phase,
    Stack,
)

if TYPE_CHECKING:
    import torch

START = "start"
"""The kind of the look before the cell, which also sees what the last error keeps."""

EVENTS = 20
"""Memory events of the cell for each object that is looked at: some 2 % of what the cell takes."""

CUBLAS = "cuBLAS workspace"
CUBLASLT = "cuBLASLt workspace"
_CUBLAS_SIZES = (8_519_680, 33_554_432)
"""getChosenWorkspaceSize of ATen/cuda/CublasHandlePool.cpp; from 9.0 on cards take the second."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory that a CUDA library keeps between its calls; `requested` bytes."""

    name: str
    requested: int


class OwnerWatch:
    """Collects owners at moments that someone else chooses. Keeps no reference to what it saw.

    events: how many memory events there were so far. locate: the address of a tensor's block, None
    where it has none; by default that of CUDA.
    """

    def __init__(
        self,
        namespaces: Callable[[], Mapping[str, Any]],
        events: Callable[[], int],
        locate: Callable[[torch.Tensor], int | None] | None = None,
    ) -> None:
        self.seen: list[tuple[int, tuple[Owned, ...]]] = []
        self.failure: str | None = None
        self.names = Names()
        self._namespaces = namespaces
        self._events = events
        self._locate = locate or address_of
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._kinds: set[str] = set()
        self._forwards: dict[str, Forward | None] = {}
        self._objects = self._last = 0
        self._states: tuple[int, int] | None = None
        self._of_error: set[int] = set()

    def look(
        self,
        kind: str,
        mark: Callable[[], int],
        optimizer: object | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Look at a moment of this kind, unless looking was too much work; never raises.

        The first moment of each kind is always looked at, but none after a step that left its
        optimizer with the states that it had. mark(): what to remember the moment by. error: what
        ended the cell; the functions that failed still have their variables.
        """
        try:
            self._look(kind, mark, optimizer, error)
        except Exception as error:  # whatever user objects do when looked at: their cell goes on
            self.failure = f"Names could not be read everywhere ({type(error).__name__}: {error})."

    def _look(
        self,
        kind: str,
        mark: Callable[[], int],
        optimizer: object | None,
        error: BaseException | None,
    ) -> None:
        if optimizer is not None:
            self._optimizers.add(optimizer)
            before, self._states = self._states, (id(optimizer), _count_states(optimizer))
            if kind == STEPPED and before == self._states:
                return
        affordable = EVENTS * (self._objects + self._last) <= self._events()
        if kind in self._kinds and not affordable:
            return
        self._kinds.add(kind)
        names = {**self._namespaces(), **locals_at(error)}
        found = scan_all(names, tuple(self._optimizers), self._locate)
        owned, self._last = tuple(found.owned), found.objects
        self._forwards.update(forwards_of(found.modules))
        kept = kept_by(last_error() if kind == START else handled(error), self._locate)
        known = {one.address for one in owned}
        owned += tuple(one for one in kept if one.address not in known)
        if kind == START:
            self._of_error = {one.address for one in kept}
        else:
            self._objects += self._last
        self.seen.append((mark(), owned))
        if found.fault is not None:
            raise found.fault

    def modules(self, stacks: Sequence[Stack]) -> Modules:
        """The modules that were seen, and which of them ran at each stack."""
        return name_modules(stacks, self._forwards)

    def visible(self) -> Mapping[str, Any]:
        """The names that may own tensors, now; empty where they cannot be read."""
        try:
            return self._namespaces()
        except Exception:  # as above
            return {}

    def read_names(self, error: BaseException | None = None) -> None:
        """Find out what the names mean now, at the end, and where memory was short who holds what;
        never raises."""
        try:
            namespaces = self._namespaces()
            self.names = read_names(namespaces, self._locate)
            if again := find_again(namespaces, error):
                self.names = replace(self.names, again=again)
            if out_of_memory(error, backends=None):
                # The last error held them when the cell began; this one has taken its place.
                unknown = dict.fromkeys(self._of_error)
                holders = {**find_holders(namespaces, self._locate), **unknown}
                skipped = find_skipped(error)
                self.names = replace(self.names, holders=holders, skipped=skipped)
        except Exception as error:  # as above
            self.failure = f"Names could not be read ({type(error).__name__}: {error})."


def _count_states(optimizer: object) -> int:
    states: Any = fields(optimizer).get("state")
    return dict.__len__(states) if issubclass(type(states), dict) else 0


def address_of(tensor: torch.Tensor, kind: str = "cuda") -> int | None:
    """Where the storage of a tensor on such a device begins; None for tensors elsewhere or without
    memory."""
    try:
        here = tensor.device.type == kind
        return (tensor.untyped_storage().data_ptr() or None) if here else None
    except (RuntimeError, NotImplementedError):  # sparse, fake and functional tensors have none
        return None


def label_owners(
    seen: Iterable[tuple[int, tuple[Owned, ...]]], events: Events, initial: LiveBlocks
) -> tuple[Label, ...]:
    """Labels of the blocks of one device, but those that only repeat a block's last. Positions in
    `seen` are rows, in order; addresses are unique."""
    births = events.action == Action.ALLOC
    here = {*initial.address.tolist(), *events.address[births].tolist()}
    said: dict[int, Owned] = {}
    labels: list[Label] = []
    last = 0
    for row, owned in seen:
        for address in events.address[last:row][births[last:row]].tolist():
            said.pop(address, None)
        new = [o for o in owned if o.address in here and said.get(o.address) != o]
        said.update((o.address, o) for o in new)
        labels += [
            Label(row, o.address, o.category, o.name, o.shape, o.dtype, o.has_graph) for o in new
        ]
        last = row
    return tuple(labels)


def label_workspaces(
    labels: Iterable[Label],
    events: Events,
    initial: LiveBlocks,
    alive: frozenset[int],
    known: Mapping[int, Workspace],
) -> tuple[tuple[Label, ...], Mapping[int, Workspace]]:
    """Labels for the workspaces that cuBLAS keeps, and these workspaces by address.

    They are blocks that nobody owns, that stay, and have cuBLAS's own sizes. cuBLASLt's size is a
    common one: its workspace must have come right after cuBLAS's, in the same call. known: what an
    earlier cell found.
    """
    owned = {label.address for label in labels}
    sizes = workspace_sizes(os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    found: dict[int, tuple[int, Workspace]] = {}
    for address, requested in zip(
        initial.address.tolist(), initial.requested.tolist(), strict=True
    ):
        older = known.get(address)
        if older is not None and older.requested == requested:
            found[address] = 0, older
        elif requested in sizes:
            found[address] = 0, Workspace(CUBLAS, requested)
    for row, workspace in _new_workspaces(events, sizes, owned):
        if int(events.address[row]) in alive:
            found[int(events.address[row])] = row + 1, workspace
    kept = {address: entry for address, entry in found.items() if address not in owned}
    new = tuple(
        Label(row, address, Category.WORKSPACE, workspace.name)
        for address, (row, workspace) in kept.items()
    )
    return new, {address: workspace for address, (_, workspace) in kept.items()}


def _new_workspaces(
    events: Events, sizes: Iterable[int], owned: Iterable[int]
) -> Iterator[tuple[int, Workspace]]:
    """Rows that may have allocated a workspace; cuBLASLt's follows cuBLAS's."""
    lt_size = lt_workspace_size(os.environ.get("CUBLASLT_WORKSPACE_SIZE", ""))
    rows = np.flatnonzero((events.action == Action.ALLOC) & (events.phase != Phase.OPTIMIZER))
    requested, stack = events.requested[rows], events.stack[rows]
    fits = np.isin(requested, tuple(sizes)) & ~np.isin(events.address[rows], tuple(owned))
    for place in np.flatnonzero(fits).tolist():
        yield int(rows[place]), Workspace(CUBLAS, int(requested[place]))
        after = place + 1
        if after < len(rows) and requested[after] == lt_size and stack[after] == stack[place]:
            yield int(rows[after]), Workspace(CUBLASLT, lt_size)


def lt_workspace_size(config: str) -> int:
    """Bytes of a cuBLASLt workspace: torch's 1 MiB, or CUBLASLT_WORKSPACE_SIZE, which is in KiB."""
    return int(config) << 10 if config.isdigit() else 1 << 20


def workspace_sizes(config: str) -> tuple[int, ...]:
    """Bytes of a cuBLAS workspace: torch's defaults, or what CUBLAS_WORKSPACE_CONFIG asks for.

    The format is ":SIZE:COUNT" in KiB, repeated; torch ignores what is written otherwise.
    """
    parts = config.split(":")[1:]
    if not parts or len(parts) % 2 or not all(part.isdigit() for part in parts):
        return _CUBLAS_SIZES
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return (sum(int(size) * int(count) << 10 for size, count in pairs),)
