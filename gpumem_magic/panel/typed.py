"""A cell's text as Python code."""

from __future__ import annotations

from typing import Any

_OURS = ("%%gpumem", "%%gpucheck")


def python_of(shell: Any, source: str) -> str:
    """A cell as Python code with the same lines; for one of our magics on top a blank one."""
    first, _, rest = source.partition("\n")
    above, code = (1, rest) if first.startswith(_OURS) else (0, source)
    blank = len(code[: len(code) - len(code.lstrip())].splitlines()) if code.strip() else 0
    return "\n" * (above + blank) + str(shell.transform_cell(code))
