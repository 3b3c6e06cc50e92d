"""Texts of out-of-memory errors, of any version of PyTorch: read into numbers, and explained."""

from __future__ import annotations

from gpumem_magic.oom_text.meaning import explain, rough
from gpumem_magic.oom_text.reading import parse
from gpumem_magic.values.oom_text import Explanation, Fact, Origin, Outlook, Reading, Size

__all__ = [
    "Explanation",
    "Fact",
    "Origin",
    "Outlook",
    "Reading",
    "Size",
    "explain",
    "parse",
    "rough",
]
