"""What a cell would do outside its process is not done in a dry run, but named.

At the lowest level there is, in this order: what a fork shares with its parent becomes the child's
own; what Python calls is answered or goes to a scratch folder; the kernel refuses the rest.
"""

from __future__ import annotations

import copy
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, dataloader

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.child import Inside
from gpumem_magic.isolation.effects.databases import keep_journals_in_memory
from gpumem_magic.isolation.effects.files import ScratchFiles
from gpumem_magic.isolation.effects.hub import install_hub_effects
from gpumem_magic.isolation.effects.network import install_network_effects
from gpumem_magic.isolation.effects.output import capture
from gpumem_magic.isolation.effects.processes import install_process_effects
from gpumem_magic.isolation.effects.saving import SavingEffects
from gpumem_magic.isolation.effects.scripts import Program, Scripts
from gpumem_magic.isolation.effects.shared_tensors import install_shared_tensors
from gpumem_magic.isolation.effects.shell import install_shell_effects
from gpumem_magic.isolation.effects.tracking import install_tracking_effects
from gpumem_magic.isolation.native_threads import compute_with_one_thread
from gpumem_magic.isolation.telling import Effects
from gpumem_magic.isolation.waits import install_waiting_effects
from gpumem_magic.isolation.walls.audit import watch
from gpumem_magic.isolation.walls.confinement import confine, find_named_pipes
from gpumem_magic.isolation.walls.descriptors import CopiedFile, unshare_descriptors
from gpumem_magic.isolation.walls.shared_memory import make_shared_memory_private
from gpumem_magic.values.recording import Cell


class Stopped:
    """What the child may not do. output: gives what was printed so far. places: what the numbers of
    lines are told after, by the user's files. copied: files that were open. programs: see Effects.
    """

    def __init__(
        self,
        inside: Inside,
        effects: Effects,
        output: Callable[[], str],
        copied: tuple[CopiedFile, ...],
    ) -> None:
        self._progress = inside.progress
        self._scratch = inside.scratch
        self._held = inside.held
        self._effects = effects
        self._copied = copied
        self.output = output
        self.places, self.programs = effects.places, effects.programs
        self._scripts: Scripts | None = None

    @property
    def scripts(self) -> dict[str, Cell]:
        """The scripts that ran, by the file name of their frames."""
        return self._scripts.cells if self._scripts else {}

    def notes(self) -> tuple[str, ...]:
        """What was done in another way than the cell would."""
        return (*self._effects.notes(), *(self._scripts.notes if self._scripts else ()))

    def prepare(self, namespace: dict[str, Any], program: Program, news: Callable[[], int]) -> None:
        """Close the doors, if they are open, for a cell. namespace: that of the cell. program: what
        the code of scripts is prepared by. news: see Progress."""
        self._progress.news = news
        if self._scripts is None:
            self.close_doors()
        assert self._scripts is not None
        self._scripts.program = program
        self._effects.rebind(namespace)
        keep_journals_in_memory(namespace)

    def close_doors(self) -> None:
        """From here on nothing gets out but the answer."""
        effects, scratch, arrivals = self._effects, self._scratch, Arrivals()
        self._progress.follow(effects.filename)
        self._scripts = Scripts(effects)
        files = ScratchFiles(effects, scratch)
        files.take_over(self._copied)
        files.install()
        install_process_effects(effects, arrivals)
        install_waiting_effects(effects, arrivals)
        install_network_effects(effects, arrivals)
        SavingEffects(effects, arrivals, files).install()
        install_tracking_effects(effects, arrivals)
        install_hub_effects(effects, arrivals)
        install_shell_effects(effects, self._scripts)
        _load_data_in_process(effects)
        install_shared_tensors(effects)
        watch(effects, scratch)
        self._held.release()


def stop_effects(inside: Inside, filename: str) -> Stopped:
    """Unshare what a fork shares. filename: that of the cell's frames."""
    inside.progress.hide()
    # before anything is replaced: what nothing else held, a stream or a handler, dies with that
    confine(inside.scratch, find_named_pipes())
    output = os.open(inside.scratch / "output", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    copied = unshare_descriptors({inside.answer, output}, inside.scratch, output)
    make_shared_memory_private({inside.progress.address}, copied)
    effects = Effects(filename)
    _compute_with_one_thread(effects)
    sys.dont_write_bytecode = True
    return Stopped(inside, effects, capture(output), copied)


def _compute_with_one_thread(effects: Effects) -> None:
    """OpenMP's other threads are not in a forked process, and it would wait for them."""
    known = {name: getattr(torch, f"get_{name}")() for name in ("num_threads",)}
    torch.set_num_threads(1)
    compute_with_one_thread()
    for name in known:
        effects.put(torch, f"set_{name}", lambda count, name=name: known.update({name: count}))
        effects.put(torch, f"get_{name}", lambda name=name: known[name])


def _load_data_in_process(effects: Effects) -> None:
    """Workers of a DataLoader are processes; the batches are the same without them."""

    def make_alone(cls: Any, loader: Any) -> Any:
        alone = copy.copy(loader)
        vars(alone).update(num_workers=0, timeout=0, persistent_workers=False)
        return dataloader._SingleProcessDataLoaderIter(alone)

    def iterate(original: Any, loader: Any) -> Any:
        return loader._get_iterator() if loader.num_workers else original(loader)

    def next_data(batches: Any) -> Any:
        if "_rest" not in vars(batches):
            batches._rest = _rest_of(batches)
        return next(batches._rest)

    workers = dataloader._MultiProcessingDataLoaderIter
    effects.put(workers, "__new__", make_alone)
    effects.wrap(DataLoader, "__iter__", iterate)
    # those of before are half way, and their workers not of this process
    effects.put(workers, "_next_data", next_data)
    effects.put(workers, "_shutdown_workers", lambda batches: None)


def _rest_of(batches: Any) -> Iterator[Any]:
    """The batches that an iterator of a DataLoader with workers has not given yet."""
    kind = batches._dataset_kind
    how = (batches._dataset, batches._auto_collation, batches._collate_fn, batches._drop_last)
    fetch = dataloader._DatasetKind.create_fetcher(kind, *how).fetch
    indices, given = iter(batches._index_sampler), batches._num_yielded
    if kind == dataloader._DatasetKind.Map:
        return map(fetch, itertools.islice(indices, given, None))
    rest = map(fetch, indices)
    for _ in itertools.islice(rest, given):
        pass
    return rest
