"""torch.distributed in one process: buckets of DistributedDataParallel lie on the card, and gloo
(in a dry run nothing) does what NCCL, which torch's CPU build lacks, would do among one."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.torch_cuda.one_process import collectives, nothing_sent
from gpumem_magic.virtual.torch_cuda.threads import Here

_OF_NCCL = {"backend_options", "pg_options", "device_id"}
"""Arguments that say how NCCL is to do it."""


def install(patches: Patches, here: Here) -> None:
    """Replace what makes process groups and buckets; nothing where torch has none."""
    if not torch.distributed.is_available():
        return
    groups: Any = torch.distributed.distributed_c10d
    patches.wrap(groups, "_new_process_group_helper", functools.partial(_among_one, here))
    patches.set(groups, "default_pg_nccl_timeout", groups.default_pg_timeout)
    _place_buckets(patches, here)
    here.tracker.replacements |= collectives(lambda: here.tracker.is_dry)


def _among_one(
    here: Here,
    make: Any,
    size: int,
    rank: int,
    ranks: Any,
    backend: Any,
    *others: Any,
    **options: Any,
) -> Any:
    """What makes a process group, of gloo in place of NCCL; in a dry run of what sends nothing."""
    named, is_dry = str(backend).lower(), here.tracker.is_dry
    if "gloo" in named and "nccl" not in named and not is_dry:
        return make(size, rank, ranks, backend, *others, **options)
    if size > 1:
        raise NotImplementedError(
            "torch.distributed with several processes is not covered by the virtual GPU, "
            "which is one card of one process: set WORLD_SIZE=1"
        )
    if named == "fake":  # asked for in a dry run, on the card of another shell
        return make(size, rank, ranks, backend, *others, **options)
    if is_dry:
        nothing_sent()
    options |= dict.fromkeys(options.keys() & _OF_NCCL)
    used = torch.distributed.Backend("fake" if is_dry else "gloo")
    group, store = make(size, rank, ranks, used, *others, **options)
    groups: Any = torch.distributed.distributed_c10d._world.pg_map
    if group in groups:
        groups[group] = "nccl" if named == "nccl" else "gloo", groups[group][1]
    return group, store


def _place_buckets(patches: Patches, here: Here) -> None:
    """C++ makes the buckets of gradients where it takes the parameters to be: on the host."""
    reducer: Any = torch._C._distributed_c10d.Reducer
    make, rebuild = reducer.__init__, reducer._rebuild_buckets
    on_device: weakref.WeakSet[Any] = weakref.WeakSet()

    def make_and_place(self: Any, parameters: Any, *others: Any) -> None:
        with here.tracker.making_on_device(any(one.is_cuda for one in parameters)):
            make(self, parameters, *others)
        if any(one.is_cuda for one in parameters):
            on_device.add(self)

    def rebuild_and_place(self: Any) -> Any:
        with here.tracker.making_on_device(self in on_device):
            return rebuild(self)

    patches.set(reducer, "__init__", make_and_place)
    patches.set(reducer, "_rebuild_buckets", rebuild_and_place)
