"""CUDA graphs where nothing is computed: what is captured takes memory of a pool that is kept for
as long as a graph uses it, and replaying takes none."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from typing import Any

import torch

from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.storages import Storages

_STATE = 8
"""Bytes of the seed, and of the offset, that captured random numbers go by
(CUDAGeneratorState::register_graph in cuda/CUDAGeneratorImpl.cpp)."""

PoolId = tuple[int, int]


class GraphPools:
    """The pools of graphs. To the allocator each is a stream that nothing else uses."""

    def __init__(self, storages: Storages) -> None:
        self.storages = storages
        self._numbers = itertools.count(1)
        self._streams: dict[tuple[PoolId, int], int] = {}
        self._users: Counter[PoolId] = Counter()
        self._state: list[int] = []
        self._graphs = 0

    def install(self, patches: Patches) -> None:
        """Let torch's own Python code of CUDA graphs go on."""
        cuda, captures = torch.cuda, self._captures
        graph = type("CUDAGraph", (_Graph,), {"pools": self})
        for module in (cuda, cuda.graphs):
            patches.set(module, "CUDAGraph", graph)
            patches.set(module, "graph_pool_handle", self.new_pool)
        # It stays that of earlier captures, on which the libraries have workspaces.
        patches.set(cuda.graph, "default_capture_stream", cuda.graph.default_capture_stream)
        for owner in (torch._C, cuda.graphs):
            patches.set(owner, "_cuda_isCurrentStreamCapturing", captures)

    def new_pool(self) -> PoolId:
        """A pool that nothing is in."""
        return 0, next(self._numbers)

    def begin(self, pool: PoolId | None) -> PoolId:
        """Let all that is taken from here on be of a pool, a new one if None."""
        if not self._graphs:
            self._state = [self.storages.malloc(_STATE) for _ in range(2)]
        self._graphs += 1
        pool = pool or self.new_pool()
        self._users[pool] += 1
        self.storages.capturing = lambda stream: self._stream(pool, stream)
        return pool

    def end(self) -> None:
        """End of the capture."""
        self.storages.capturing = None

    def let_go(self, pool: PoolId) -> None:
        """A graph is gone: what nothing else uses of its pool may be given back to the device."""
        self._users[pool] -= 1
        if not self._users[pool]:
            for (owner, _), stream in self._streams.items():
                if owner == pool:
                    self.storages.allocator.let_go(stream)
        self._graphs -= 1
        if not self._graphs:
            for address in self._state:
                self.storages.release(address)

    def _captures(self) -> bool:
        return self.storages.capturing is not None

    def _stream(self, pool: PoolId, stream: int) -> int:
        key = pool, stream
        if key not in self._streams:
            self._streams[key] = -1 - len(self._streams)
            self.storages.allocator.keep(self._streams[key])
        return self._streams[key]


class _Graph:
    """torch.cuda.CUDAGraph."""

    pools: GraphPools

    def __init__(self, *args: Any, **options: Any) -> None:
        self._pool: PoolId | None = None
        self._end: Any = None

    def capture_begin(self, pool: PoolId | None = None, *modes: Any, **options: Any) -> None:
        """Capture what is done from here on."""
        if self._end is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance."
            )
        self._pool = self.pools.begin(pool)
        self._end = weakref.finalize(self, self.pools.let_go, self._pool)
        self._end.atexit = False

    def capture_end(self) -> None:
        """End the capture."""
        self.pools.end()

    def replay(self) -> None:
        """Its kernels work on memory that is there already."""

    instantiate = replay

    def reset(self) -> None:
        """Let go of what was captured."""
        if self._end is not None:
            self._end()
            self._end = None

    def pool(self) -> PoolId | None:
        """The pool that it was captured into."""
        return self._pool
