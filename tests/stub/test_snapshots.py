"""Snapshots of reports measured with torch's CUDA code: the same segments as PyTorch's own."""

from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path

import pytest

from gpumem_magic import load_snapshot

STUB = os.environ.get("GPUMEM_STUB")
PYTHON = os.environ.get("GPUMEM_STUB_PYTHON")

pytestmark = pytest.mark.skipif(
    not (STUB and PYTHON),
    reason="needs the stub device: set GPUMEM_STUB (folder of run.sh) and GPUMEM_STUB_PYTHON",
)

SETTINGS = ["", "expandable_segments:True", "roundup_power2_divisions:4,max_split_size_mb:32"]


def segments_of(path):
    """All that a snapshot says of where memory lies."""
    named = ("address", "total_size", "allocated_size", "active_size", "requested_size")
    segments = pickle.loads(path.read_bytes())["segments"]
    return [
        [segment[name] for name in (*named, "segment_type", "is_expandable")]
        + [(b["address"], b["size"], b["state"]) for b in segment["blocks"]]
        + [b["requested_size"] for b in segment["blocks"] if b["state"] != "inactive"]
        for segment in sorted(segments, key=lambda one: one["address"])
    ]


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_segments_are_those_of_pytorchs_own_snapshot(settings, tmp_path):
    ours, theirs = tmp_path / "ours.pickle", tmp_path / "theirs.pickle"
    script = Path(__file__).with_name("snapshot_script.py")
    root = str(Path(__file__).parents[2])
    subprocess.run(
        [Path(STUB) / "run.sh", PYTHON, script, ours, theirs],
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings, "PYTHONPATH": root},
        check=True,
    )
    assert segments_of(ours) == segments_of(theirs)
    (first,), (second,) = load_snapshot(ours), load_snapshot(theirs)
    assert first.after == second.after
    assert first.peak == second.peak
