"""%%gpucheck in a fresh shell: what it hands to the dry run, what it shows, stores and refuses.

The dry runs themselves are played by a fake; test_magics_gpucheck_live.py has real ones."""

from __future__ import annotations

import json
import linecache
import sys
import time
from dataclasses import replace

import pytest
from IPython.core.error import UsageError
from IPython.utils.capture import capture_output

from gpumem_magic.magics import display
from gpumem_magic.measure import finish
from gpumem_magic.values.forecast import Fit, Fits, Forecast
from gpumem_magic.values.report import Report
from gpumem_magic.virtual.catalog import lookup


class DryRuns:
    """Stands for predicting and fitting: keeps what it is asked, and makes up reports."""

    def __init__(self, source):
        self.source = source
        self.asked = []
        self.scenarios = []
        self.error = None
        self.output = ""
        self.during = lambda: None

    def predicting(self, scenario, name, ignore):
        self.ignored = ignore
        self.note(scenario, name)
        return self.report(scenario.cell, scenario.gpu, name)
        yield  # as the real one, which asks for a dry run

    def fitting(self, scenario, name, accumulate=None):
        self.note(scenario, name)
        reports = (self.report(scenario.cell, scenario.gpu, each) for each in "ab")
        return Fit(name, 96, *reports, 7)
        yield

    def note(self, scenario, name):
        self.scenarios.append(scenario)
        cell, code, names = scenario.cell, scenario.cell.python, scenario.namespace
        steps = scenario.optimizer_steps
        self.asked.append((cell, code, names, scenario.gpu, scenario.cells, steps, name))
        self.during()
        if self.error is not None:
            raise self.error

    def report(self, cell, gpu, name):
        report = finish(self.source, cell, {}, None, name)[0].report
        card = lookup(gpu or "T4")
        device = replace(report.device, name=card.name, total=card.total)
        return replace(report, device=device, predicted=True, output=self.output)


@pytest.fixture
def dry(source, monkeypatch):
    fake = DryRuns(source)
    for name in ("predicting", "fitting"):
        monkeypatch.setattr(f"gpumem_magic.magics.predictions.{name}", getattr(fake, name))
    return fake


@pytest.fixture
def run(shell, dry):
    """Run cells in a shell with the extension; gives the result and all text that was shown."""
    with capture_output():
        shell.run_line_magic("load_ext", "gpumem_magic")

    def run(cell):
        with capture_output() as shown:
            result = shell.run_cell(cell, store_history=True)
        texts = [output.data["text/plain"] for output in shown.outputs]
        return result, shown.stdout + shown.stderr + "".join(texts)

    return run


def monitor(shell):
    return shell.magics_manager.registry["GpuMemMagics"].monitor


def test_the_cell_goes_to_the_dry_run_and_is_not_run(run, shell, dry):
    count = shell.execution_count
    result, text = run("%%gpucheck --gpu T4\nx = 5\n\ny = !ls\n")
    assert result.success
    assert result.result is None
    assert "x" not in shell.user_ns
    # THEN it is there as typed and as Python, both with the lines that the user sees
    ((cell, code, namespace, gpu, _, steps, name),) = dry.asked
    assert cell.source == "%%gpucheck --gpu T4\nx = 5\n\ny = !ls\n"
    lines = code.splitlines()
    assert lines[:3] == ["", "x = 5", ""]
    assert "getoutput" in lines[3]
    assert linecache.getline(cell.filename, 2) == "x = 5\n"
    assert namespace is shell.user_ns
    assert (gpu, steps, name, cell.number) == ("T4", None, f"In[{count}]", count)
    # AND the shell has seen one cell
    assert shell.execution_count == count + 1
    assert shell.history_manager.input_hist_raw[-1] == "%%gpucheck --gpu T4\nx = 5\n\ny = !ls"
    assert len(shell.history_manager.input_hist_raw) == count + 1
    assert text.startswith(f"In[{count}] · Fits: ")
    assert "predicted for Tesla T4" in text
    assert len(monitor(shell).history) == 0


def test_without_a_card_it_is_the_one_in_use(run, dry):
    run("%%gpucheck\n1")
    assert dry.asked[0][3] is None


