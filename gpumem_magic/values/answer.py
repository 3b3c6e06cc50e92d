"""What answers have in common for the user: to be read, kept, saved."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumem_magic.renderers.forms import Form


class Answer:
    """What the user can read, keep and save; how it looks is its form's business, which renderers
    know by its type and which is asked when needed."""

    __slots__ = ()

    def text(self) -> str:
        """The answer for a terminal of 80 columns."""
        return form_of(type(self)).text(self)

    def to_dict(self) -> dict[str, Any]:
        """All of the answer as plain values, with a format number; sizes are bytes."""
        return form_of(type(self)).plain(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the answer in the form that the suffix says: .json, .html, .txt, and for most .csv,
        .png and .svg; a report also as .pickle, PyTorch's memory snapshot.

        Raises ValueError for another suffix; a file that was there stays whole if anything fails.
        """
        form_of(type(self)).save(self, path)

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": form_of(type(self)).html(self)}


def form_of(kind: type[Answer]) -> Form[Any]:
    """How answers of this kind look. Loaded here: renderers import the values that they show."""
    from gpumem_magic.renderers.forms import FORMS

    return FORMS[kind]
