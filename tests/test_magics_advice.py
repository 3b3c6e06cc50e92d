"""Advice in a fresh shell: shown below cells, measured on request, applied, explained, silenced."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest

torch = pytest.importorskip("torch")

from IPython.core.error import UsageError  # noqa: E402 - needs torch for what it is tested with
from IPython.utils.capture import capture_output  # noqa: E402

from gpumem_magic.advice import RULES  # noqa: E402
from gpumem_magic.values.advice import Advice, Known  # noqa: E402

RULE = "missing-no-grad"
SETUP = """\
%load_ext gpumem_magic
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[
    torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(8)
]).cuda()
x = torch.randn(2048, 256, device="cuda")
"""
CELL = "%%gpumem\ny = model(x)  # all of it\nprint(y.shape)"
CHANGED = "%%gpumem\nwith torch.no_grad():\n    y = model(x)  # all of it\nprint(y.shape)"


class Notebook:
    def __init__(self, shell):
        self.shell = shell
        self.next_input = None
        shell.set_next_input = self.keep

    def keep(self, text, replace=False):
        self.next_input = text

    @property
    def monitor(self):
        return self.shell.magics_manager.registry["GpuMemMagics"].monitor

    def run(self, cell):
        """What was shown, and the error of the cell if it raised one."""
        with capture_output() as shown:
            result = self.shell.run_cell(cell, store_history=True)
        texts = [output.data["text/plain"] for output in shown.outputs]
        return shown.stdout + shown.stderr + "".join(texts), result.error_in_exec

    def show(self, cell):
        text, error = self.run(cell)
        assert error is None, text
        return text

    def refuse(self, cell):
        text, error = self.run(cell)
        assert isinstance(error, UsageError), text
        return str(error)


@pytest.fixture
def notebook(shell):
    one = Notebook(shell)
    one.show(SETUP)
    return one


def test_gradients_that_an_earlier_cell_left_are_no_advice_on_a_model_of_this_one(notebook):
    notebook.show("layer = torch.nn.Linear(1024, 1024).cuda()\n"
                  "layer(torch.randn(2, 1024, device='cuda')).sum().backward()")  # fmt: skip
    notebook.show("%%gpumem\nother = torch.nn.Sequential("
                  "*[torch.nn.Linear(1024, 1024) for _ in range(2)]).cuda()\n"
                  "optimizer = torch.optim.Adam(other.parameters())\n"
                  "other(torch.randn(2, 1024, device='cuda')).sum().backward()\n"
                  "optimizer.step()")  # fmt: skip
    report = notebook.monitor.last_report
    assert "frozen-layers-record" not in [advice.rule for advice in report.advice]


def test_a_measured_cell_shows_its_advice(notebook):
    text = notebook.show(CELL)
    assert f"1  {RULE}: " in text
    assert "+ with torch.no_grad():" in text
    assert "--apply 1 puts the changed cell" in text


def test_a_predicted_cell_shows_its_advice(notebook):
    text = notebook.show("%%gpucheck\ny = model(x)")
    assert f"1  {RULE}: " in text
    assert "y" not in notebook.shell.user_ns


def test_a_cell_without_a_problem_shows_none(notebook):
    text = notebook.show(CHANGED)
    assert "Advice" not in text
    assert "--apply" not in text


def test_one_line_reports_name_the_rules(notebook):
    notebook.show("%gpumem --on")
    assert f"· advice: {RULE}\n" in notebook.show("y = model(x)")
    assert "advice" not in notebook.show("z = 1")


def test_what_a_prediction_said_of_a_full_card_is_not_looked_at_again(notebook):
    notebook.show("%gpumem --device 80MiB")
    cell = "v = torch.zeros(240, 3, 128, 128, dtype=torch.uint8).cuda()\nclip = v.float() / 255"
    assert "1  large-pass: " in notebook.show(f"%%gpucheck\n{cell}")
    notebook.show("%gpucheck --advise -o found")
    found = notebook.shell.user_ns["found"]
    assert ([one.rule for one in found.advice], found.runs) == (["large-pass"], 1)
    # BUT there are two where nothing was said before
    notebook.show(f"%%gpucheck --advise -o found\n{cell}")
    assert notebook.shell.user_ns["found"].runs == 2


def test_advise_measures_the_last_measured_cell_from_where_it_began(notebook):
    notebook.show(CELL)
    text = notebook.show("%gpucheck --advise -o found")
    found = notebook.shell.user_ns["found"]
    assert found.runs == 2
    assert text.startswith("In[2] · As it is: peak ")
    assert "advice for Tesla T4 (14.62 GiB for PyTorch)" in text
    assert "2 dry runs from where the cell began" in text
    (advice,) = found.advice
    assert (advice.rule, advice.known, advice.source) == (RULE, Known.MEASURED, CHANGED)
    # THEN the saving is what both cells take when they are run from there
    notebook.show("del y")
    notebook.show("%%gpumem -q -o before\ny = model(x)\nprint(y.shape)")
    before = notebook.shell.user_ns["before"].peak.allocated
    notebook.show("del y")
    notebook.show("%%gpumem -q -o after\nwith torch.no_grad():\n    y = model(x)\nprint(y.shape)")
    assert advice.before == before
    assert found.report.peak.allocated == before
    assert advice.saving == advice.before - advice.after > 0


KEPT = """\
%%gpumem
outs = []
for _ in range(6):
    outs.append(model(x))
