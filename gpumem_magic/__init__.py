"""Where a cell's GPU memory goes: `%load_ext gpumem_magic`; in scripts `measure` and `predict`."""

from __future__ import annotations

import sys
from os import PathLike
from typing import TYPE_CHECKING, Any

from gpumem_magic.measure import measure
from gpumem_magic.predict import fit, predict

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from gpumem_magic.values.assessment import Assessment
    from gpumem_magic.values.report import Report

__version__ = "0.1.0"
__all__ = ["__version__", "advise", "fit", "load_snapshot", "measure", "predict"]


def advise(
    source: str,
    namespace: dict[str, Any] | None = None,
    gpu: str | None = None,
    *,
    optimizer_steps: int | None = None,
) -> Assessment:
    """What would save memory in a cell: every change that a rule proposes, measured by a dry run.

    The arguments, and what is raised, are those of `predict`; nothing of the namespace changes.
    """
    from gpumem_magic.assess import assess_source

    if namespace is None:
        namespace = sys._getframe(1).f_globals
    return assess_source(source, namespace, gpu, optimizer_steps=optimizer_steps)


def load_snapshot(path: str | PathLike[str]) -> tuple[Report, ...]:
    """One report for every device in a memory snapshot that PyTorch wrote, most events first.

    path: a .pickle of `torch.cuda.memory._dump_snapshot`, or a .pickle.gz. Files of strangers are
    safe to load. Raises ValueError that says what is wrong with the file, or OSError.
    """
    from gpumem_magic.snapshots import load_snapshot as load

    return load(path)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%load_ext gpumem_magic`."""
    from gpumem_magic.magics import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%unload_ext gpumem_magic`."""
    from gpumem_magic.magics import unload

    unload(shell)
