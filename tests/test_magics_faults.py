"""Errors of our own, injected into every step of a measured cell: the cell's outcome stands, one
line tells, nothing is left on, and the next cell is measured."""

from __future__ import annotations

import contextlib
import io
import signal
import sys

import pytest
from IPython.utils.capture import capture_output

from gpumem_magic.sources import ACTIVE

MAGICS = "gpumem_magic.magics."
CELL = "%%gpumem\nprint('ran')\n6 * 7"
BRIEF = "print('ran')\n6 * 7"

FAULTS = {
    # name: what raises, and the cell in which it does
    "the mark": (f"{MAGICS}mark.read_mark", CELL),
    "the mark of a plain cell": (f"{MAGICS}mark.read_mark", BRIEF),
    "taking the mark off": (f"{MAGICS}mark.without_mark", CELL),
    "the options": (f"{MAGICS}mark.read_cell", CELL),
    "the option table": (f"{MAGICS}options.OptionTable.before_code", CELL),
    "scanning options": (f"{MAGICS}options.OptionTable.scan", CELL),
    "finding an option": (f"{MAGICS}options.OptionTable._find", "%%gpumem -q\nprint('ran')\n6 * 7"),
    "the fields of options": (f"{MAGICS}gpumem.fields_of", CELL),
    "whose cell it is": (f"{MAGICS}mark._is_own", BRIEF),
    "the mark once more": (f"{MAGICS}mark.CellHooks._cleaned", CELL),
    "which cells run": (f"{MAGICS}mark._cells_on_stack", CELL),
    "beginning": (f"{MAGICS}mark.CellHooks._begin", CELL),
    "standing before Ctrl-C": ("gpumem_magic.sources.interrupts.Interrupts.install", CELL),
    "forgetting Ctrl-C": (f"{MAGICS}mark.CellHooks._forget_interrupt", CELL),
    "letting Ctrl-C come": (f"{MAGICS}mark.CellHooks._let_interrupts_come", CELL),
    "the line below": (f"{MAGICS}mark.CellHooks._prefiltered", "%%gpumem\nprint('ran') or 42"),
    "entering the device": ("source.enter", CELL),
    "leaving the device": ("source.leave", CELL),
    "starting the source": ("source.start", CELL),
    "stopping the source": ("source.stop", CELL),
    "remembering blocks": ("source.remember", CELL),
    "starting": (f"{MAGICS}monitor.Monitor.start", CELL),
    "the namespace": (f"{MAGICS}monitor.names_of", CELL),
    "following": (f"{MAGICS}monitor.Monitor._follow", CELL),
    "the line that follows": (f"{MAGICS}monitor.level_line", CELL),
    "stopping": (f"{MAGICS}monitor.Monitor.stop", CELL),
    "the reports": (f"{MAGICS}monitor.Monitor._reports", CELL),
    "ending": (f"{MAGICS}mark.CellHooks._end", CELL),
    "the cell that ran": (f"{MAGICS}mark.CellHooks._cell", CELL),
    "the file of the cell": ("gpumem_magic.sources.stacks.callsite.CellFiles.cell", CELL),
    "the other cells": ("gpumem_magic.sources.stacks.callsite.CellFiles.cells", CELL),
    "finishing": (f"{MAGICS}monitor.finish", CELL),
    "the pipeline": ("gpumem_magic.pipeline.analyse", CELL),
    "unfolding stacks": ("gpumem_magic.pipeline.unfold_all", CELL),
    "the trace": ("gpumem_magic.pipeline.build_trace", CELL),
    "a rule": ("gpumem_magic.advice.rules.missing_no_grad.MissingNoGrad.find", CELL),
    "the advice": ("gpumem_magic.pipeline.advise", CELL),
    "the report": ("gpumem_magic.pipeline.build_report", CELL),
    "the ignored rules": (f"{MAGICS}settings.rules", CELL),
    "noting the report": (f"{MAGICS}monitor.Monitor.take_note", CELL),
    "what is alive": (f"{MAGICS}monitor.find_large_storages", CELL),
    "the history": ("gpumem_magic.history.History.append", CELL),
    "showing": (f"{MAGICS}monitor.Monitor.show", CELL),
    "showing a report": (f"{MAGICS}monitor.show_report", CELL),
    "the bundle": (f"{MAGICS}display.mimebundle", CELL),
    "whether HTML is shown": (f"{MAGICS}display.is_rich", CELL),
    "the summary": (f"{MAGICS}display.summary_line", BRIEF),
    "looking for growth": (f"{MAGICS}monitor.GrowthWatch.look", CELL),
    "an observer at the begin": ("observer.cell_began", CELL),
    "an observer at the end": ("observer.cell_ended", CELL),
    "the hint": (f"{MAGICS}mark._error", "print('ran')\n6 * 7"),
}


