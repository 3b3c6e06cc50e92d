"""`predict` and `fit`: the pipeline of a dry run, for code that is not run."""

from __future__ import annotations

import sys
from dataclasses import replace
from textwrap import indent

import pytest

from gpumem_magic.dryrun import DryRunError, carry_out
from gpumem_magic.predict import MOST_RUNS, fit, planned, predict, predicting, read_scenario
from gpumem_magic.values.report import Report

torch = pytest.importorskip("torch")

TRAINING = """import torch
batch_size = 4
net = torch.nn.Linear(1024, 1024).to("cuda")
x = torch.randn(batch_size, 1 << 20, device="cuda")
y = x * 2
"""
MIB = 1 << 20


def test_a_prediction_is_a_report():
    report = predict(TRAINING, {}, "T4", name="mine")
    assert report.predicted
    assert (report.name, report.device.name, report.error) == ("mine", "Tesla T4", None)
    assert report.peak.allocated == 1024 * 1024 * 4 + 4096 + 2 * 4 * 4 * MIB
    assert {line.number: line.net for line in report.lines} == {
        3: 4 * MIB + 4096,
        4: 16 * MIB,
        5: 16 * MIB,
    }


def test_the_callers_names_are_seen_and_stay():
    report = predict("import torch\nMIB = torch.zeros(3, MIB // 4, device='cuda')")
    assert report.peak.allocated == 3 * MIB
    assert MIB == 1 << 20


def test_what_the_cell_defines_is_of_the_notebooks_module():
    report = predict("class A: pass\nprint(A.__module__, __name__)", {})
    assert report.output == "__main__ __main__\n"


