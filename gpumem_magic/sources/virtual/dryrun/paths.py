"""How a user would write the way to an object, put together only where somebody is told."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

_LONGEST: Final = 40
_STEPS: Final = 12


class Step(NamedTuple):
    """One step on the way to an object: an attribute of `before`, or an item, a part of it."""

    before: Any
    kind: str
    key: object


ATTRIBUTE: Final = "."
ITEM: Final = "[]"
PART: Final = "part"
Path = Step | str


def written(path: Path) -> str:
    """`model.layers[3].weight` for the steps there; of very many the first and the last ones."""
    parts: list[str] = []
    while isinstance(path, Step):
        parts.append(_step(path))
        path = path.before
    if len(parts) > _STEPS:
        parts[_STEPS // 2 : -_STEPS // 2] = [" ... "]
    return path + "".join(reversed(parts))


def _step(step: Step) -> str:
    if step.kind == ATTRIBUTE:
        return f".{step.key}"
    if step.kind == PART:
        return f" ({step.key})"
    text = repr(step.key) if isinstance(step.key, (str, int, float, bytes)) else "..."
    return f"[{text if len(text) <= _LONGEST else '...'}]"
