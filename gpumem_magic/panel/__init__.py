"""The panel: `panel()` shows it, `%gpumem --panel` does the same."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from gpumem_magic.panel.board import Board
from gpumem_magic.panel.state import Host


def open_panel(host: Host) -> Board:
    """Show the panel of a shell: a new one, or another view of the one that is there."""
    for observer in host.observers:
        if isinstance(observer, Board) and not observer.closed:
            observer.show()
            return observer
    board = Board(host)
    board.show()
    return board


def show() -> None:
    """Show the panel below the running cell. Raises RuntimeError outside of a notebook."""
    from IPython import get_ipython

    shell: Any = get_ipython()
    if shell is None:
        raise RuntimeError("the panel needs a notebook")
    if "GpuMemMagics" not in shell.magics_manager.registry:
        shell.run_line_magic("load_ext", "gpumem_magic")
    open_panel(shell.magics_manager.registry["GpuMemMagics"].monitor)


class _Panel(ModuleType):
    """This module can be called, so that `from gpumem_magic import panel` gives the same whether or
    not someone has imported `gpumem_magic.panel` before."""

    def __call__(self) -> None:
        show()


sys.modules[__name__].__class__ = _Panel