class Observer:
    def cell_began(self):
        pass

    def cell_ended(self):
        pass

    def unloaded(self):
        pass


@pytest.fixture
def loaded(shell, source):
    with capture_output():
        shell.run_line_magic("load_ext", "gpumem_magic")
    loaded = monitor(shell)
    loaded.observers.append(Observer())
    loaded.settings.progress = True
    shell.kernel = object()  # whose progress line is followed
    yield shell
    del shell.kernel


def monitor(shell):
    return shell.magics_manager.registry["GpuMemMagics"].monitor


def run(shell, cell):
    with capture_output() as shown:
        result = shell.run_cell(cell, store_history=True)
    return result, shown


def failing(*args, **options):
    raise ZeroDivisionError("injected")


def inject(monkeypatch, shell, source, target, fault=failing):
    owner, _, name = target.partition(".")
    if owner == "source":
        monkeypatch.setattr(source, name, fault)
    elif owner == "observer":
        monkeypatch.setattr(monitor(shell).observers[0], name, fault)
    else:
        monkeypatch.setattr(target, fault)


def nothing_is_left(shell):
    kept = monitor(shell)
    return (kept.measuring, kept.running, kept._inside, kept._progress, ACTIVE.get()) == (
        *(False, False, False, None, None),
    )


def leaving(*args, **options):
    raise SystemExit("injected")


LOOKING = [
    *("entering the device", "starting the source", "stopping the source", "remembering blocks"),
    *("the namespace", "following", "stopping", "the reports", "ending", "finishing"),
    *("the pipeline", "the trace", "the advice", "the report", "what is alive", "showing"),
    *("the bundle", "looking for growth", "leaving the device", "an observer at the end"),
]


@pytest.mark.parametrize("name", LOOKING)
def test_code_that_ours_calls_does_not_end_the_process(loaded, source, monkeypatch, name):
    """GIVEN an object of the user's that raises SystemExit where anyone looks at it."""
    with monkeypatch.context() as patch:
        inject(patch, loaded, source, FAULTS[name][0], leaving)
        result, shown = run(loaded, CELL)
    assert result.success
    assert result.result == 42
    (line,) = shown.stderr.splitlines()
    assert "your code is not affected: SystemExit: injected" in line
    assert nothing_is_left(loaded)
    assert run(loaded, CELL)[0].result == 42


@pytest.mark.parametrize("name", FAULTS)
def test_the_outcome_stands_and_one_line_tells(loaded, source, monkeypatch, name):
    target, cell = FAULTS[name]
    monitor(loaded).settings.every_cell = cell is BRIEF
    with monkeypatch.context() as patch:
        inject(patch, loaded, source, target)
        result, shown = run(loaded, cell)
    assert result.success
    assert result.result == 42
    assert shown.stdout.splitlines()[0] == "ran"
    # THEN one line tells what failed, and to report it
    (line,) = shown.stderr.splitlines()
    assert line.startswith("gpumem_magic: ")
    assert "your code is not affected: ZeroDivisionError: injected" in line
    assert "please report" in line
    assert "Traceback" not in shown.stdout
    assert "Error in callback" not in shown.stdout
    # AND nothing is left on, and the next cell is measured
    assert nothing_is_left(loaded)
    before = len(monitor(loaded).history)
    result, shown = run(loaded, CELL)
    assert (result.result, shown.stderr) == (42, "")
    assert len(monitor(loaded).history) == before + 1
    assert nothing_is_left(loaded)


