"""Cells on an accelerator that keeps no history, measured: every level is the counter's."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

from gpumem_magic.pipeline import analyse
from gpumem_magic.sources.accelerator.source import AcceleratorSource
from gpumem_magic.sources.accelerator.storages import StorageLog
from gpumem_magic.sources.holders import take_inventory
from gpumem_magic.values.inventory import HolderKind
from gpumem_magic.values.recording import Action, Category, Cell, Phase

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")  # the first optimizer imports it, and it replaces functions

MIB = 1 << 20
CELL = Cell("", "<cell>")


def mebibytes(count):
    return torch.empty(count << 18, device="meta")


def levels(recording):
    """Bytes before the first event, then after each."""
    action, size = recording.events.action, recording.events.size
    changes = size * (action == Action.ALLOC) - size * (action == Action.FREE)
    return [recording.before.allocated, *(recording.before.allocated + np.cumsum(changes)).tolist()]


def ran(code, bench, source_names=None, filename="<cell>"):
    """The trace and report of a cell's text."""
    names = {} if source_names is None else source_names
    names.setdefault("torch", torch)
    cell = Cell(code, filename)

    def run():
        exec(compile(code, filename, "exec"), names)

    recording = bench.measured(run, names, cell)
    found = analyse(recording)
    bench.source.remember(recording, found.trace)
    return found


def test_each_line_has_what_it_allocated_and_freed(bench):
    found = ran(
        "a = torch.empty(1 << 20, device='meta')\n"
        "b = torch.empty(1 << 19, device='meta')\n"
        "del a\n"
        "c = b + b\n",
        bench(),
    )
    by_line = {line.number: (line.allocated, line.freed) for line in found.report.lines}
    assert by_line == {1: (4 * MIB, 0), 2: (2 * MIB, 0), 3: (0, 4 * MIB), 4: (2 * MIB, 0)}
    assert found.report.peak.allocated == 6 * MIB
    assert found.report.after.allocated == 4 * MIB
    assert [block.size for block in found.report.blocks] == [4 * MIB, 2 * MIB]


