"""What a cell would do outside the process is not done in a dry run, but named.

Reading is real. Threads that ran before are not concerned.
"""

from __future__ import annotations

import builtins
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, dataloader

from gpumem_magic.sources.virtual.dryrun.arrivals import Arrivals
from gpumem_magic.sources.virtual.dryrun.effects import Effects
from gpumem_magic.sources.virtual.dryrun.file_effects import FileEffects
from gpumem_magic.sources.virtual.dryrun.network_effects import install_network_effects
from gpumem_magic.sources.virtual.dryrun.process_effects import install_process_effects
from gpumem_magic.sources.virtual.dryrun.saving_effects import SavingEffects
from gpumem_magic.sources.virtual.dryrun.shell_effects import install_shell_effects
from gpumem_magic.sources.virtual.dryrun.tracking_effects import install_tracking_effects
from gpumem_magic.sources.virtual.dryrun.written_files import WrittenFiles
from gpumem_magic.sources.virtual.patches import Patches


@contextmanager
def without_side_effects(tell: Callable[[str], None]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Within, files are written to memory only, no process starts, and nothing is sent.

    tell: called with each thing that was not done, as users write it ("open('log.txt', 'w')",
    "!nvidia-smi"), once for each kind and line. Gives a function that does the same for the names
    in a namespace other than __main__'s that are bound to something replaced.
    """
    patches = Patches()
    files, effects = WrittenFiles(builtins.open), Effects(tell, patches)
    try:
        arrivals = Arrivals(patches)
        FileEffects(effects, files).install()
        install_process_effects(effects, arrivals)
        install_network_effects(effects, arrivals)
        SavingEffects(effects, arrivals, files).install()
        install_tracking_effects(effects, arrivals)
        install_shell_effects(effects)
        _load_data_in_process(effects)
        effects.rebind_users_modules()
        yield effects.rebind
    finally:
        effects.end()
        files.null.close()


def _load_data_in_process(effects: Effects) -> None:
    """Workers of a DataLoader are processes; the batches are the same without them."""

    def make(original: Any) -> Any:
        def get_iterator(loader: Any) -> Any:
            if loader.num_workers == 0:
                return original(loader)
            alone = copy.copy(loader)
            vars(alone).update(num_workers=0, timeout=0, persistent_workers=False)
            return dataloader._SingleProcessDataLoaderIter(alone)

        return get_iterator

    def make_iter(original: Any) -> Any:
        def iterate(loader: Any) -> Any:
            return loader._get_iterator() if loader.num_workers else original(loader)

        return iterate

    effects.replace(DataLoader, "_get_iterator", make)
    effects.replace(DataLoader, "__iter__", make_iter)