class UnsaidError(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


KINDS = {
    "memory": MemoryError(),
    "depth": RecursionError("deep"),
    "no text": UnsaidError(),
    "several lines": ValueError("all\nof\nthem"),
    "the end of an iteration": StopIteration(5),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["starting", "the trace", "the history", "the bundle"])
def test_errors_of_all_kinds_are_one_line(loaded, source, monkeypatch, name, kind):
    def fail(*args, **options):
        raise KINDS[kind]

    with monkeypatch.context() as patch:
        inject(patch, loaded, source, FAULTS[name][0], fail)
        result, shown = run(loaded, CELL)
    assert result.result == 42
    (line,) = shown.stderr.splitlines()
    assert "your code is not affected: " in line
    assert nothing_is_left(loaded)
    assert run(loaded, CELL)[0].result == 42


def test_an_output_that_the_cell_has_closed_is_no_defect_of_ours(loaded, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", closed())
    result = loaded.run_cell(CELL.replace("print('ran')\n6 * 7", "x = 5"))
    monkeypatch.undo()
    (line,) = capsys.readouterr().err.splitlines()
    assert result.success
    assert "your code is not affected: ValueError: I/O operation on closed file" in line
    assert "defect" not in line


def test_an_alarm_that_is_held_to_the_end_of_the_cell_prints_no_frames(loaded, monkeypatch):
    """GIVEN a timer's handler that raises, and a timer that ends while the cell is left."""

    def late(number, frame):
        raise TimeoutError("late")

    before = signal.signal(signal.SIGALRM, late)
    monkeypatch.setattr(
        monitor(loaded), "cell_ended", lambda: monitor(loaded).interrupts.held.add(signal.SIGALRM)
    )
    try:
        result, shown = run(loaded, CELL)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert result.result == 42
    assert "Error in callback" not in shown.stdout + shown.stderr
    (line,) = shown.stderr.splitlines()
    assert "interrupted" in line


class Full(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [Full, closed])
@pytest.mark.parametrize("name", ["finishing", "the mark", "entering the device", "showing"])
def test_the_outcome_stands_where_nobody_can_be_told(loaded, source, monkeypatch, name, stream):
    with monkeypatch.context() as patch:
        inject(patch, loaded, source, FAULTS[name][0])
        with capture_output():
            patch.setattr(sys, "stderr", stream())
            result = loaded.run_cell(CELL, store_history=True)
    assert result.success
    assert result.result == 42
    assert nothing_is_left(loaded)
    assert run(loaded, CELL)[0].result == 42


def test_a_cell_that_code_runs_by_the_magics_name_runs_as_well(loaded, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(f"{MAGICS}gpumem.read_cell", failing)
        result, shown = run(loaded, "get_ipython().run_cell_magic('gpumem', '', 'x = 6 * 7')")
    assert result.success
    assert loaded.user_ns["x"] == 42
    assert len(shown.stderr.splitlines()) == 1
    assert nothing_is_left(loaded)


def test_after_three_in_a_row_nothing_is_measured_any_more(loaded, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(f"{MAGICS}monitor.finish", failing)
        run(loaded, CELL)
        run(loaded, CELL)
        _, shown = run(loaded, CELL)
    assert "3 cells in a row" in shown.stderr.splitlines()[1]
    result, shown = run(loaded, CELL)
    assert result.result == 42
    assert shown.stderr.startswith("gpumem_magic: not measured: ")
    assert len(monitor(loaded).history) == 0
    # AND loading it again begins anew
    run(loaded, "%reload_ext gpumem_magic")
    run(loaded, CELL)
    assert len(monitor(loaded).history) == 1


def test_errors_with_a_measured_cell_between_them_are_not_in_a_row(loaded, monkeypatch):
    for _ in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(f"{MAGICS}monitor.finish", failing)
            run(loaded, CELL)
        run(loaded, CELL)
    assert len(monitor(loaded).history) == 4


def interrupt(*args, **options):
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("name", ["finishing", "showing", "the file of the cell", "the trace"])
def test_an_interrupt_ends_the_report_in_one_line(loaded, source, monkeypatch, name):
    with monkeypatch.context() as patch:
        inject(patch, loaded, source, FAULTS[name][0], interrupt)
        result, shown = run(loaded, CELL)
    assert result.result == 42
    assert shown.stderr == "gpumem_magic: the report was interrupted, your code is not affected\n"
    assert "Traceback" not in shown.stdout
    assert nothing_is_left(loaded)
    assert run(loaded, CELL)[1].stderr == ""


def test_an_interrupt_that_others_make_another_error_of_is_one(loaded, source, monkeypatch):
    def swallowed(*args, **options):
        with contextlib.suppress(KeyboardInterrupt):
            exec(compile("interrupt()", "<elsewhere>", "exec"), {"interrupt": interrupt})
        raise ValueError("invalid box")

    with monkeypatch.context() as patch:
        inject(patch, loaded, source, FAULTS["showing"][0], swallowed)
        _, shown = run(loaded, CELL)
    assert shown.stderr == "gpumem_magic: the report was interrupted, your code is not affected\n"


@pytest.mark.parametrize("name", ["beginning", "entering the device", "starting the source"])
def test_an_interrupt_before_the_cell_is_the_cells(loaded, source, monkeypatch, name):
    with monkeypatch.context() as patch:
        inject(patch, loaded, source, FAULTS[name][0], interrupt)
        result, shown = run(loaded, "%%gpumem\nhappened = 1")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert "happened" not in loaded.user_ns
    assert "Error in callback" not in shown.stdout
    assert loaded.ast_transformers == []
    assert nothing_is_left(loaded)
    assert run(loaded, CELL)[0].result == 42


def test_an_interrupt_before_a_cell_that_is_no_code_ends_with_it(loaded, source, monkeypatch):
    with monkeypatch.context() as patch:
        inject(patch, loaded, source, "source.enter", interrupt)
        run(loaded, "not code")
    assert loaded.ast_transformers == []
    assert run(loaded, CELL)[0].result == 42


@pytest.fixture
def with_tensors(shell):
    pytest.importorskip("torch")
    run(shell, "%load_ext gpumem_magic\nimport torch\nw = torch.ones(3, device='cuda')")
    run(shell, "w.requires_grad_()\noptimizer = torch.optim.Adam([w])")
    return shell


TENSORS = """%%gpumem
loss = (w * 1).sum()
loss.backward()
optimizer.step()
loss.item()"""

MIDST = ("stacks.callstacks.CallStacks.capture", "cuda.regions.stack_of", "cuda.regions.Span")


@pytest.mark.parametrize("name", MIDST)
def test_an_error_in_the_midst_of_an_operator_is_told_at_the_end(with_tensors, monkeypatch, name):
    with monkeypatch.context() as patch:
        patch.setattr(f"gpumem_magic.sources.{name}", failing)
        result, shown = run(with_tensors, TENSORS)
    assert result.result == 3
    (line,) = shown.stderr.splitlines()
    assert "ZeroDivisionError: injected" in line
    _, shown = run(with_tensors, TENSORS)
    assert shown.stderr == ""
    assert len(monitor(with_tensors).history) == 1


@pytest.mark.parametrize("name", ["malloc", "free"])
def test_books_of_an_allocator_that_failed_are_not_believed(with_tensors, monkeypatch, name):
    with monkeypatch.context() as patch:
        patch.setattr(f"gpumem_magic.allocator.caching.CachingAllocator.{name}", failing)
        result, shown = run(with_tensors, TENSORS)
    assert result.result == 3
    assert "ZeroDivisionError: injected" in shown.stderr
    assert "the report failed" in run(with_tensors, TENSORS)[1].stderr


def test_names_that_could_not_be_read_are_told(with_tensors, monkeypatch):
    monkeypatch.setattr("gpumem_magic.sources.objects.owners._Search._visit", failing)
    result, _ = run(with_tensors, TENSORS)
    assert abs(result.result - 3) < 0.1
    (note,) = monitor(with_tensors).history[1].notes
    assert note == "Names could not be read everywhere (ZeroDivisionError: injected)."
