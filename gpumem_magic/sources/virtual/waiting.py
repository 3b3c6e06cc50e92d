"""Blocks that were given back while another stream may still use them: `record_stream`."""

from __future__ import annotations

from collections.abc import Iterator

from gpumem_magic.sources.virtual.pools import WAITING, Block


class Waiting:
    """One event per block and stream; a block is done when all its events are."""

    def __init__(self) -> None:
        self._by_stream: dict[int, list[Block]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_stream)

    def add(self, block: Block) -> None:
        """Let a block wait for all streams that were recorded for it."""
        block.state = WAITING
        for stream in block.streams or ():
            block.events += 1
            self._by_stream.setdefault(stream, []).append(block)

    def finish(self) -> Iterator[Block]:
        """Let all work be done: yields each block when its last event is, stream by stream."""
        by_stream, self._by_stream = self._by_stream, {}
        for blocks in by_stream.values():
            for block in blocks:
                block.events -= 1
                if block.events == 0:
                    yield block

    def blocks(self) -> list[Block]:
        """The blocks that wait, each once."""
        return list({id(b): b for blocks in self._by_stream.values() for b in blocks}.values())
