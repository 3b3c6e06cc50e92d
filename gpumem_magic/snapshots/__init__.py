"""PyTorch's memory snapshots (`torch.cuda.memory._dump_snapshot`) as reports."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from os import PathLike
from pathlib import Path

from gpumem_magic.pipeline import analyse
from gpumem_magic.snapshots.files import SUFFIXES
from gpumem_magic.snapshots.sources import with_source
from gpumem_magic.values.recording import Recording
from gpumem_magic.values.report import Report

__all__ = ["SUFFIXES", "load_snapshot"]

_PATIENCE = 600
"""Seconds that reading a file may take; a snapshot of 1 GB takes some 20."""


def load_snapshot(path: str | PathLike[str]) -> tuple[Report, ...]:
    """One report for every device in a memory snapshot, the one with most events first.

    path: a .pickle that `torch.cuda.memory._dump_snapshot` (or XPU's) wrote, or one packed as
    .pickle.gz. Pickles of strangers are safe to load: the file is read in a process of its own, by
    a reader that knows containers, numbers and strings only, within bounds of memory and time.

    Lines are those of the script or notebook that most memory was asked for from; their text is
    shown where the file lies on this machine. Raises ValueError that says what is wrong with the
    file, or OSError.
    """
    path = Path(path).expanduser()
    with path.open("rb"):  # a missing or forbidden file is an OSError here, with its reason
        pass
    return tuple(
        analyse(_with_sources(recording), path.name, advised=False).report
        for recording in _read_elsewhere(path)
    )


def _with_sources(recording: Recording) -> Recording:
    cells = {name: with_source(cell) for name, cell in recording.cells.items()}
    return replace(recording, cell=with_source(recording.cell), cells=cells)


def _read_elsewhere(path: Path) -> tuple[Recording, ...]:
    """The recordings that `recordings.main` makes of the file in a process of its own."""
    command = [sys.executable, "-m", "gpumem_magic.snapshots.recordings", str(path.resolve())]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{path}: reading it took more than {_PATIENCE // 60} minutes") from None
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(f"{path}: {words[-1] if words else 'it could not be read'}")
    found: tuple[Recording, ...] = pickle.loads(
        done.stdout
    )  # made by our own code, of plain values
    return found
