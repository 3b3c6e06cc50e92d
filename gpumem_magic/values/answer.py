"""What answers have in common for the user: to be read, kept, saved."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Any


class View:
    """What the user can read, keep and save of an answer; its renderer is asked when needed."""

    __slots__ = ()

    def text(self) -> str:
        """The answer for a terminal of 80 columns."""
        from gpumem_magic.renderers.views import view_text

        return view_text(self)

    def to_dict(self) -> dict[str, Any]:
        """All of the answer as plain values, with a format number; sizes are bytes."""
        from gpumem_magic.renderers.views import view_dict

        return view_dict(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the answer as .json, .csv, .html or .txt. Raises ValueError for another suffix."""
        from gpumem_magic.renderers.views import save_view

        save_view(self, path)

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        from gpumem_magic.renderers.views import view_html

        return {"text/plain": self.text(), "text/html": view_html(self)}