@pytest.mark.parametrize(
    "options",
    ["--gpu T4 --gpu A100-80GB --gpu 24GiB", "--gpu T4,A100-80GB,24GiB", "--gpu=T4,a100-80gb,24GiB",
     '--gpu "T4, A100-80GB" --gpu tesla-t4,24GiB'],
)  # fmt: skip
def test_several_cards_make_a_table_in_the_order_asked_for(run, shell, dry, options):
    result, text = run(f"%%gpucheck {options} -o cards\nx = 1")
    assert result.success
    cards = shell.user_ns["cards"]
    assert isinstance(cards, Forecast)
    names = [report.device.name for report in cards.reports]
    assert names == ["Tesla T4", "NVIDIA A100-SXM4-80GB", "24GiB GPU"]
    places = [text.index(f"\n  {name}  ") for name in names]
    assert places == sorted(places)
    assert "predicted: fits all of 3 cards" in text


def test_options_reach_the_dry_run_the_report_and_the_file(run, shell, dry, tmp_path):
    path = tmp_path / "r.json"
    run(f"%%gpucheck --optimizer-steps 2 --name mine -o r --save {path} --gpu L4\nx = 1")
    assert dry.asked[0][3:] == ("L4", dry.asked[0][4], 2, "mine")
    assert isinstance(shell.user_ns["r"], Report)
    assert shell.user_ns["r"].name == "mine"
    assert Report.from_dict(json.loads(path.read_text())) == shell.user_ns["r"]


@pytest.mark.parametrize("suffix", ["json", "csv", "html", "txt", "png", "svg"])
@pytest.mark.parametrize("options", ["--gpu T4,L4", "--fit n", "--fit n --gpu T4,L4"])
def test_tables_and_fits_are_saved_in_every_form(run, dry, tmp_path, suffix, options):
    path = tmp_path / f"r.{suffix}"
    result, text = run(f"%%gpucheck {options} --save {path}\nn = 1")
    assert result.success, text
    assert path.stat().st_size > 100
    if suffix == "json":
        data = json.loads(path.read_text())
        count = (2 if "--fit" in options else 1) * (2 if "," in options else 1)
        assert len([Report.from_dict(report) for report in data["reports"]]) == count
        fits = data.get("fits", [])
        assert [fit["value"] for fit in fits] == [96] * (count // 2) * ("--fit" in options)


def test_the_largest_value(run, shell, dry):
    _, text = run("%%gpucheck --fit batch_size -o found\nbatch_size = 4")
    assert isinstance(shell.user_ns["found"], Fit)
    assert dry.asked[0][-1] == "batch_size"
    assert "The largest batch_size that fits Tesla T4 (14.74 GiB) is 96" in text
    assert "7 dry runs" in text
    _, text = run("%%gpucheck --fit batch_size --gpu L4,T4 -o found\nbatch_size = 4")
    assert isinstance(shell.user_ns["found"], Fits)
    assert [fit.value for fit in shell.user_ns["found"].fits] == [96, 96]
    assert text.index("NVIDIA L4 (22.03 GiB) is 96") < text.index("Tesla T4 (14.74 GiB) is 96")


def test_a_name_that_cannot_be_fitted_is_a_usage_error_with_the_reason(run, dry):
    dry.error = ValueError("the cell does not assign it, and there is none in the notebook")
    result, text = run("%%gpucheck --fit nothing\nx = 1")
    assert isinstance(result.error_in_exec, UsageError)
    assert "UsageError: %%gpucheck: --fit nothing: the cell does not assign it" in text


def test_a_statement_is_predicted_and_not_run(run, shell, dry):
    result, text = run("%gpucheck --gpu T4 x = f(2)")
    assert result.result is None
    assert "x" not in shell.user_ns
    cell, code, *_, name = dry.asked[0]
    assert (cell.source, code.strip(), name) == ("x = f(2)", "x = f(2)", "x = f(2)")
    assert text.startswith("x = f(2) · Fits: ")


def test_a_lone_name_behind_an_option_of_predictions_is_a_statement(run, shell, dry):
    shell.user_ns["x"] = 1
    run("%gpucheck --gpu T4 x")
    assert dry.asked[0][0].source == "x"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--gpu T1000x", "A100-80GB"),
        ("--gpu T4,T1000x", "T1000x"),
        ("--gpu auto", "unknown card 'auto'"),
        ("--gpu A100", "more than one card"),
        ("--gpu cuda:7", "cuda:7 is not here"),
        ("--gpu", "--gpu needs GPU"),
        ("--device", "--device needs GPU"),
        ("--gpu T4,", "commas and without spaces: T4,L4"),
        ("--fit 3x", "not a variable name"),
        ("--fit if", "not a variable name"),
        ("--optimizer-steps 0", "whole number from 1"),
        ("--optimizer-steps some", "whole number from 1"),
        ("-o a.b", "-o a.b: not a variable name"),
        ("--save x.pdf", "must end in one of .json"),
        ("--gpus T4", "did you mean --gpu?"),
        ("T4", "'T4' is not an option"),
        ("--device T1000x", "--device T1000x"),
        ("--colour T4", "the options are"),
        ("--pannel", "the options are"),
        ("--advice", "did you mean --advise?"),
    ],
)
def test_a_wrong_option_is_a_usage_error_before_anything_runs(run, dry, line, said):
    result, text = run(f"%%gpucheck {line}\nx = 1")
    assert isinstance(result.error_in_exec, UsageError)
    assert said in str(result.error_in_exec)
    assert "Traceback" not in text
    assert dry.asked == []


