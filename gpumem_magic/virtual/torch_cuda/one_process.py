"""Collectives of one process, which has nobody to send to; in a dry run it needs no connection."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

_DOES_NOTHING = "torch.testing._internal.distributed.fake_pg"


def keep_to_one_process(rendezvous: Any) -> None:
    """From here on groups meet nowhere; those from before have no threads and connections left.

    rendezvous: torch's module of that name.
    """
    distributed: Any = torch.distributed
    if not distributed.is_available():
        return
    before = list(_cut_off(distributed))  # with the last one a group would wait

    class Alone(distributed.HashStore):  # type: ignore[misc]
        """A store that nobody else is to find."""

        kept = before

        def __init__(self, host: Any = "", port: Any = 0, *others: Any, **options: Any) -> None:
            super().__init__()
            self.path, self.host, self.port = host, options.get("host_name", host), port

    for module in (rendezvous, distributed, distributed.distributed_c10d):
        for name in ("TCPStore", "FileStore"):
            setattr(module, name, Alone)


def _cut_off(distributed: Any) -> Iterator[Any]:
    """The groups there are and their stores, none of which the world has any more."""
    world, kind = distributed.distributed_c10d._world, distributed.ProcessGroup.BackendType.CUSTOM
    for group, (backend, store) in list(world.pg_map.items()):
        if isinstance(group, distributed.ProcessGroup):
            yield from (group, store)
            world.pg_map[group] = backend, distributed.HashStore()
            options = types.SimpleNamespace(group_rank=group.rank(), group_size=group.size())
            for device in group._device_types:
                group._register_backend(device, kind, nothing_sent()(options, None))


def nothing_sent() -> Any:
    """torch's own maker of backends that send nothing."""
    __import__(_DOES_NOTHING)
    return torch.distributed.Backend._plugins["FAKE"].creator_fn


def collectives(is_dry: Callable[[], bool]) -> dict[Any, Callable[..., Any]]:
    """What takes the place of the operators of c10d: among one each is done at once, without the
    threads of a backend, of which not every release lets our modes be there."""
    names = (n for n in torch._C._dispatch_get_all_op_names() if n.startswith("c10d::"))
    found = (getattr(torch.ops.c10d, name[6:]).default for name in names if "." not in name)
    return {func: functools.partial(_among_one, is_dry, func) for func in found}


def _among_one(is_dry: Callable[[], bool], func: Any, *args: Any) -> Any:
    """What a collective comes to: its input is its output."""
    group = next((a for a in args if isinstance(a, torch.ScriptObject)), None)
    if group is None:
        return func(*args)
    if torch.distributed.ProcessGroup.unbox(group).size() > 1:
        if not is_dry():
            return func(*args)
        raise NotImplementedError(
            f"{func._schema.name} among several processes is not supported in a dry run, which "
            "follows one of them: set WORLD_SIZE=1"
        )
    if not isinstance(args[1], torch.ScriptObject):
        for out, given in zip(_flat(args[0]), _flat(args[1]), strict=True):
            out.copy_(given.reshape(out.shape))
    done: Any = torch.futures.Future()
    done.set_result(args[0])
    compiled: Any = torch._C._distributed_c10d
    work = compiled._create_work_from_future(done).boxed()
    returns = len(func._schema.returns)
    return (args[0], work) if returns == 2 else work if returns else None


def _flat(tensors: Any) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [one for part in tensors for one in _flat(part)]
