"""How large a message to the browser may be, so that a slow connection keeps up."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gpumem_magic.renderers.markup import Markup

MOST = 17_000
"""Bytes of one piece of HTML as it is sent; with what surrounds it a message stays below 20 kB."""


def as_many(rows: Sequence[Markup], most: int = MOST) -> tuple[list[Markup], int]:
    """The first rows that fit into a message, and how many do not."""
    shown: list[Markup] = []
    for row in rows:
        most -= len(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace"))
        if most < 0:
            break
        shown.append(row)
    return shown, len(rows) - len(shown)