def test_a_card_is_asked_for_with_either_word(run, dry):
    run("%%gpucheck --device T4\nx = 1")
    assert dry.asked[0][3] == "T4"


def test_an_unknown_rule_is_not_taken_for_an_error_text(run):
    result, _ = run("%gpucheck --explain no-such-thing-at-all")
    assert "no rule no-such-thing-at-all; the rules are " in str(result.error_in_exec)


def test_options_without_code_say_what_is_missing(run):
    result, _ = run("%gpucheck --gpu T4")
    assert "needs a statement after it, or a cell" in str(result.error_in_exec)


@pytest.mark.parametrize(
    ("code", "line", "source"), [("x = 1\ny = (", 3, "y = ("), ("x = 1\n%time\nz =", 4, "z =")]
)
def test_a_syntax_error_is_shown_as_ipython_shows_one(run, dry, code, line, source):
    result, text = run(f"%%gpucheck\n{code}")
    assert isinstance(result.error_in_exec, SyntaxError)
    assert result.error_in_exec.lineno == line
    assert source in text
    assert "gpumem_magic" not in text
    assert "run_cell_magic" not in text
    assert dry.asked == []


def test_an_error_of_ours_does_not_look_like_one_of_the_cell(run, dry):
    dry.error = TypeError("wrong inside\nand more")
    result, text = run("%%gpucheck\nx = 1")
    error = result.error_in_exec
    assert isinstance(error, UsageError)
    assert "a defect of gpumem_magic, not of your code: TypeError: wrong inside (" in text
    assert "Traceback" not in text
    # AND it holds on to nothing that the dry run had
    assert error.__context__ is None
    assert error.__cause__ is None


def test_an_answer_that_cannot_be_shown_is_kept_and_one_line_tells(run, shell, dry, monkeypatch):
    def show(*args):
        raise ZeroDivisionError("no font")

    monkeypatch.setattr("gpumem_magic.magics.monitor.show_report", show)
    result, text = run("%%gpucheck -o r\nx = 1")
    assert result.success
    assert isinstance(shell.user_ns["r"], Report)
    assert "showing the answer failed, your code is not affected: ZeroDivisionError" in text


def test_an_interrupt_while_the_answer_is_shown_is_told_in_one_line(run, shell, dry, monkeypatch):
    def show(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpumem_magic.magics.monitor.show_report", show)
    result, text = run("%%gpucheck -o r\nx = 1")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert isinstance(shell.user_ns["r"], Report)
    assert "Traceback" not in text
    assert text.count("showing the answer was interrupted, your code is not affected") == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TypeError("x"), UsageError("x")])
def test_whatever_ends_it_the_next_cell_is_as_before(run, shell, dry, source, error):
    dry.error = error
    result, _ = run("%%gpucheck -o r\nx = 1")
    kind = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else UsageError
    assert isinstance(result.error_in_exec, kind)
    assert "r" not in shell.user_ns
    assert not monitor(shell).measuring
    assert not monitor(shell).predicting
    run("%%gpumem\nx = 1")
    assert len(monitor(shell).history) == 1