def test_the_books_are_the_counters(bench):
    device = bench(rounding=4096, workspace=3 * MIB, kept=5 * MIB)
    names = {"model": torch.nn.Linear(33, 65, device="meta")}
    seen = []

    def run():
        optimizer = torch.optim.Adam(names["model"].parameters())
        for _ in range(3):
            names["model"](torch.ones(7, 33, device="meta")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(device.backend.allocated)

    recording = device.measured(run, names, CELL)
    assert levels(recording)[-1] == recording.after.allocated == device.backend.allocated
    assert set(seen) <= set(levels(recording))
    assert min(levels(recording)) >= 0
    phases = recording.events.phase[recording.events.action == Action.ALLOC]
    assert set(phases.tolist()) == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


def test_what_an_operator_takes_within_itself_is_in_the_peak(bench):
    device = bench(workspace=8 * MIB)
    x = mebibytes(1).view(512, 512)
    recording = device.measured(lambda: x @ x, {}, CELL)
    assert max(levels(recording)) == device.backend.peak == 9 * MIB
    assert recording.notes == ()


def test_without_a_peak_counter_the_peak_is_between_operators_and_says_so(bench):
    device = bench(workspace=8 * MIB, counts_peak=False)
    x = mebibytes(1).view(512, 512)
    found = analyse(device.measured(lambda: (x @ x, None)[1], {}, CELL))
    assert found.report.peak.allocated == 2 * MIB
    assert "counts no peak for META" in found.report.notes[0]
    assert found.report.peak.reserved is None
    assert found.report.unknown["peak.reserved"] == "it is not counted"
    assert found.report.text()


def test_what_an_operator_keeps_is_a_block_of_its_own(bench):
    device = bench(kept=8 * MIB)
    x = mebibytes(1).view(512, 512)
    recording = device.measured(lambda: (x @ x, None)[1], {}, CELL)
    allocated = recording.events.size[recording.events.action == Action.ALLOC].tolist()
    assert sorted(allocated) == [MIB, 8 * MIB]
    assert recording.after.allocated == 9 * MIB


def test_what_is_there_already_is_known_by_its_names(bench):
    device = bench()
    names = {"x": mebibytes(3)}
    hidden = mebibytes(2)

    def run():
        del names["x"]

    recording = device.measured(run, names, CELL)
    assert sorted(recording.initial.size.tolist()) == [2 * MIB, 3 * MIB]
    assert recording.events.size[recording.events.action == Action.FREE].tolist() == [3 * MIB]
    assert recording.after.allocated == hidden.nbytes


def test_memory_that_no_operator_made_is_seen(bench):
    device = bench()

    def run():
        device.backend.take(6 * MIB)  # a kernel of another library
        kept.append(mebibytes(1))
        device.backend.allocated -= 4 * MIB
        kept.append(mebibytes(1))

    kept = []
    recording = device.measured(run, {}, CELL)
    assert levels(recording)[-1] == 4 * MIB
    assert max(levels(recording)) == 7 * MIB


def test_out_of_memory_is_found_where_it_happened(bench):
    device = bench()
    device.backend.limit = 4 * MIB
    code = "x = torch.empty(1 << 19, device='meta')\ny = torch.ones(1 << 20, device='meta')\n"
    names = {"torch": torch}
    cell = Cell(code, "<cell>")
    found = analyse(
        device.measured(lambda: exec(compile(code, "<cell>", "exec"), names), names, cell)
    )
    assert found.report.oom.line == 2
    assert found.report.oom.requested == 4 * MIB
    assert found.recording.failure.op == "aten.ones"
    assert found.report.after.allocated == 2 * MIB


def test_kinds_are_remembered_from_one_cell_to_the_next(bench):
    device = bench()
    names = {}
    ran("model = torch.nn.Linear(512, 512, bias=False, device='meta')", device, names)
    found = ran("y = model(torch.ones(8, 512, device='meta'))", device, names)
    assert found.report.at_end[Category.PARAMETER] == MIB
    assert len(device.source.born_in(CELL)) == 2  # y, and the input that its graph keeps
    del names["y"]
    assert device.source.born_in(CELL) == frozenset()


def test_what_later_cells_left_came_after_it_too(bench):
    device = bench()
    later = replace(CELL, filename="<later>")
    names = {}
    ran("a = torch.ones(512, device='meta')", device, names)
    ran("b = torch.ones(512, device='meta')", device, names, "<later>")
    assert len(device.source.born_in(CELL)) == 2
    assert len(device.source.born_in(later)) == 1
    ran("c = torch.ones(512, device='meta')", device, names)  # the first cell again
    assert len(device.source.born_in(CELL)) == 1
    assert len(device.source.born_in(later)) == 2


def test_the_inventory_names_who_holds_it(bench):
    device = bench()
    names = {"x": mebibytes(3), "rows": [mebibytes(2)]}
    device.backend.take(4 * MIB)
    found = take_inventory(device.source, names)
    held = {(one.kind, one.name): one.size for one in found.holdings}
    assert held[HolderKind.VARIABLE, "x"] == 3 * MIB
    assert held[HolderKind.VARIABLE, "rows[0]"] == 2 * MIB
    assert sum(held.values()) == found.level.allocated == 9 * MIB
    assert "keeps no list of its blocks" in found.notes[0]


def test_nothing_is_left_on(bench):
    device = bench()
    before = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    device.source.start(dict)
    device.source.close()
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == before
    with pytest.raises(RuntimeError, match="start comes first"):
        device.source.stop(CELL, {}, None)


def test_a_mode_that_the_cell_leaves_open_stays_open(bench):
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

    class Users(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    device, mode = bench(), Users()
    device.measured(mode.__enter__, {}, CELL)
    assert _get_current_dispatch_mode_stack()[-1] is mode
    mode.__exit__(None, None, None)


def test_garbage_that_dies_within_the_cell_is_freed_in_it(bench):
    device = bench()

    def run():
        ring = [mebibytes(2)]
        ring.append(ring)
        del ring
        gc.collect()

    recording = device.measured(run, {}, CELL)
    assert levels(recording)[-1] == 0
    assert max(levels(recording)) == 2 * MIB


def test_an_interrupt_in_our_books_comes_after_them(bench):
    import signal
    import time

    device, before = bench(), signal.getsignal(signal.SIGINT)
    source = AcceleratorSource(device.backend)
    counters, calls = device.backend.counters, []

    def interrupted(index):
        calls.append(index)
        if len(calls) == 9:
            signal.raise_signal(signal.SIGINT)
        return counters(index)

    device.backend.counters = interrupted

    def run():
        while True:
            mebibytes(1)
            time.sleep(1e-4)

    source.start(dict)
    with pytest.raises(KeyboardInterrupt):
        run()
    (recording,) = source.stop(CELL, {}, None)
    assert levels(recording)[-1] == recording.after.allocated
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_in_our_books_is_told_when_the_cell_is_over(bench, monkeypatch):
    device = bench()

    def refuse(self, born):
        raise ValueError("books")

    monkeypatch.setattr(StorageLog, "_settle", refuse)
    device.source.start(dict)
    assert mebibytes(1).numel() == 1 << 18  # the user's code goes on
    monkeypatch.undo()
    with pytest.raises(ValueError, match="books"):
        device.source.stop(CELL, {}, None)
    device.source.start(dict)
    assert device.source.stop(CELL, {}, None)[0].complete


def test_storages_of_symbolic_size_have_no_memory(bench):
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    fake = FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    number = fake.from_tensor(torch.ones(77), symbolic_context=context).shape[0]
    symbolic = torch.empty(number, device="meta")
    memory = bench().source.memory()
    assert symbolic.untyped_storage()._cdata not in memory.blocks
    assert all(type(size) is int for size in memory.blocks.values())
