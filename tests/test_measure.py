"""`with measure()`: the same Report for scripts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpumem_magic import measure
from gpumem_magic.sources import ACTIVE

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(source, monkeypatch):
    """The source that a script's `measure` opens."""
    asked = []
    monkeypatch.setattr(
        "gpumem_magic.devices.choose_source", lambda name: asked.append(name) or source
    )
    source.asked = asked
    return source


def test_a_block_has_a_report_when_it_has_ended(script):
    with measure(name="step", device="A100-80GB") as m:
        assert script.calls == ["enter", "start"]
        with pytest.raises(RuntimeError, match="ends"):
            _ = m.report
    assert m.report.name == "step"
    assert m.report.peak.allocated == 3 << 20
    assert m.reports == (m.report,)
    assert script.asked == ["A100-80GB"]
    assert script.calls == ["enter", "start", "stop", "leave", "close"]
    assert ACTIVE.get() is None


def test_the_cell_is_the_file_with_its_own_line_numbers(script):
    with measure() as m:
        line = sys._getframe().f_lineno
    assert m.report.cell.filename == __file__
    assert "f_lineno" in m.report.cell.source.splitlines()[line - 1]
    assert m.report.name == f"{Path(__file__).name}:{line - 1}"


def test_an_error_goes_through_and_the_report_is_there(script):
    with pytest.raises(ZeroDivisionError), measure() as m:
        1 / 0  # noqa: B018
    assert m.report.error == "ZeroDivisionError"
    assert script.calls[-2:] == ["leave", "close"]


def test_when_measuring_fails_the_device_is_restored_all_the_same(script):
    script.fail_on = "stop"
    with pytest.raises(RuntimeError, match="stop does not work"), measure():
        pass
    assert script.calls == ["enter", "start", "stop", "leave", "close"]
    assert ACTIVE.get() is None


def test_when_starting_fails_the_device_is_restored_all_the_same(script):
    script.fail_on = "start"
    with pytest.raises(RuntimeError, match="start does not work"), measure():
        pass
    assert script.calls == ["enter", "start", "leave", "close"]


def test_names_of_the_block_are_visible(script):
    def work():
        inner_name = 1
        with measure():
            found = script.namespaces()
        return found, inner_name

    found, _ = work()
    assert found["inner_name"] == 1
    assert found["textwrap"] is textwrap


def test_a_block_inside_a_measured_block_is_part_of_it(script):
    with measure() as outer, measure() as inner:
        pass
    assert outer.report.peak.allocated == 3 << 20
    with pytest.raises(RuntimeError, match="inside a measured"):
        _ = inner.report
    assert script.calls.count("start") == 1


def test_in_a_notebook_it_measures_on_the_chosen_device(shell, source):
    from IPython.utils.capture import capture_output

    with capture_output():
        shell.run_line_magic("load_ext", "gpumem_magic")
        source.calls.clear()
        shell.run_cell("from gpumem_magic import measure\nwith measure() as m:\n    x = 1")
        assert source.calls == ["enter", "start", "stop", "leave"]
        shell.run_cell("%%gpumem -q\nwith measure() as inner:\n    x = 1")
    assert "with measure() as m:" in shell.user_ns["m"].report.cell.source
    assert shell.user_ns["inner"].reports == ()


def test_a_device_that_measures_nothing_is_refused(monkeypatch):
    monkeypatch.setattr("gpumem_magic.devices.choose_source", lambda name: None)
    with pytest.raises(RuntimeError, match="choose a card"), measure(device="off"):
        pass


def test_a_script_runs_on_a_virtual_gpu_and_leaves_torch_as_it_was(tmp_path):
    pytest.importorskip("torch")
    code = """
        import torch
        before = dict(vars(torch.cuda))
        from gpumem_magic import measure
        with measure(device="T4") as m:
            x = torch.ones(1 << 20, device="cuda")
            y = x + x
            del x
        line = {line.source.strip(): line for line in m.report.lines}
        print(m.report.device.name, m.report.device.virtual)
        print(m.report.peak.allocated, m.report.after.allocated)
        print(line['x = torch.ones(1 << 20, device="cuda")'].allocated, line["y = x + x"].number)
        print([k for k in before if vars(torch.cuda)[k] is not before[k]])
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code))
    command = [sys.executable, "-W", "ignore", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "Tesla T4 True",
        "8388608 4194304",
        "4194304 7",
        "[]",
    ]
