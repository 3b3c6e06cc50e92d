"""What was alive at any moment of a cell, beside what its lifetimes say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpumem_magic.trace import build_trace, lifetimes
from gpumem_magic.trace.lifetimes import find_large_storages
from gpumem_magic.values.recording import Action, Cell, Modules, Running

CELL = Cell("x = 1", "<cell>", 1)
MIB = 1 << 20


@pytest.fixture
def recording(source):
    """3 MiB: two stay, one lives from 0.2 s to 0.3 s."""
    (made,) = source.stop(CELL, {}, None)
    return made


def test_what_was_alive_at_each_moment(recording):
    found = find_large_storages(recording, build_trace(recording))
    sizes = {at: [block.size for block in found.at(at)] for at in (0.0, 0.1, 0.25, 0.3, 1.0)}
    assert sizes == {0.0: [], 0.1: [2 * MIB], 0.25: [2 * MIB, MIB], 0.3: [2 * MIB], 1.0: [2 * MIB]}


def test_only_the_largest_are_kept(recording, monkeypatch):
    monkeypatch.setattr(lifetimes, "MOST", 1)
    found = find_large_storages(recording, build_trace(recording))
    assert found.size.tolist() == [2 * MIB]
    assert np.isinf(found.died).all()


def test_an_incomplete_recording_tells_nothing(recording):
    assert find_large_storages(recording, build_trace(replace(recording, complete=False))) is None


def test_a_storage_without_a_name_has_the_shape_and_the_module_that_made_it(recording):
    births = recording.events.action == Action.ALLOC
    made, stack = np.where(births, 0, -1).astype(np.int32), np.zeros(len(births), np.int32)
    told = replace(
        recording,
        events=replace(recording.events, made=made, stack=stack),
        stacks=((),),
        results=(((512, 1024), "float32"),),
        modules=Modules(running=(Running("model.mlp", "", 1),)),
    )
    (block,) = find_large_storages(told, build_trace(told)).at(0.1)
    assert (block.shape, block.dtype, block.module) == ((512, 1024), "float32", "model.mlp")
