"""A measured cell runs as IPython runs it without us, and its Report is there whatever happens."""

from __future__ import annotations

import inspect
import traceback

import pytest
from IPython.utils.capture import capture_output


@pytest.fixture
def run(shell, source):
    """Run cells in a shell with the extension; gives the result and what was shown."""
    with capture_output():
        shell.run_line_magic("load_ext", "gpumem_magic")
    source.calls.clear()

    def run(cell, **how):
        with capture_output() as shown:
            result = shell.run_cell(cell, store_history=True, **how)
        return result, shown

    return run


def reports(shell):
    return list(shell.magics_manager.registry["GpuMemMagics"].monitor.history)


def test_a_marked_cell_keeps_its_result_and_shows_a_report(run, shell, source):
    result, shown = run("%%gpumem\nx = 20\nx + 1")
    assert result.success
    assert result.result == 21
    assert shell.user_ns["Out"][result.execution_count] == 21
    assert source.calls == ["enter", "start", "stop", "leave"]
    report = reports(shell)[0]
    assert report.peak.allocated == 3 << 20
    assert report.name == f"In[{result.execution_count}]"
    assert "3.00 MiB" in shown.outputs[-1].data["text/plain"]


def test_a_cell_without_the_mark_is_only_entered_and_left(run, shell, source):
    result, _ = run("x = 20\nx + 1")
    assert result.result == 21
    assert source.calls == ["enter", "leave"]
    assert reports(shell) == []


def test_a_traceback_has_the_line_and_source_that_the_user_sees(run, shell, source):
    result, shown = run("%%gpumem --name broken\n\na = 1\n\n1 / 0  # here")
    assert not result.success
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    frame = traceback.extract_tb(result.error_in_exec.__traceback__)[-1]
    assert (frame.lineno, frame.line) == (5, "1 / 0  # here")
    assert "1 / 0  # here" in shown.stdout
    assert isinstance(source.errors[0], ZeroDivisionError)
    assert reports(shell)[0].error == "ZeroDivisionError"


@pytest.mark.parametrize("above", ["", "\n", "\n  \n"])
def test_a_cell_may_be_indented_as_without_the_mark(run, above):
    # WHEN code is copied out of a function, with its indentation
    result, _ = run(f"%%gpumem\n{above}    x = 20\n    x + 1")
    # THEN it runs, and another magic below the mark is still the first line
    assert result.result == 21
    assert run(f"%%gpumem\n{above}    %%time\n    x + 2")[0].result == 22


def test_the_cell_is_found_by_the_file_name_of_its_frames(run, shell, source):
    run("%%gpumem\nimport sys\nname = sys._getframe().f_code.co_filename")
    assert source.cells[0].filename == shell.user_ns["name"]
    assert source.cells[0].source.splitlines()[2].startswith("name =")


@pytest.mark.parametrize("cell", ["%%gpumem\nx =", "%%gpumem\nreturn 1"])
def test_a_cell_that_does_not_compile_fails_as_ever(run, shell, source, cell):
    result, shown = run(cell)
    assert isinstance(result.error_before_exec, SyntaxError)
    assert "SyntaxError" in shown.stdout + shown.stderr
    assert source.calls == ["enter", "start", "stop", "leave"]


def test_an_interrupt_ends_the_cell_and_the_measurement(run, shell, source):
    result, _ = run("%%gpumem\nraise KeyboardInterrupt")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert source.calls == ["enter", "start", "stop", "leave"]
    assert len(reports(shell)) == 1
    assert run("1 + 1")[0].result == 2


def test_shell_commands_run_in_a_measured_cell(run):
    result, _ = run("%%gpumem\nfrom_shell = !echo one two\nfrom_shell[0].split()")
    assert result.result == ["one", "two"]


def test_await_works_at_the_top_of_a_measured_cell(run, source):
    result, _ = run("%%gpumem\nimport asyncio\nawait asyncio.sleep(0, 'woke')")
    assert result.result == "woke"
    assert source.calls == ["enter", "start", "stop", "leave"]


def test_time_below_the_mark_times_the_body(run, shell, source):
    result, shown = run("%%gpumem\n%%time\ny = 5\ny * 2")
    assert result.result == 10
    assert "Wall time" in shown.stdout
    assert source.calls == ["enter", "start", "stop", "leave"]
    assert source.cells[0].source == "%%gpumem\n%%time\ny = 5\ny * 2"