@pytest.mark.parametrize("gap", ["", "\n", "  \n\n"])
def test_a_mark_below_it_is_taken_off(run, shell, dry, gap):
    run(f"%%gpucheck\n{gap}%%gpumem --name a\n    x = 1\n    y = 2")
    cell, code, *_ = dry.asked[0]
    rows = cell.source.splitlines()
    assert [row.strip() for row in rows[-2:]] == ["x = 1", "y = 2"]
    assert code.rstrip("\n").splitlines() == [""] * (len(rows) - 2) + ["x = 1", "y = 2"]
    assert len(monitor(shell).history) == 0


def test_another_magic_below_it_keeps_its_line(run, dry):
    run("%%gpucheck\n%%gpumem\n\n%%time\nx = 1")
    assert dry.asked[0][1].splitlines()[:3] == ["", "", ""]
    assert "run_cell_magic('time'" in dry.asked[0][1].splitlines()[3]


def test_a_wrong_option_of_a_mark_below_it_is_told(run, dry):
    result, _ = run("%%gpucheck\n%%gpumem --nam a\nx = 1")
    assert "did you mean --name?" in str(result.error_in_exec)
    assert dry.asked == []


def test_our_magics_in_a_predicted_cell_change_nothing(run, shell, dry):
    run("%%gpumem -q\n1")
    before = len(dry.source.cells)
    shell.user_ns["kept"] = []

    def cell_runs():
        shell.run_line_magic("gpumem", "--reset")
        shell.run_line_magic("gpumem", "-q kept.append(1)")
        shell.run_cell_magic("gpumem", "", "kept.append(2)")
        shell.run_cell_magic("gpucheck", "", "kept.append(3)")

    dry.during = cell_runs
    assert run("%%gpucheck\nx")[0].success
    assert len(monitor(shell).history) == 1
    assert shell.user_ns["kept"] == [1, 2]
    assert len(dry.asked) == 1
    assert len(dry.source.cells) == before + 1  # the fake's own report


def test_measuring_every_cell_leaves_predictions_alone(run, shell):
    run("%gpumem --on")
    run("%%gpucheck\nx = 1")
    run("%gpucheck x = 1")
    assert len(monitor(shell).history) == 0
    run("%gpumem --off")


def test_called_as_a_function_it_works_without_a_cell(run, shell, dry):
    with capture_output() as shown:
        shell.run_cell_magic("gpucheck", "--gpu T4", "x = 1")
    assert dry.asked[0][0].number is None
    assert shown.outputs[0].data["text/plain"].startswith("cell · Fits: ")


def test_the_output_of_the_dry_run_is_not_shown_but_told(run, dry):
    dry.output = "one\ntwo\n"
    _, text = run("%%gpucheck\nx = 1")
    assert "2 lines of output of the dry run: in report.output" in text
    assert "two" not in text


def test_a_file_that_cannot_be_written_does_not_hide_the_prediction(run, dry):
    result, text = run("%%gpucheck --save /no/such/folder/r.json\nx = 1")
    assert result.success
    assert "saving to /no/such/folder/r.json failed" in text
    assert "Fits: " in text


def test_progress_is_one_line_that_goes_away(run, shell, dry, monkeypatch):
    monkeypatch.setattr(display, "DELAY", 0.0)
    monkeypatch.setattr(display, "SHORTEST", 0.01)
    sent = []

    class Publisher:
        def publish(self, data, *, transient, update):
            sent.append(data["text/plain"])

    def wait():
        while not any("for 2 cards" in text for text in sent):
            time.sleep(0.01)

    dry.during = wait
    monitor(shell).settings.interval = 0
    monkeypatch.setattr(shell, "kernel", object(), raising=False)
    monkeypatch.setattr(shell, "display_pub", Publisher())
    monkeypatch.setattr("gpumem_magic.magics.gpucheck.show_text", lambda shell, found: None)
    shell.run_line_magic("gpucheck", "--gpu T4,L4 --fit n n = 1")
    assert "0 s · looking for the largest n for 2 cards" in sent
    assert sent[-1] == ""


