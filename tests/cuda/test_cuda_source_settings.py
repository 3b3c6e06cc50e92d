"""The same in processes of their own: the allocator's settings, and CUDA before its first use."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PREAMBLE = """
import numpy as np, torch
from gpumem_magic.values.recording import Action, Cell
from gpumem_magic.sources.cuda.source import CudaSource

def measured(run, error=None):
    source = CudaSource()
    source.start(dict)
    try:
        run()
    except torch.OutOfMemoryError as caught:
        error = caught
    (recording,) = source.stop(Cell("", "script"), {}, error)
    source.close()
    events = recording.events
    sign = np.select([events.action == Action.ALLOC, events.action == Action.FREE], [1, -1], 0)
    levels = np.cumsum(sign * events.size) + recording.initial.size.sum()
    grow = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    shrink = np.isin(events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    reserved = recording.before.reserved + ((grow.astype(int) - shrink) * events.size).sum()
    if torch.cuda.is_initialized() and len(events):
        assert levels[-1] == torch.cuda.memory_allocated(), levels[-1]
        assert max(levels.max(), recording.before.allocated) == torch.cuda.max_memory_allocated()
        assert reserved == torch.cuda.memory_reserved(), reserved
    assert recording.complete and not recording.notes, recording.notes
    return recording

MIB = 1 << 20
kept = {}

def churn():
    '''Blocks of many sizes, freed in another order than they came.'''
    sizes = [(i * 7919 * 977) % (30 * MIB) + 1 for i in range(300)]
    for i, size in enumerate(sizes):
        kept[i] = torch.empty(size, dtype=torch.uint8, device="cuda")
        if i % 3:
            kept.pop((i * 31) % i, None)
"""


def run(code, **environment):
    """Run a script after the preamble, in a process with these environment variables."""
    script = PREAMBLE + textwrap.dedent(code)
    search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": search, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SETTINGS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:21",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "garbage_collection_threshold:0.5",
    "expandable_segments:True,max_split_size_mb:30",
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_sizes_are_exact_under_every_setting(settings):
    run(
        """
        measured(churn)
        torch.cuda.reset_peak_memory_stats()
        recording = measured(churn)
        assert recording.initial.size.sum() == recording.before.allocated > 0
        """,
        PYTORCH_CUDA_ALLOC_CONF=settings,
    )


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_out_of_memory_with_blocks_to_give_back(settings):
    run(
        """
        torch.cuda.set_per_process_memory_fraction(400 * MIB / torch.cuda.mem_get_info()[1])

        def fill():
            churn_sizes = [30, 50, 11, 40, 25, 60]
            held = [torch.empty(s * MIB, dtype=torch.uint8, device="cuda") for s in churn_sizes]
            del held[1], held[2]
            kept["big"] = torch.empty(150 * MIB, dtype=torch.uint8, device="cuda")
            kept["held"] = held
            kept["too big"] = torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")

        recording = measured(fill)
        assert recording.failure.requested == 200 * MIB
        free = recording.after.reserved - recording.after.allocated
        assert recording.failure.reserved_free == free, (recording.failure, free)
        """,
        PYTORCH_CUDA_ALLOC_CONF=settings,
    )


def test_a_cell_that_initialises_cuda_is_recorded_whole():
    run(
        """
        def first():
            kept[0] = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
            kept[1] = torch.empty(100, device="cuda")

        assert not torch.cuda.is_initialized()
        recording = measured(first)
        assert (recording.before.allocated, recording.before.reserved) == (0, 0)
        assert recording.before.process_used == 0
        assert (recording.events.action == Action.ALLOC).sum() == 2
        assert recording.after.device_used > recording.after.reserved
        assert recording.device.name == torch.cuda.get_device_name()
        assert not torch._C._cuda_isHistoryEnabled()
        """
    )


def test_a_cell_without_cuda_does_not_initialise_it():
    run(
        """
        queued = list(torch.cuda._queued_calls)
        recording = measured(lambda: torch.ones(3).sum())
        assert not torch.cuda.is_initialized()
        assert not torch._C._cuda_hasPrimaryContext(0)
        assert torch.cuda._queued_calls == queued
        assert (recording.after.allocated, recording.after.reserved) == (0, 0)
        assert len(recording.events) == 0
        assert recording.after.device_used is not None or recording.after.unknown["device_used"]
        torch.empty(10, device="cuda")
        assert not torch._C._cuda_isHistoryEnabled()
        """
    )


def test_looking_does_not_initialise_cuda():
    run(
        """
        source = CudaSource()
        level = source.level()
        assert (level.allocated, level.reserved) == (0, 0)
        assert source.device.index == 0
        assert not torch.cuda.is_initialized()
        assert not torch._C._cuda_hasPrimaryContext(0)
        """
    )


def test_a_history_begun_before_cuda_was_initialised_is_the_users():
    run(
        """
        torch.cuda.memory._record_memory_history(max_entries=1000)
        if torch._C._cuda_isHistoryEnabled():  # torch 2.1 forgets it
            measured(lambda: kept.update(x=torch.empty(5 * MIB, device="cuda")))
            assert torch._C._cuda_isHistoryEnabled()
        """
    )


def test_everything_that_stays_has_an_owner():
    run(
        """
        model = torch.nn.Linear(300, 200).cuda()
        x = torch.randn(64, 300, device="cuda")
        names = {"model": model, "x": x}
        source = CudaSource()

        def step():
            model(x).sum().backward()

        for _ in range(2):
            source.start(lambda: names)
            step()
            (recording,) = source.stop(Cell("", "script"), {}, None)
            snapshot = torch.cuda.memory_snapshot()
            held = {
                block["address"]
                for segment in snapshot
                for block in segment["blocks"]
                if block["state"] == "active_allocated"
            }
            labelled = {label.address for label in recording.labels}
            assert held - labelled == set(), held - labelled
        source.close()
        """
    )