"""


@pytest.mark.parametrize(
    "asked",
    [
        "%gpucheck --advise -o found",
        KEPT.replace("%%gpumem", "%%gpucheck --advise -o found"),
    ],
    ids=["the last cell", "the same code"],
)
def test_what_a_cell_left_is_not_held_against_its_changes(notebook, asked):
    """However often it is asked, and whatever was measured since."""
    clean = notebook.show(f"%%gpucheck --advise -o clean\n{KEPT.partition(chr(10))[2]}")
    assert "from what is alive now" in clean
    notebook.show(KEPT)
    notebook.show("%gpumem --on")
    expected = {one.rule: one.saving for one in notebook.shell.user_ns["clean"].advice}
    assert expected[RULE] > 50 * 2**20
    for _ in range(2):
        assert "from where the cell began" in notebook.show(asked)
        found = notebook.shell.user_ns["found"]
        assert {one.rule: one.saving for one in found.advice} == expected
        assert found.ran is None


def test_what_was_measured_from_elsewhere_stands_beside_the_estimate(notebook):
    notebook.show("big = torch.ones(40 * 2**20, device='cuda')")
    notebook.show("%%gpumem -q -o ran\ny = model(x) + big[0]\nbig = big[:1].clone()")
    ran = notebook.shell.user_ns["ran"]
    (estimated,) = (one.saving for one in ran.advice if one.rule == RULE)
    text = notebook.show("%gpucheck --advise -o found")
    found = notebook.shell.user_ns["found"]
    assert found.ran == ran.peak.allocated > found.report.peak.allocated
    (advice,) = (one for one in found.advice if one.rule == RULE)
    assert (advice.known, advice.estimate) == (Known.MEASURED, estimated)
    assert "estimated when it ran" in " ".join(text.split())


TRAINED = """\
%%gpumem
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(256, 256) for _ in range(8)])
    def forward(self, x):
        for block in self.blocks:
            x = block(x).relu()
        return x

net = Net().cuda()
for _ in range(2):
    loss = net(x).pow(2).mean()
    loss.backward()
