"""The line magic, its commands, completion, settings; loading and unloading the extension."""

from __future__ import annotations

import sys

import pytest
from IPython.core.error import UsageError
from IPython.utils.capture import capture_output

from gpumem_magic.sources import ACTIVE


@pytest.fixture
def loaded(shell, source):
    with capture_output():
        shell.run_line_magic("load_ext", "gpumem_magic")
    source.calls.clear()
    return shell


def gpumem(shell, line):
    with capture_output() as shown:
        value = shell.run_line_magic("gpumem", line)
    return value, shown.stdout + "".join(output.data["text/plain"] for output in shown.outputs)


def history(shell):
    return shell.magics_manager.registry["GpuMemMagics"].monitor.history


def run(shell, cell):
    with capture_output() as shown:
        result = shell.run_cell(cell, store_history=True)
    return result, shown


def test_a_statement_keeps_its_value_and_its_assignments(loaded, source):
    run(loaded, "%gpumem kept = 5")
    assert loaded.user_ns["kept"] == 5
    assert run(loaded, "%gpumem --name sum kept + 1")[0].result == 6
    assert run(loaded, "got = %gpumem -q kept * 2")[0].success
    assert loaded.user_ns["got"] == 10
    assert run(loaded, "%gpumem -q kept;")[0].result is None
    assert source.calls.count("start") == 4
    assert [cell.source for cell in source.cells[:2]] == ["kept = 5", "kept + 1"]
    assert [report.name for report in history(loaded)][:2] == ["kept = 5", "sum"]


def test_a_statement_keeps_its_quotes_and_dashes(loaded):
    assert run(loaded, """%gpumem -q "it's" + ' --name '""")[0].result == "it's --name "
    assert run(loaded, "%gpumem -q -- -4 + 1")[0].result == -3