def test_what_the_cell_and_the_program_define_can_be_pickled(monkeypatch):
    given = type("Given", (), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Given", given, raising=False)
    cell = (
        "import pickle\n"
        "class Made: pass\n"
        "print([type(pickle.loads(pickle.dumps(thing))) for thing in (Made(), given)])\n"
    )
    report = predict(cell, {"given": given()})
    assert report.output == "[<class '__main__.Made'>, <class '__main__.Given'>]\n", report.error


_OF_THE_DEFAULT_DEVICE = """
y = torch.ones(512, 512)
best = torch.tensor(0.5)
if y.mean() < best or y[y > 0].unique().numel():
    net = torch.nn.Linear(512, 512)
    net(y).sum().backward()
"""


@pytest.mark.parametrize("begins", ["%load_ext gpumem_magic", ""])
def test_a_default_device_of_an_earlier_cell_is_that_of_the_prediction(shell, begins):
    within = f"with torch.device('cuda'):{indent(_OF_THE_DEFAULT_DEVICE, ' ')}"
    explicit = predict(within, {"torch": torch}, "T4")
    shell.run_cell(f"import torch\n{begins}\ntorch.set_default_device('cuda')")
    try:
        report = predict(_OF_THE_DEFAULT_DEVICE, shell.user_ns, "T4")
    finally:
        torch.set_default_device(None)
    assert report.error is None
    assert report.peak.allocated == explicit.peak.allocated > 4 * MIB


def test_a_size_is_a_card():
    report = predict(TRAINING, {}, "24GiB")
    assert report.device.total == 24 << 30


def test_wrong_cards_and_wrong_code_are_told_at_once():
    with pytest.raises(ValueError, match="unknown card"):
        predict("x = 1", {}, "H1000000")
    with pytest.raises(SyntaxError):
        predict("x = = 1", {}, "T4")
    with pytest.raises(SyntaxError):
        predict("%time x = 1", {}, "T4")  # no notebook here


def test_errors_of_the_cell_are_in_the_report():
    report = predict("x = 1\nx / 0", {}, "T4")
    assert report.error.startswith("ZeroDivisionError")
    assert report.oom is None


def test_out_of_memory_is_predicted_on_its_line():
    report = predict(TRAINING.replace("batch_size = 4", "batch_size = 4000"), {}, "T4")
    assert report.oom.line == 4
    assert report.oom.requested == 4000 * 4 * MIB


def test_in_a_notebook_magics_are_code(shell):
    code = "from gpumem_magic import predict\nr = predict('%time n = 3\\nn / 0', gpu='T4')"
    shell.run_cell(code).raise_error()
    assert shell.user_ns["r"].error.startswith("ZeroDivisionError")


def test_on_a_virtual_card_it_is_the_card_in_use(shell):
    shell.run_line_magic("load_ext", "gpumem_magic")
    shell.run_line_magic("gpumem", "--device A100-40GB")
    code = "from gpumem_magic import predict\nr = predict('import torch')"
    shell.run_cell(code).raise_error()
    assert shell.user_ns["r"].device.name == "NVIDIA A100-SXM4-40GB"


def test_a_limit_that_an_earlier_cell_set_holds_on_other_cards_too(shell):
    shell.run_line_magic("load_ext", "gpumem_magic")
    shell.run_line_magic("gpumem", "--device T4")
    limit = "import torch\ntorch.cuda.set_per_process_memory_fraction(0.01)"  # 0.8 GiB of 80
    shell.run_cell(limit).raise_error()
    code = (
        "from gpumem_magic import predict\n"
        "ones = 'import torch\\ntorch.ones(1 << 28, device=\"cuda\")'\n"
        "r = [predict(ones, gpu=card) for card in (None, 'T4', 'A100-80GB')]\n"
        "share = torch.cuda.get_per_process_memory_fraction()"
    )
    shell.run_cell(code).raise_error()
    assert [report.oom is not None for report in shell.user_ns["r"]] == [True] * 3
    assert shell.user_ns["share"] == 0.01


def test_the_largest_value():
    namespace = {}
    found = fit(TRAINING, "batch_size", namespace, "T4", headroom=0)
    # 2 tensors of value * 4 MiB beside 4 MiB + 4 KiB, on 15,828,320,256 bytes less 120 MiB
    assert found.name == "batch_size"
    assert found.exact
    assert found.runs <= MOST_RUNS
    assert found.report.oom is None
    assert found.next_report.oom is not None
    again = TRAINING.replace("= 4\n", f"= {found.value}\n")
    assert predict(again, {}, "T4").oom is None
    assert predict(again.replace(f"= {found.value}\n", f"= {found.value + 1}\n"), {}, "T4").oom
    assert found.report.peak.allocated == 4 * MIB + 4096 + 2 * found.value * 4 * MIB
    assert namespace == {}


LOOP = """import torch
batch_size = 16
layers = torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10)
net = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.Adam(net.parameters())
for step in range(1000):
    x = torch.randn(batch_size, 64, device="cuda")
    y = torch.randint(0, 10, (batch_size,), device="cuda")
    loss = torch.nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("gpu", ["T4", "300MiB"])
def test_large_values_are_told_to_the_unit_in_a_few_runs(gpu):
    """Where fragments of cached memory decide: of what is allocated at most, the card has more."""
    found = fit(LOOP, "batch_size", {}, gpu, headroom=0)
    assert found.exact
    assert found.value > 10_000
    assert found.runs <= 10
    assert found.next_report.oom.requested < found.next_report.device.total
    for value, fits in ((found.value, True), (found.value + 1, False)):
        report = predict(LOOP.replace("= 16", f"= {value}"), {}, gpu)
        assert (report.oom is None) is fits
        assert (report.error is None) is fits


def test_what_the_notebook_holds_already_counts(shell):
    """It starts from the memory in use, which stays as it is."""
    shell.run_line_magic("load_ext", "gpumem_magic")
    shell.run_line_magic("gpumem", "--device 300MiB")
    code = """import torch
from gpumem_magic import fit
held = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
n = 1
cell = "x = torch.empty(n << 20, dtype=torch.uint8, device='cuda')\\ny = x.clone()"
first = fit(cell, "n", headroom=0).value
del held
second = fit(cell, "n", headroom=0).value
third = fit("torch.cuda.empty_cache()\\n" + cell, "n", headroom=0).value
"""
    shell.run_cell(code).raise_error()
    found = [shell.user_ns[name] for name in ("first", "second", "third")]
    # 200 MiB are free; then one of the tensors may have the 100 MiB that are cached; then all 300
    assert found == [100, 150, 150]


def test_a_variable_of_the_namespace():
    namespace = {"rows": 5}
    found = fit(
        "import torch\nx = torch.empty(rows, 1 << 28, device='cuda')",
        "rows",
        namespace,
        "T4",
        headroom=0,
    )
    assert (found.value, found.exact) == (14, True)
    assert namespace == {"rows": 5}


def test_the_argument_of_a_call_is_fitted():
    code = "import torch\nx = torch.utils.data.DataLoader(list(range(9)), batch_size=2)\n"
    code += "y = torch.empty(x.batch_size, 1 << 28, device='cuda')"
    assert fit(code, "batch_size", {}, "T4").value == 14


def test_settings_that_a_cell_makes_count_in_it():
    code = "import os, torch\n{}x = [torch.empty(15 << 20, device='cuda').byte() for _ in range(3)]"
    setting = "os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n"
    plain, growing = (predict(code.format(text), {}, "T4").peak for text in ("", setting))
    page = 20 << 20
    assert (plain.reserved % page > 0, growing.reserved % page) == (True, 0)


def test_nothing_fits():
    found = fit("import torch\nn = 2\nx = torch.empty(n, 1 << 34, device='cuda')", "n", {}, "T4")
    assert (found.value, found.report, found.exact) == (0, None, True)
    assert found.next_report.oom.requested == 1 << 36


@pytest.mark.parametrize(
    ("code", "name", "namespace", "message"),
    [
        ("x = 1", "batch", {}, "neither assigned"),
        ("lr = 0.1\nx = lr", "lr", {}, "only a whole number"),
        ("x = flag", "flag", {"flag": True}, "only a whole number"),
        ("for n in (1, 2):\n    x = n", "n", {}, "line 1 gives it several values"),
        ("n = 3\nn *= 2\nx = n", "n", {}, "line 2 changes it in place"),
        ("n, m = 3, 4\nx = n", "n", {}, "statement of its own"),
        ("def f(n=3):\n    return n", "n", {}, "neither assigned"),
        ("import torch\nn = 3\nx = torch.empty(9, device='cuda')", "n", {}, "does not change"),
        ("n = 3\nif n != 3:\n    raise OSError('no')", "n", {}, "fails, .* OSError"),
    ],
)
def test_what_cannot_be_fitted(code, name, namespace, message):
    with pytest.raises(ValueError, match=message):
        fit(code, name, namespace, "T4")


def test_memory_without_a_limit():
    found = fit(
        "import torch\nn = 3\nx = torch.empty(min(n, 50) << 20, device='cuda')", "n", {}, "T4"
    )
    assert not found.exact
    assert found.value >= 50
    assert found.next_report is None
    assert "No value runs out of memory" in found.notes[-1]


ROWS = "import torch\nrows = 5\nx = torch.empty(rows, 1 << 20, device='cuda')"


def test_a_share_of_the_card_stays_free():
    """3 % where nothing else is said: 31 of the card's 1,024 MiB, so 993 tensors of a MiB."""
    card = {"namespace": {}, "gpu": "1GiB"}
    narrow = ROWS.replace("1 << 20", "1 << 18")
    assert fit(narrow, "rows", **card, headroom=0).value == 1024
    found = fit(narrow, "rows", **card)
    assert 980 <= found.value <= 993
    assert found.report.peak.device_used <= 1 << 30
    assert found.notes == (
        "3 % of the card is kept free (--headroom): the numbers count it as in use.",
    )


STEPS = """import torch
batch = 64
steps = 2
for _ in range(steps):
    x = torch.empty(batch, 1 << 20, device='cuda')
    del x
"""


def test_the_product_with_the_steps_of_accumulation_is_kept():
    found = fit(STEPS, "batch", {}, "100MiB", headroom=0, accumulate="steps")
    assert found.value == 25  # of 4 MiB each
    assert found.notes == ("steps = 6 keeps batch x steps at 150, not below 128.",)
    whole = fit(STEPS, "batch", {}, "16GiB", headroom=0, accumulate="steps")
    assert (whole.value, whole.next_report) == (128, None)
    assert whole.notes == ("steps = 1 keeps batch x steps at 128.",)


@pytest.mark.parametrize("code", ["y = x.compile()\n", "y = 'compiled in another cell'\n"])
def test_a_cell_that_compiles_is_run_as_it_is_written_too(code):
    flow = predicting(read_scenario(code, {}, "T4"))
    said, runs = ".compile(" in code, next(flow)
    (outcome,) = _done("x = torch.empty(512, device='cuda')")
    (as_written,) = _done("x = torch.empty(2**20, device='cuda')")
    assert [run.plan.scenario.compiled for run in runs] == [True, False][: len(runs)]
    assert len(runs) == (2 if said else 1)
    outcome = replace(outcome, compiled=True)
    if not said:
        (run,) = flow.send((outcome,))
        assert not run.plan.scenario.compiled
    with pytest.raises(StopIteration) as ended:
        flow.send((outcome, as_written) if said else (as_written,))
    report = ended.value.value
    assert (report.peak.allocated, report.eager.allocated) == (2048, 4 * 2**20)
    assert "4.00 MiB" in report.text()
    assert Report.from_dict(report.to_dict()) == report


def test_why_a_cell_does_not_run_as_it_is_written():
    flow = predicting(read_scenario("model.compile()", {}, "T4"))
    next(flow)
    (outcome,) = _done("x = torch.empty(512, device='cuda')")
    with pytest.raises(StopIteration) as ended:
        flow.send((replace(outcome, compiled=True), DryRunError("too slow")))
    report = ended.value.value
    assert report.eager is None
    assert "too slow" in report.unknown["eager"]


def test_what_lies_under_no_name_stands_in_no_way():
    from gpumem_magic.dryrun.fresh import _order
    from gpumem_magic.dryrun.in_use import CardInUse

    names = {(1, 2): 3, None: 4, "kept": 5}
    report = predict("import torch\ntorch.ones(kept)", names, "T4")
    assert report.error is None
    assert not [note for note in report.notes if "could not be read" in note]
    assert _order(planned(read_scenario("kept", names, "T4")).plan, CardInUse())


def _done(code):
    """What a dry run of the code comes to."""

    def flow():
        return (yield (planned(read_scenario(f"import torch\n{code}", {}, "T4")),))

    return carry_out(flow())
