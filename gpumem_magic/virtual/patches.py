"""Replaced attributes, and the way back: everything the virtual GPU changes in torch goes through
here."""

from __future__ import annotations

from typing import Any

_ABSENT: Any = object()


class Patches:
    """Attributes set on modules and classes; `restore` undoes them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Set `owner.name`; returns what `vars(owner)` held before (None where it held nothing)."""
        before = vars(owner).get(name, _ABSENT)
        self._undo.append((owner, name, before))
        setattr(owner, name, value)
        return None if before is _ABSENT else before

    def restore(self) -> None:
        """Put everything back as it was before the first `set`."""
        while self._undo:
            owner, name, before = self._undo.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