def test_an_error_in_a_statement_is_its_own(loaded, source):
    result, _ = run(loaded, "%gpumem 1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert isinstance(source.errors[0], ZeroDivisionError)
    assert len(history(loaded)) == 1


def test_a_statement_inside_a_measured_cell_belongs_to_the_cell(loaded, source):
    assert run(loaded, "%%gpumem\n%gpumem q = 3\nq")[0].result == 3
    assert source.calls.count("start") == 1


def test_alone_it_shows_one_screen(loaded):
    _, text = gpumem(loaded, "")
    assert "virtual Fake GPU, 16.00 GiB" in text
    assert "allocated   2.00 MiB" in text
    assert "free        15.88 GiB" in text
    assert "0 reports" in text
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 80


def test_on_measures_every_cell_and_shows_one_line(loaded, source):
    run(loaded, "%gpumem --on")
    _, shown = run(loaded, "x = 1")
    assert len(shown.stdout.splitlines()) == 1
    assert "3.00 MiB" in shown.stdout
    assert len(history(loaded)) == 1
    run(loaded, "# how far are we\n%gpumem --history\n%gpumem")
    assert len(history(loaded)) == 1
    run(loaded, "%gpumem --off")
    run(loaded, "x = 2")
    assert len(history(loaded)) == 1


def test_the_history_is_listed_shown_compared_saved_loaded_and_forgotten(loaded, tmp_path):
    for name in ("first", "second"):
        run(loaded, f"%%gpumem -q --name {name}\nx = 1")
    assert "second" in gpumem(loaded, "--history")[1]
    assert "first" in gpumem(loaded, "--show 1")[1]
    both = gpumem(loaded, "--compare 1 2")[1]
    assert "second" in both
    assert gpumem(loaded, "--compare")[1] == gpumem(loaded, "--compare 1")[1] == both
    for suffix in ("json", "csv", "html", "png", "svg", "txt"):
        gpumem(loaded, f"--save {tmp_path / 'all'}.{suffix}")
        assert (tmp_path / f"all.{suffix}").stat().st_size > 100
    gpumem(loaded, "--reset")
    assert len(history(loaded)) == 0
    gpumem(loaded, f"--load {tmp_path / 'all.json'}")
    assert [report.name for report in history(loaded)] == ["first", "second"]


@pytest.mark.parametrize(
    "line",
    [
        *(
            "--show 7",
            "--show x",
            "--compare",
            "--compare 1",
            "--compare 1 9",
            "--load nowhere.json",
        ),
        *("--load some.csv", "--save x.pdf", "--device T1000x", "--frobnicate", "--name only"),
        *("-q", "--on x = 1"),
        *("--save ~nouser/x.json", "--load ~nouser/x.json"),
        *("--save circle.json", "--load circle.json"),
    ],
)
def test_a_wrong_line_is_a_usage_error_that_names_the_option(loaded, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circle.json").symlink_to("circle.json")
    with pytest.raises(UsageError, match=line.split()[0]):
        loaded.run_line_magic("gpumem", line)


def test_a_wrong_device_lists_the_right_ones(loaded):
    with pytest.raises(UsageError, match="A100-80GB"):
        loaded.run_line_magic("gpumem", "--device T1000x")


def test_a_cell_is_measured_on_one_device(loaded):
    with pytest.raises(UsageError, match="%%gpucheck --gpu predicts for several"):
        gpumem(loaded, "--device T4,L4")


def test_a_file_that_is_not_there_is_named(loaded):
    with pytest.raises(UsageError, match=r"--load: nowhere\.json: No such file or directory$"):
        gpumem(loaded, "--load nowhere.json")


def test_the_device_can_be_chosen_and_the_old_one_is_closed(loaded, source):
    run(loaded, "%gpumem --device A100-80GB")
    assert source.calls == ["enter", "leave", "close", "enter", "leave"]
    _, text = gpumem(loaded, "--device")
    assert "Fake GPU" in text
    source.calls.clear()
    run(loaded, "%%gpumem --device H200\nx = 1")
    assert source.calls == ["enter", "leave", "close", "enter", "start", "stop", "leave"]
    settings = loaded.magics_manager.registry["GpuMemMagics"].settings
    assert settings.device == "H200"


def test_the_device_stays_while_a_cell_is_measured(loaded, source):
    result, _ = run(loaded, "%%gpumem\n%gpumem --device L4")
    assert isinstance(result.error_in_exec, UsageError)
    assert source.calls == ["enter", "start", "stop", "leave"]
    assert loaded.magics_manager.registry["GpuMemMagics"].settings.device == "auto"


def test_a_device_that_does_not_start_leaves_the_old_one(loaded, source, monkeypatch):
    def choose(name):
        if name == "H200":
            raise RuntimeError("no such luck")
        return source

    monkeypatch.setattr("gpumem_magic.magics.monitor.choose_source", choose)
    result, _ = run(loaded, "%gpumem --device H200")
    assert "no such luck" in str(result.error_in_exec)
    assert source.calls == ["enter", "leave", "close", "enter", "leave"]
    assert loaded.magics_manager.registry["GpuMemMagics"].settings.device == "auto"
    assert run(loaded, "%%gpumem -q\n3")[0].result == 3
    assert len(history(loaded)) == 1


def test_off_runs_a_marked_cell_and_says_why_it_is_not_measured(shell):
    with capture_output():
        shell.run_line_magic("load_ext", "gpumem_magic")
        shell.run_line_magic("gpumem", "--device off")
    result, shown = run(shell, "%%gpumem\n4")
    assert result.result == 4
    assert "not measured" in shown.stderr
    assert "--device auto" in shown.stderr


@pytest.mark.parametrize(
    "cell",
    [
        'torch.ones(2, device="cuda")',
        "torch.nn.Linear(2, 2).cuda()",
        "torch.cuda.get_device_name()",
        'torch.Generator("cuda")',
        "torch.cuda.Stream()",
    ],
)
def test_who_uses_a_device_that_is_off_is_told_how_to_turn_it_on(shell, cell):
    pytest.importorskip("torch")
    for before in ('torch.ones(2, device="cuda")', "%gpumem --device off"):
        run(shell, f"import torch\n%load_ext gpumem_magic\n{before}")
    result, shown = run(shell, cell)
    assert result.error_in_exec
    assert shown.stderr.count("%gpumem --device auto brings the virtual GPU back") == 1
    of_another_kind = run(shell, "torch.ones(2) + torch.ones(3)")
    assert not of_another_kind[1].stderr


@pytest.mark.parametrize("mark", ["", "%%gpumem\n"])
def test_who_runs_triton_without_a_driver_is_told_what_can_be_done(shell, mark):
    pytest.importorskip("torch")
    run(shell, "%load_ext gpumem_magic")
    told = "Triton's kernels run on a real GPU only"
    for text in ("libcuda.so cannot found!", "0 active drivers ([]). There should only be one."):
        assert told in run(shell, f"{mark}raise AssertionError({text!r})")[1].stderr
    assert told not in run(shell, f"{mark}raise AssertionError('another')")[1].stderr


def test_settings_are_listed_with_help_and_can_be_set(loaded, source):
    with capture_output() as shown:
        loaded.run_line_magic("config", "GpuMem")
    for name in ("device", "every_cell", "plot", "progress", "interval"):
        assert f"GpuMem.{name}=" in shown.stdout
    loaded.run_line_magic("config", "GpuMem.interval = 0.5")
    loaded.run_line_magic("config", "GpuMem.every_cell = True")
    run(loaded, "x = 1")
    assert len(history(loaded)) == 1
    assert loaded.magics_manager.registry["GpuMemMagics"].settings.interval == 0.5


def test_a_wrong_device_in_the_settings_is_refused(loaded):
    from traitlets import TraitError

    settings = loaded.magics_manager.registry["GpuMemMagics"].settings
    with pytest.raises(TraitError, match="A100-80GB"):
        settings.device = "T1000x"
    assert settings.device == "auto"


@pytest.mark.parametrize(
    ("text", "offered", "withheld"),
    [
        ("%%gpumem --", "--name", "--history"),
        ("%gpumem --", "--history", None),
        ("%%gpumem --na", "--name", None),
        ("%gpumem --device A10", "A100-80GB", None),
        ("%%gpumem --device ", "T4", "--name"),
    ],
)
def test_options_and_devices_complete(loaded, text, offered, withheld):
    _, matches = loaded.complete(None, text, len(text))
    assert offered in [match.split()[-1] for match in matches]
    assert withheld not in matches


def test_code_after_the_options_completes_as_code(loaded):
    loaded.user_ns["my_long_name"] = 1
    text = "%gpumem my_long"
    assert "my_long_name" in loaded.complete(None, text, len(text))[1]
    text = "%gpumem -q my_long_name.bit_le"
    assert "my_long_name.bit_length" in loaded.complete(None, text, len(text))[1]


def test_loading_twice_hooks_once(loaded, source):
    from gpumem_magic import load_ipython_extension

    load_ipython_extension(loaded)
    run(loaded, "%%gpumem\nx = 1")
    assert source.calls == ["enter", "start", "stop", "leave"]


def test_reload_starts_afresh_and_unload_ends_it(loaded, source):
    run(loaded, "%reload_ext gpumem_magic")
    assert source.calls == ["enter", "leave", "close", "enter", "leave"]
    run(loaded, "%%gpumem\nx = 1")
    assert len(history(loaded)) == 1
    source.calls.clear()
    run(loaded, "%unload_ext gpumem_magic")
    assert source.calls == ["enter", "leave", "close"]
    result, _ = run(loaded, "%%gpumem\nx = 1")
    assert not result.success


def test_the_cell_that_loads_the_extension_is_inside_the_device_at_once(shell, source):
    run(shell, "%load_ext gpumem_magic\nx = 1")
    assert source.calls == ["enter", "leave"]


def test_without_torch_it_loads_and_says_so(shell, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with capture_output() as shown:
        shell.run_line_magic("load_ext", "gpumem_magic")
    assert "install torch" in shown.stderr
    result, shown = run(shell, "%%gpumem\n5")
    assert result.result == 5
    assert "install torch" in shown.stderr


def test_a_loaded_report_is_counted(loaded, tmp_path):
    run(loaded, "%%gpumem -q\n1")
    gpumem(loaded, f"--save {tmp_path}/r.json")
    _, text = gpumem(loaded, f"--load {tmp_path}/r.json")
    assert text.startswith("loaded 1 report from")


def test_lines_are_taken_as_they_are_written(loaded):
    run(loaded, "x = 1")
    run(loaded, "%gpumem -q s = {x}")
    assert loaded.user_ns["s"] == {1}
    run(loaded, "%gpumem -q t = '{x} $x'")
    assert loaded.user_ns["t"] == "{x} $x"
    run(loaded, "%%gpumem -q --name {x}$x\nx")
    assert history(loaded).reports[-1].name == "{x}$x"


@pytest.mark.parametrize(
    "cell",
    [
        "%gpucheck --explain CUDA out of memory {hit()}",
        "%gpucheck {hit()}",
        "%gpucheck z = {hit()}",
        "%%gpucheck --name {hit()}\nz = 1",
        "%%gpucheck --explain {hit()}\nCUDA out of memory {hit()}",
    ],
)
def test_no_text_after_gpucheck_is_run(loaded, cell):
    hits = []
    loaded.user_ns["hit"] = lambda: hits.append(1)
    run(loaded, cell)
    assert hits == []


def test_a_file_with_numbers_that_cannot_be_is_refused_by_field(loaded, tmp_path):
    run(loaded, "%%gpumem -q\n1")
    gpumem(loaded, f"--save {tmp_path}/r.json")
    text = (tmp_path / "r.json").read_text()
    (tmp_path / "r.json").write_text(text.replace('"seconds": 0.5', '"seconds": Infinity'))
    with pytest.raises(UsageError, match=r"--load: .*report\.seconds is inf"):
        loaded.run_line_magic("gpumem", f"--load {tmp_path}/r.json")
    assert "In[1]" in gpumem(loaded, "--history")[1]


@pytest.mark.parametrize("magic", ["gpumem", "gpucheck"])
def test_help_fits_a_terminal(loaded, magic, capsys):
    loaded.run_line_magic(magic, "--help")
    said = capsys.readouterr().out
    assert "--help" in said
    assert all(len(row) <= 80 for row in said.splitlines())


def test_an_option_of_the_other_magic_is_told(loaded):
    with pytest.raises(UsageError, match="an option of gpucheck: %%gpucheck --fit NAME"):
        loaded.run_cell_magic("gpumem", "--fit n", "n = 1")
    with pytest.raises(UsageError, match=r"an option of gpucheck: %gpucheck --free$"):
        loaded.run_line_magic("gpumem", "--free")


def test_an_option_without_its_dashes_is_told(loaded):
    with pytest.raises(UsageError, match="did you mean --history"):
        loaded.run_line_magic("gpumem", "history")
    loaded.user_ns["history"] = 1
    assert loaded.run_line_magic("gpumem", "history") == 1


def test_code_measured_between_cells_leaves_no_device_behind(loaded):
    loaded.run_line_magic("gpumem", "1 + 1")
    assert ACTIVE.get() is None