@pytest.mark.parametrize("gap", ["", "\n", "   \n\n"])
def test_blank_lines_may_stand_before_the_next_magic(run, gap):
    result, shown = run(f"%%gpumem\n{gap}%%time\n7")
    assert result.result == 7
    assert "Wall time" in shown.stdout


def test_other_cell_magics_work_below_the_mark(run, shell):
    run("%%gpumem\n%%capture caught\nprint('kept')")
    assert shell.user_ns["caught"].stdout == "kept\n"
    run("%%gpumem\n%%bash --out text\necho from bash")
    assert shell.user_ns["text"] == "from bash\n"


@pytest.mark.parametrize("above", ["%%time", "%%capture caught", "%%timeit -n1 -r1"])
def test_the_mark_works_below_other_magics(run, shell, source, above):
    run(f"{above}\n%%gpumem --name inner\nz = [1,\n     2]\nz")
    assert [report.name for report in reports(shell)] == ["inner"]
    assert source.calls == ["enter", "start", "stop", "leave"]
    if "timeit" not in above:
        assert shell.user_ns["z"] == [1, 2]


def test_an_error_below_another_magic_is_the_cells_error(run, shell, source):
    result, _ = run("%%time\n%%gpumem\n\nx = 1\nx / 0")
    if result.error_in_exec is not None:  # IPython 7's %%time only prints it
        last = traceback.extract_tb(result.error_in_exec.__traceback__)[-1]
        assert last.lineno == 4  # as the Report counts: %%gpumem is line 1
    assert isinstance(source.errors[0], ZeroDivisionError)


def test_multi_line_strings_stay_as_they_are(run):
    text = "a\n  b\n\n    %%gpumem\n!ls\n"
    result, _ = run(f'%%gpumem\ns = """{text}"""\ns')
    assert result.result == text


def test_a_semicolon_silences_the_value(run, shell):
    _, shown = run("%%gpumem -q\n12345;")
    assert "12345" not in shown.stdout
    assert shown.outputs == []


def test_a_line_alone_below_the_mark_is_read_as_one_that_is_alone(run, shell):
    # GIVEN that IPython knows magics without % on cells of one line
    shell.run_line_magic("automagic", "1")
    assert run("%%gpumem -q\nwho_ls complex")[0].result == []
    assert not run("%%gpumem -q\nx = 1\nwho_ls complex")[0].success


def test_leading_blank_lines_and_indentation_do_not_hide_the_mark(run, source):
    result, _ = run("\n\n   %%gpumem\n   x = 3\n   x")
    assert result.result == 3
    assert source.calls == ["enter", "start", "stop", "leave"]
    assert source.cells[0].source.splitlines()[2].strip() == "x"


def test_a_cell_without_code_is_measured_too(run, source):
    result, _ = run("%%gpumem")
    assert result.success
    assert source.calls == ["enter", "start", "stop", "leave"]


def test_a_nested_cell_belongs_to_the_outermost_one(run, shell, source):
    nested = "%%gpumem\nget_ipython().run_cell('inner = 8')\nget_ipython().run_cell('')\ninner"
    result, _ = run(nested)
    assert shell.user_ns["Out"][result.execution_count] == 8
    assert source.calls == ["enter", "start", "stop", "leave"]
    run("%%gpumem\nget_ipython().run_cell('%%gpumem\\nagain = 9')\nagain")
    assert shell.user_ns["again"] == 9
    assert len(reports(shell)) == 2


def skip_the_end_of(run, shell, cell):
    """Run a cell whose end is told to nobody, as where something breaks out of IPython's loop."""
    ended, shell.events.callbacks["post_run_cell"] = shell.events.callbacks["post_run_cell"], []
    try:
        run(cell)
    finally:
        shell.events.callbacks["post_run_cell"] = ended


@pytest.mark.parametrize("cell", ["1", "%%gpumem -q\n1"])
def test_a_cell_whose_end_was_not_told_does_not_keep_the_next_from_being_measured(
    run, shell, source, cell
):
    skip_the_end_of(run, shell, cell)
    begun = source.calls.count("start")
    result, _ = run("%%gpumem -q -o r\n2")
    assert result.result == 2
    assert source.calls[-2:] == ["stop", "leave"]
    assert source.calls.count("start") == begun + 1
    assert shell.user_ns["r"].cell.source == "%%gpumem -q -o r\n2"


