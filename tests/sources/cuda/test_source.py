"""CudaSource over an allocator that the test plays: what no machine with one GPU can show."""

from __future__ import annotations

import pytest

from gpumem_magic.sources.cuda.source import CudaSource
from gpumem_magic.values.recording import Action, Cell, Phase

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # the first optimizer imports it, and it replaces functions

MIB = 1 << 20
CELL = Cell("", "<cell>")


def measured(run, **options):
    source = CudaSource(**options)
    source.start(dict)
    error = None
    try:
        run()
    except RuntimeError as caught:
        error = caught
    try:
        return source.stop(CELL, {}, error)
    finally:
        source.close()


def test_each_device_that_was_used_has_a_recording_the_most_used_first(allocator):
    def run():
        allocator.alloc(0, 2 * MIB)
        for _ in range(3):
            allocator.alloc(1, 4 * MIB)

    allocator.alloc(1, 6 * MIB)
    first, second = measured(run)
    assert (first.device.index, first.device.name) == (1, "GPU 1")
    assert (second.device.index, second.device.name) == (0, "GPU 0")
    assert (first.before.allocated, first.after.allocated) == (6 * MIB, 18 * MIB)
    assert (second.before.allocated, second.after.allocated) == (0, 2 * MIB)
    assert first.initial.size.tolist() == [6 * MIB]
    assert (len(first.events), len(second.events)) == (6, 2)
    assert first.notes == second.notes == ()


def test_the_current_device_always_has_one(allocator):
    (recording,) = measured(lambda: None)
    assert recording.device.index == 0
    assert [r.device.index for r in measured(lambda: allocator.alloc(1, MIB))] == [1, 0]
    assert [r.device.index for r in measured(lambda: None, index=1)] == [1]


def test_a_failure_belongs_to_the_device_that_its_text_names(allocator):
    def run():
        allocator.alloc(0, MIB)
        allocator.alloc(0, MIB)
        allocator.fail(1, 3 * MIB)

    allocator.stats = lambda device, stats=allocator.stats: {**stats(device)}
    first, second = measured(run)
    assert (first.device.index, first.failure, first.retries) == (0, None, 0)
    assert second.failure is not None
    assert (second.failure.requested, second.failure.segment) == (3 * MIB, 20 * MIB)
    assert (second.failure.phase, second.retries) == (Phase.FORWARD, 1)
    assert first.error == second.error


def test_regions_stand_where_the_events_of_each_device_stand(allocator):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    x = weight * 2

    def hook(grad):
        allocator.alloc(0, MIB)
        allocator.alloc(1, MIB)

    x.register_hook(hook)

    def run():
        allocator.alloc(1, MIB)
        x.sum().backward()
        optimizer.register_step_post_hook(lambda *_: allocator.alloc(1, MIB) and None)
        optimizer.step()
        allocator.alloc(0, MIB)

    first, second = measured(run)
    phases = [
        [Phase(p) for p in r.events.phase[r.events.action == Action.ALLOC]] for r in (first, second)
    ]
    assert phases[0] == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert phases[1] == [Phase.BACKWARD, Phase.FORWARD]


def test_cuda_that_is_initialised_in_the_cell(allocator, monkeypatch):
    queue = []
    monkeypatch.setattr(torch.cuda, "_queued_calls", queue)
    allocator.initialized = False

    def run():
        assert allocator.recording is None
        for call, _ in queue:
            call()
        allocator.initialized = True
        allocator.alloc(0, 3 * MIB)

    (recording,) = measured(run)
    assert queue == []
    assert (recording.before.allocated, recording.after.allocated) == (0, 3 * MIB)
    assert recording.events.action.tolist() == [Action.SEGMENT_ALLOC, Action.ALLOC]
    assert recording.complete
    assert allocator.calls == ["all", None]


def test_torch_2_1_has_no_times_and_forgets_on_every_call(allocator, monkeypatch):
    monkeypatch.delattr(torch._C, "_cuda_isHistoryEnabled")
    allocator.timed = False

    def run():
        allocator.alloc(0, 2 * MIB)
        torch.cuda.memory._record_memory_history(max_entries=500)
        allocator.alloc(0, 3 * MIB)

    (recording,) = measured(run)
    assert recording.complete
    sizes = recording.events.size[recording.events.action == Action.ALLOC]
    assert sizes.tolist() == [2 * MIB, 3 * MIB]
    assert recording.events.time.tolist() == sorted(recording.events.time.tolist())


def test_an_allocator_without_history_leaves_the_counters(allocator, monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("cudaMallocAsync does not yet support recordHistory.\nfrom ...")

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", refuse)
    (recording,) = measured(lambda: allocator.alloc(0, MIB))
    assert (recording.before.allocated, recording.after.allocated) == (0, MIB)
    assert (recording.complete, recording.dropped, len(recording.events)) == (False, 1, 0)
    assert "cudaMallocAsync does not yet support recordHistory" in recording.notes[0]


def test_where_nobody_counts_events_their_number_is_not_known(allocator, monkeypatch):
    # GIVEN an allocator that shows nothing and counts bytes only, as cudaMallocAsync does
    def refuse():
        raise RuntimeError("this allocator does not support snapshot")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", refuse)

    def run():
        allocator.alloc(0, MIB)
        allocator.changes[0] = 0

    (recording,) = measured(run)
    # THEN that nothing was recorded does not mean that nothing happened
    assert (recording.complete, recording.dropped) == (False, None)
    assert recording.after.allocated == MIB
    assert "PyTorch's counters tell the cell's peak: 1.00 MiB." in recording.notes


def test_a_cell_that_gives_all_back_is_not_idle_where_nobody_counts_events(allocator, monkeypatch):
    def refuse():
        raise RuntimeError("this allocator does not support snapshot")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", refuse)
    allocator.alloc(0, MIB)
    allocator.changes[0] = 0
    # WHEN the same bytes are there before and after
    (recording,) = measured(lambda: None)
    # THEN others may have come and gone
    assert (recording.complete, recording.dropped) == (False, None)


def test_an_allocator_that_shows_nothing_leaves_the_counters(allocator, monkeypatch):
    def refuse():
        raise RuntimeError("this allocator does not support snapshot")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", refuse)
    (recording,) = measured(lambda: allocator.alloc(0, MIB))
    assert (recording.complete, recording.dropped, len(recording.events)) == (False, 1, 0)
    assert recording.after.allocated == MIB


def test_a_history_that_fails_at_the_end_leaves_the_counters(allocator, monkeypatch):
    def run():
        allocator.alloc(0, MIB)

        def refuse():
            raise RuntimeError("device-side assert triggered")

        monkeypatch.setattr(torch.cuda.memory, "_snapshot", refuse)

    (recording,) = measured(run)
    assert (recording.complete, recording.dropped) == (False, 1)
    assert "device-side assert" in recording.notes[0]
    assert allocator.recording is None
