"""PyTorch's memory snapshots (`torch.cuda.memory._dump_snapshot`) as reports."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from os import PathLike
from pathlib import Path

from gpumem_magic.pipeline import analyse
from gpumem_magic.renderers.formats.files import regular
from gpumem_magic.snapshots.files import SNAPSHOTS
from gpumem_magic.snapshots.sources import with_source
from gpumem_magic.values.recording import Recording
from gpumem_magic.values.report import Report

__all__ = ["SNAPSHOTS", "load_snapshot"]

_READER = """\
import sys
sys.path[:] = {places!r}
from gpumem_magic.snapshots.recordings import main
main({path!r})
"""

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
    regular(path).open("rb").close()  # a missing or forbidden file is an OSError, with its reason
    return tuple(
        analyse(_with_sources(recording), path.name, advised=False).report
        for recording in _read_elsewhere(path)
    )


def _with_sources(recording: Recording) -> Recording:
    cells = {name: with_source(cell) for name, cell in recording.cells.items()}
    return replace(recording, cell=with_source(recording.cell), cells=cells)


def _read_elsewhere(path: Path) -> tuple[Recording, ...]:
    """The recordings that `recordings.main` makes of the file in a process of its own."""
    # A notebook's folder is no place to import from: a file there may be called pickle.py.
    places = [place for place in sys.path if place and Path(place) != Path.cwd()]
    places += [str(Path(__file__).parents[2])]
    reader = _READER.format(places=places, path=str(path.resolve()))
    command = [sys.executable, "-I", "-c", reader]
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
