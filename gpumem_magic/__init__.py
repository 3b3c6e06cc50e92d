"""Where the GPU memory of a cell goes: `%load_ext gpumem_magic`, or `measure` for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem_magic.measure import measure

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__version__ = "0.1.0"
__all__ = ["__version__", "measure"]


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%load_ext gpumem_magic`."""
    from gpumem_magic.magics import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%unload_ext gpumem_magic`."""
    from gpumem_magic.magics import unload

    unload(shell)