def test_without_torch_it_says_so(shell, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with capture_output():
        shell.run_line_magic("load_ext", "gpumem_magic")
    with capture_output() as shown:
        result = shell.run_cell("%%gpucheck --gpu T4\nx = 1")
    assert isinstance(result.error_in_exec, UsageError)
    assert "install torch" in shown.stdout + shown.stderr


@pytest.mark.parametrize(
    ("text", "offered", "withheld"),
    [
        ("%%gpucheck --", "--optimizer-steps", "--history"),
        ("%gpucheck --f", "--fit", None),
        ("%%gpucheck --gpu A10", "A100-80GB", None),
        ("%%gpucheck --gpu ", "T4", "auto"),
        ("%%gpucheck --gpu T4,A10", "A100-80GB", None),
        ("%%gpucheck --gpu T4 --fit batch", "batch_count", "batch_names"),
        ("%gpucheck batch_na", "batch_names", None),
    ],
)
def test_options_and_values_complete(run, shell, text, offered, withheld):
    shell.user_ns.update(batch_count=3, batch_names=["a"])
    _, matches = shell.complete(None, text, len(text))
    assert offered in [match.split()[-1].split(",")[-1] for match in matches]
    assert withheld not in matches


@pytest.mark.parametrize("magic", ["%gpucheck", "%%gpucheck"])
def test_help_has_every_option(run, magic):
    with capture_output() as shown:
        run(f"{magic}?")
    _, text = run(f"{magic}?")
    text = text + shown.stdout
    for option in ("--gpu GPU", "--fit NAME", "--optimizer-steps N", "-o/--output VAR", "--save"):
        assert option in text


def test_unloading_takes_it_away(run, shell):
    run("%unload_ext gpumem_magic")
    assert not run("%gpucheck")[0].success


@pytest.mark.parametrize("magic", ["%%gpumem", "%%gpucheck"])
@pytest.mark.parametrize("above", ["# what follows is large\n", "\n# one\n\n# two\n", "x = 1\n"])
def test_a_magic_that_is_not_on_the_first_line_says_where_it_belongs(run, magic, above):
    result, text = run(f"{above}{magic}\ny = 1")
    assert isinstance(result.error_in_exec, UsageError)
    assert f"{magic} must be the first line of the cell" in text


@pytest.mark.parametrize("magic", ["%gpumem", "%gpucheck", "%%gpumem", "%%gpucheck"])
@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("below", ["", "\n", "\nx = 1"])
def test_help_lists_the_options_of_either_form(run, magic, flag, below):
    result, text = run(f"{magic} {flag}{below if magic.startswith('%%') else ''}")
    assert result.success
    assert "-o/--output VAR" in text


def test_without_a_text_or_with_an_unknown_rule_it_lists_what_there_is(run, monkeypatch):
    monkeypatch.delattr("sys.last_value", raising=False)
    for line in ("%gpucheck --explain", "%gpucheck --explain zzzz-zzzz"):
        result, _ = run(line)
        assert isinstance(result.error_in_exec, UsageError)
        assert "missing-no-grad, " in str(result.error_in_exec)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--headroom 3", "--headroom goes with --fit"),
        ("--accumulate n", "--accumulate goes with --fit"),
        ("--fit n --headroom 100", "not a number of per cent from 0 to 99"),
        ("--fit n --headroom much", "not a number of per cent from 0 to 99"),
        ("--fit n --accumulate 3x", "not a variable name"),
    ],
)
def test_options_of_fit_are_checked_before_anything_runs(run, dry, line, said):
    result, _ = run(f"%%gpucheck {line}\nx = 1")
    assert said in str(result.error_in_exec)
    assert dry.asked == []


@pytest.mark.parametrize(("given", "kept"), [("", 0.03), (" --headroom 10%", 0.1)])
def test_fit_keeps_a_share_of_the_card_free(run, dry, given, kept):
    run(f"%%gpucheck --fit n{given}\nn = 1")
    assert dry.scenarios[-1].headroom == kept


def test_what_rules_there_are_fits_a_terminal(run):
    result, _ = run("%gpucheck --explain no_such_thing")
    said = str(result.error_in_exec)
    assert "no rule no_such_thing; the rules are" in said
    assert all(len(row) <= 80 for row in said.splitlines())
