"""Where a cell's GPU memory goes: `%load_ext gpumem_magic`; in scripts `measure` and `predict`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic.measure import measure
from gpumem_magic.predict import fit, predict

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__version__ = "0.1.0"
__all__ = ["__version__", "fit", "measure", "predict"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%load_ext gpumem_magic`."""
    from gpumem_magic.magics import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%unload_ext gpumem_magic`."""
    from gpumem_magic.magics import unload

    unload(shell)
