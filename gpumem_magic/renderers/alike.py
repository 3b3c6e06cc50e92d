"""Storages that differ in one number of their names, as one row: `net[0..7].weight`; and those
without a name that one module made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpumem_magic.renderers import wording
from gpumem_magic.renderers.document import Row, Span, Style
from gpumem_magic.renderers.figure.palette import COLOURS
from gpumem_magic.units import format_size
from gpumem_magic.values.findings import Block

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Alike:
    """Blocks of one kind and line; those with names are of one size and shape. more: there may be
    some that are not listed."""

    blocks: tuple[Block, ...]
    more: bool

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(block.size for block in self.blocks)

    @property
    def size_text(self) -> str:
        """Their size, with a plus where there are more."""
        return f"{format_size(self.size)}{self._plus}"

    @property
    def _plus(self) -> str:
        return "+" if self.more and len(self.blocks) > 1 else ""

    @property
    def name(self) -> str:
        """The name that stands for all."""
        names = [wording.block_name(block) for block in self.blocks]
        numbers = [[int(text) for text in _NUMBER.findall(name)] for name in names]
        varying = [i for i, column in enumerate(zip(*numbers, strict=True)) if len({*column}) > 1]
        if len(varying) != 1:
            return names[0] if len({*names}) == 1 else f"{names[0]} ..."
        column = [row[varying[0]] for row in numbers]
        places = list(_NUMBER.finditer(names[0]))
        start, end = places[varying[0]].span()
        return f"{names[0][:start]}{min(column)}..{max(column)}{names[0][end:]}"

    @property
    def tensor(self) -> str:
        """ "8 x float32[64, 128]"; where that is not known, "8 x 4.0 MiB". Of several kinds that
        with most bytes."""
        most = self._most
        kind = wording.tensor_type(most[0])
        count = f"{len(most)}{'' if self.others else self._plus}"
        return kind if count == "1" else f"{count} x {kind or format_size(most[0].size)}"

    @property
    def others(self) -> str:
        """ "and 3 others" than `tensor` says; empty for none."""
        count = len(self.blocks) - len(self._most)
        return f"and {count}{self._plus} other{'s' * (count > 1 or self.more)}" if count else ""

    @property
    def _most(self) -> list[Block]:
        """Those of the shape, or size where that is not known, that has the most bytes."""
        kinds: dict[str, list[Block]] = {}
        for block in self.blocks:
            kind = wording.tensor_type(block) or format_size(block.size)
            kinds.setdefault(kind, []).append(block)
        return max(kinds.values(), key=lambda blocks: sum(block.size for block in blocks))


def alike(blocks: Sequence[Block], whole: int) -> tuple[Alike, ...]:
    """Blocks, the largest first, of `whole` bytes; those that are alike together, the most bytes
    first."""
    groups: dict[tuple[object, ...], list[Block]] = {}
    for block in blocks:
        pattern = _NUMBER.sub("#", wording.block_name(block))
        tensor = (block.size, block.shape, block.dtype) if block.name else ()
        groups.setdefault((pattern, block.category, block.line, tensor), []).append(block)
    # A report lists the largest blocks only: there may be more as small as its last, and more
    # without a name.
    complete = sum(block.size for block in blocks) >= whole
    last = blocks[-1].size if blocks and not complete else -1
    rows = [
        Alike(tuple(group), group[0].size == last or not (group[0].name or complete))
        for group in groups.values()
    ]
    return tuple(sorted(rows, key=lambda row: -row.size))


BLOCKS = ("name", "size", "made in")


def block_row(group: Alike) -> Row:
    """A row of a table headed `BLOCKS`."""
    first = group.blocks[0]
    tensors = " ".join(filter(None, (group.tensor, group.others)))
    name = (
        Span(group.name, Style.CODE, COLOURS[first.category]),
        *((Span(f"  {tensors}", Style.FAINT),) if tensors else ()),
    )
    return Row((name, group.size_text, wording.line_label(first.line)))