def test_an_inner_cell_whose_end_was_not_told_is_not_taken_for_the_outer_one(run, shell, source):
    shell.user_ns["inner"] = lambda: skip_the_end_of(shell.run_cell, shell, "1")
    run("%%gpumem -q -o r\ninner()")
    assert shell.user_ns["r"].cell.source == "%%gpumem -q -o r\ninner()"
    assert source.calls[-1] == "leave"


def test_nested_cells_stay_inside_the_device(run, source):
    run("get_ipython().run_cell('1')\nget_ipython().run_cell('')\nx = 1")
    assert source.calls == ["enter", "leave"]


def test_a_silent_cell_and_a_widgets_callback_are_inside_the_device(run, shell, source):
    shell.run_cell("x = 1", silent=True)
    shell.events.trigger("pre_execute")
    shell.events.trigger("post_execute")
    assert source.calls == ["enter", "leave", "enter", "leave"]


def test_history_can_be_left_alone(shell, run, source):
    with capture_output():
        result = shell.run_cell("%%gpumem\n3", store_history=False)
    assert result.result == 3
    assert source.calls == ["enter", "start", "stop", "leave"]


def test_quiet_shows_nothing_and_stores_the_report(run, shell):
    _, shown = run("%%gpumem -q -o held --name 'two words'\nx = 1")
    assert (shown.stdout, shown.stderr, shown.outputs) == ("", "", [])
    assert shell.user_ns["held"].name == "two words"


def test_save_writes_the_report(run, tmp_path):
    path = tmp_path / "report.json"
    run(f"%%gpumem -q --save {path}\nx = 1")
    assert '"peak"' in path.read_text()
    _, shown = run("%%gpumem --save /nowhere/report.json\nx = 1")
    assert "saving to /nowhere/report.json failed" in shown.stderr
    assert len(shown.outputs) == 1


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--nmae x", "--nmae"),
        ("--name", "--name"),
        ("-o 1x", "1x"),
        ("--save notes.doc", "notes.doc"),
        ("--device T1000x", "T1000x"),
        ("--history", "--history"),
        ("x = 1", "x = 1"),
        ("--name 'open", "'open"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_runs(run, shell, source, line, named):
    result, _ = run(f"%%gpumem {line}\nran = True")
    assert type(result.error_in_exec).__name__ == "UsageError"
    assert named in str(result.error_in_exec)
    assert "ran" not in shell.user_ns
    assert "start" not in source.calls


def test_help_documents_every_option(run, shell):
    text = inspect.getdoc(shell.find_cell_magic("gpumem"))
    assert "\n%%gpumem [options]" in text
    assert "\n  --name NAME" in text  # below the forms, indented
    for flag in ("--name", "--device", "--quiet", "-o", "--save", "--no-plot", "--compare"):
        assert flag in text
    result, _ = run("%%gpumem?")
    assert result.success


@pytest.mark.parametrize("call", ["enter", "start", "stop", "leave"])
def test_an_error_of_ours_is_one_line_and_the_result_stands(run, source, call):
    source.fail_on = call
    result, shown = run("%%gpumem\n6 * 7")
    source.fail_on = ""
    assert result.success
    assert result.result == 42
    assert f"{call} does not work" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1
    assert "Traceback" not in shown.stdout + shown.stderr
    assert run("%%gpumem\n1")[0].result == 1


def test_the_error_is_not_kept_alive_by_us(run, shell, source):
    import gc
    import sys
    import weakref

    class Big:
        pass

    shell.user_ns["Big"] = Big
    shell.user_ns["weak"] = weakref.ref
    run("%%gpumem\ndef f():\n    big = Big()\n    globals()['ref'] = weak(big)\n    1 / 0\nf()")
    assert shell.user_ns["ref"]() is not None
    source.errors.clear()
    shell.InteractiveTB.tb = None
    shell.last_execution_result = None
    for name in ("last_value", "last_traceback", "last_exc", "last_type"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    assert shell.user_ns["ref"]() is None


def test_functions_of_other_cells_are_known_by_the_names_of_their_frames(shell, source):
    where = "\n    import sys\n    return sys._getframe().f_code.co_filename\n"
    with capture_output():
        shell.run_cell(f"def before():{where}", store_history=True)
        shell.run_cell("%load_ext gpumem_magic", store_history=True)
        shell.run_cell(f"def after():{where}", store_history=True)
        shell.run_cell("%%gpumem\nfiles = before(), after()", store_history=True)
    found = [source.others[name] for name in shell.user_ns["files"]]
    assert [cell.number for cell in found] == [1, 3]
    assert [cell.source[:10] for cell in found] == ["def before", "def after("]