"""


def test_a_change_that_has_its_price_is_written_out_only_where_it_was_run(notebook):
    notebook.show("%gpumem --device 64MiB\nx = torch.randn(4096, 256, device='cuda')")
    text, _ = notebook.run(TRAINED)
    told = [one for one in notebook.monitor.last_report.advice if one.rule == "activations"]
    assert told
    assert not any(one.source or one.edits for one in told)
    assert "with torch.autocast" not in text
    assert "activations: saves" not in text
    notebook.show("%gpucheck --advise -o found")
    found = notebook.shell.user_ns["found"]
    assert not found.failed
    run = [one for one in (*found.advice, *found.useless) if one.rule == "activations"]
    assert run
    assert all(one.known is Known.MEASURED for one in run if one.source)
    assert all("Not written out" in one.change for one in run if not one.source)


def test_layers_that_wait_for_the_backward_pass_are_no_growth(notebook):
    """The loop over the layers of a model that the failed cell defines is no loop of passes."""
    notebook.show("%gpumem --device 64MiB\nx = torch.randn(4096, 256, device='cuda')")
    notebook.run(TRAINED)
    report = notebook.monitor.last_report
    assert report.oom is not None
    assert report.advice[0].rule == "activations"


def test_advise_measures_the_last_predicted_cell_too(notebook):
    notebook.show(CELL)
    notebook.show("%%gpucheck --gpu T4,L4\nother = model(x)")
    assert "other = model(x)" in notebook.show("%gpucheck --advise")


def test_advise_about_a_cell_or_a_statement_runs_neither(notebook):
    text = notebook.show("%%gpucheck --advise --gpu 1GiB\nnew = model(x)")
    assert "(1.00 GiB for PyTorch)" in text
    assert f"1  {RULE}" in text
    text = notebook.show("%gpucheck --advise new = model(x)")
    assert text.startswith("new = model(x) · As it is: peak ")
    assert "new" not in notebook.shell.user_ns
    # AND without code it is the same cell again
    assert notebook.show("%gpucheck --advise").startswith("new = model(x) · As it is")


def test_advise_for_another_card_tells_what_fits_there(notebook):
    notebook.show("%%gpucheck -o p\ny = model(x)")
    peak = notebook.shell.user_ns["p"].peak.allocated
    size = f"{peak // 2**20 - 2}MiB"
    notebook.show(f"%gpucheck --advise --gpu {size} -o found")
    found = notebook.shell.user_ns["found"]
    assert found.limit == (peak // 2**20 - 2) * 2**20
    assert (found.fits, found.advice[0].fits) == (False, True)


def test_advise_keeps_what_it_found(notebook, tmp_path):
    path = tmp_path / "found.json"
    notebook.show(f"%%gpucheck --advise --save {path} --name mine\ny = model(x)")
    data = json.loads(path.read_text())
    assert data["what"] == "assessment"
    assert data["report"]["name"] == "mine"


def test_without_a_cell_it_says_what_to_do(notebook):
    assert "run one with %%gpumem on top" in notebook.refuse("%gpucheck --advise")
    assert "no advice was shown yet" in notebook.refuse("%gpucheck --apply 1")


def test_where_nothing_was_found_there_is_nothing_to_apply(notebook):
    notebook.show("%%gpucheck --advise\n1 + 1")
    assert "nothing was found that would save memory" in notebook.refuse("%gpucheck --apply 1")


@pytest.mark.parametrize("cell", ["y = modl(x)", "del model\ny = modl(x)"])
def test_a_cell_that_fails_is_told_and_not_measured(notebook, cell):
    text = notebook.show(f"%%gpucheck --advise -o found\n{cell}")
    assert "Nothing was measured: run from what is alive now, the cell" in text
    assert "NameError: name 'modl' is not defined" in text
    found = notebook.shell.user_ns["found"]
    assert (found.runs, found.fits, found.together) == (1, None, None)
    assert "model" in notebook.shell.user_ns


def test_a_cell_that_is_no_code_raises_its_syntax_error(notebook):
    _, error = notebook.run("%%gpucheck --advise\ny = = 1")
    assert isinstance(error, SyntaxError)


def test_apply_puts_the_changed_cell_into_the_notebook_and_runs_nothing(notebook):
    notebook.show(CELL)
    count = len(notebook.monitor.history)
    text = notebook.show("%gpucheck --apply 1")
    assert notebook.next_input == CHANGED
    assert "- y = model(x)  # all of it" in text
    assert "+     y = model(x)  # all of it" in text
    assert "It was not run" in text
    assert len(notebook.monitor.history) == count
    # AND the changed cell runs, and is in order
    assert "Advice" not in notebook.show(notebook.next_input)


def test_apply_takes_the_numbers_of_what_was_shown_last(notebook):
    notebook.show("%%gpucheck --advise\na = model(x)\nprint(1)\nb = model(x)")
    offer = notebook.monitor.offered
    assert [one.rule for one in offer.advice] == [RULE, RULE, "all together"]
    notebook.show("%gpucheck --apply 3")
    assert notebook.next_input.count("with torch.no_grad():") == 2
    assert "has number 1 to 3" in notebook.refuse("%gpucheck --apply 4")
    # WHEN a cell with nothing to say is run, the advice on the screen still counts
    notebook.show("%%gpumem\nz = 1")
    notebook.show("%gpucheck --apply 3")
    # AND an older report that is shown again has its numbers back
    notebook.show(CELL)
    notebook.show("%gpumem --show 2")
    notebook.show("%gpucheck --apply 1")
    assert notebook.next_input == CHANGED


def test_apply_without_a_changed_cell_says_what_to_write(notebook):
    notebook.show(CELL)
    report = notebook.monitor.last_report
    notebook.monitor.offer(report, (Advice("kept-graph", "Kept.", "Append loss.item()."),))
    assert "kept-graph has no changed cell: Append loss.item()." in notebook.refuse(
        "%gpucheck --apply 1"
    )
    assert notebook.next_input is None


def test_an_interrupt_leaves_everything_as_it_was(notebook):
    notebook.show(CELL)
    offered, last = notebook.monitor.offered, notebook.monitor.last_report
    allocated = notebook.monitor.source.level()
    cell = "y = model(x)\nx = 5\nwhile not torch.is_grad_enabled():\n    pass"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()
    _, error = notebook.run(f"%%gpucheck --advise -o found\n{cell}\nwhile True:\n    pass")
    assert isinstance(error, KeyboardInterrupt)
    assert "found" not in notebook.shell.user_ns
    assert notebook.monitor.source.level() == allocated
    assert (notebook.monitor.offered, notebook.monitor.last_report) == (offered, last)
    assert not notebook.monitor.predicting
    assert isinstance(notebook.shell.user_ns["x"], torch.Tensor)
    assert f"1  {RULE}" in notebook.show("%gpucheck --advise")


def test_the_progress_line_counts_dry_runs(notebook, monkeypatch):
    said = []
    prediction = type(notebook.monitor).prediction

    def follow(self, say):
        said.append(say)
        return prediction(self, say)

    monkeypatch.setattr(type(notebook.monitor), "prediction", follow)
    monkeypatch.setattr(
        "gpumem_magic.magics.advice.assess",
        lambda question, tell: (tell(2, 5), texts.append(said[0](3.2)), 1 / 0),
    )
    texts = []
    message = notebook.refuse("%%gpucheck --advise\ny = model(x)")
    assert texts == ["3 s · measuring changes (2 of 5 dry runs are done)"]
    assert "a defect of gpumem_magic, not of your code: ZeroDivisionError" in message


def test_a_comment_silences_a_rule(notebook):
    silent = "y = model(x)  # gpumem: ignore[missing-no-grad]"
    assert "Advice" not in notebook.show(f"%%gpumem\n{silent}")
    assert "Advice" not in notebook.show("%%gpumem\n# gpumem: ignore\ny = model(x)")
    assert f"1  {RULE}" not in notebook.show(f"%%gpucheck --advise\n{silent}")
    other = "y = model(x)  # gpumem: ignore[kept-graph]"
    assert "Advice" in notebook.show(f"%%gpumem\n{other}")


def test_an_option_silences_a_rule(notebook):
    assert "Advice" not in notebook.show(f"%%gpumem --ignore {RULE}\ny = model(x)")
    assert "Advice" not in notebook.show(f"%%gpucheck --ignore {RULE},kept-graph\ny = model(x)")
    notebook.show(CELL)
    assert RULE not in notebook.show(f"%gpucheck --advise --ignore={RULE}")
    assert RULE in notebook.show("%gpucheck --advise")


def test_a_setting_silences_a_rule(notebook):
    notebook.show(f"%config GpuMem.ignore = '{RULE}, {RULES[-1].name}'")
    assert "Advice" not in notebook.show(CELL)
    assert "Advice" not in notebook.show("%%gpucheck\ny = model(x)")
    assert RULE not in notebook.show("%gpucheck --advise")
    notebook.show("%config GpuMem.ignore = ''")
    assert "Advice" in notebook.show(CELL)


@pytest.mark.parametrize("magic", ["%%gpumem", "%%gpucheck", "%%gpucheck --advise"])
def test_an_unknown_rule_names_the_nearest(notebook, magic):
    message = notebook.refuse(f"{magic} --ignore missing-no-grd\ny = 1")
    assert "no rule 'missing-no-grd'; did you mean missing-no-grad?" in message
    assert "%gpucheck --rules lists them" in notebook.refuse(f"{magic} --ignore zzzz\ny = 1")
    assert "y" not in notebook.shell.user_ns


def test_a_setting_with_an_unknown_rule_is_refused(notebook, caplog):
    text, _ = notebook.run("%config GpuMem.ignore = 'missing-no-grads'")
    assert "did you mean missing-no-grad?" in text + caplog.text
    assert notebook.monitor.settings.ignore == ""


def test_explain_with_a_rule_prints_its_documentation(notebook):
    text = notebook.show(f"%gpucheck --explain {RULE}")
    assert text.startswith(f"{RULE}: a forward pass saved activations")
    assert "+ with torch.no_grad():" in text
    assert text.count("Example ") == 2


@pytest.mark.parametrize(
    "name", ["missing_no_grad", "missing no grad", "missing-nograd", "missing-no"]
)
def test_explain_finds_the_nearest_rule_and_says_so(notebook, name):
    text = notebook.show(f"%gpucheck --explain {name}")
    assert text.startswith(f"No rule {name}; nearest:\n\n{RULE}: ")


@pytest.mark.parametrize("text", ["CUDA", '"CUDA out of memory. Tried to allocate 2.00 GiB"'])
def test_explain_still_reads_error_texts(notebook, text):
    assert "Example" not in notebook.show(f"%gpucheck --explain {text}")
    assert "memory" in notebook.show(f"%gpucheck --explain {text}")


def test_rules_lists_them_all(notebook):
    text = notebook.show("%gpucheck --rules -o rules")
    for rule in RULES:
        assert f"\n  {rule.name}\n" in text
    assert [page.name for page in notebook.shell.user_ns["rules"].pages] == [r.name for r in RULES]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%gpucheck --advise --fit x", "--advise and --fit do not go together"),
        ("%gpucheck --advise --gpu T4,L4", "--advise is for one card, not T4, L4"),
        ("%gpucheck --free --apply 1", "--free and --apply do not go together"),
        ("%gpucheck --apply 1 --rules", "--apply and --rules do not go together"),
        ("%gpucheck --apply 0", "not a whole number from 1"),
        ("%gpucheck --apply", "--apply needs N"),
        ("%gpucheck --rules x = 1", "--rules takes no names and no code: x = 1"),
        ("%%gpucheck --apply 1\nx", "--apply stands alone, as %gpucheck --apply"),
        ("%gpucheck --advise --free", "--free"),
    ],
)
def test_what_does_not_go_together_is_refused(notebook, line, message):
    assert message in notebook.refuse(line)


def test_rule_names_are_completed(notebook):
    def complete(text):
        return set(notebook.shell.complete(None, text, len(text))[1])

    names = {rule.name for rule in RULES}
    for line in ("%gpucheck --explain ", "%%gpumem --ignore ", "%gpucheck --advise --ignore "):
        assert names <= complete(line), line
    assert {"--advise", "--apply", "--rules"} <= complete("%gpucheck --")


def test_inside_a_prediction_advice_asks_for_nothing(notebook):
    text = notebook.show("%%gpucheck\nget_ipython().run_line_magic('gpucheck', '--rules')\nz = 1")
    assert "missing-no-grad" not in text
