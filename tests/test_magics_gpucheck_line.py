"""%gpucheck on the memory in use, in a fresh shell with a virtual card: who holds it, what a name
holds, what comes back, what grows."""

from __future__ import annotations

import json
import re
import weakref

import pytest
from IPython.core.error import UsageError
from IPython.utils.capture import capture_output

from gpumem_magic.oom_text import Explanation
from gpumem_magic.values.inventory import Breakdown, Breakdowns, HolderKind, Inventory, Recovery
from gpumem_magic.values.recording import Category

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("nothing_old")
MIB = 1 << 20


@pytest.fixture
def run(shell):
    """Run cells on a virtual card of 1 GiB; gives the result and all text that was shown."""

    def run(cell):
        with capture_output() as shown:
            result = shell.run_cell(cell, store_history=True)
        texts = [output.data["text/plain"] for output in shown.outputs]
        return result, shown.stdout + shown.stderr + "".join(texts)

    run("%load_ext gpumem_magic\n%gpumem --device 1GiB\nimport torch")
    return run


def asked(run, shell, line):
    """The answer to a line of %gpucheck, as its -o keeps it."""
    result, text = run(f"%gpucheck {line} -o answer" if line.startswith("-") or not line
                       else f"%gpucheck -o answer {line}")  # fmt: skip
    assert result.success, text
    return shell.user_ns["answer"]


def by_name(holdings):
    return {holding.name: holding for holding in holdings}


def watched(shell, name):
    """Tells whether the storage of a variable is alive."""
    return weakref.ref(shell.user_ns[name].untyped_storage())


TRAIN = """\
def train(batch):
    model = torch.nn.Linear(1024, 1024).to('cuda')
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(batch, 1024, device='cuda')
    kept.append(weakref.ref(x.untyped_storage()))
    for step in range(2):
        model(x).relu().square().mean().backward()
        optimizer.step()
    return model
model = train({})
"""


def test_the_whole_device_and_who_holds_it(run, shell):
    run("a = torch.ones(1 << 20, device='cuda')\nb = a[:5]")
    run("outputs = [torch.ones(1 << 18, device='cuda') for _ in range(3)]")
    _, text = run("%gpucheck -o held")
    held = shell.user_ns["held"]
    assert isinstance(held, Inventory)
    # THEN each storage counts once, to the byte, and the parts add up to the device
    names = by_name(held.holdings)
    assert (names["a"].size, names["a"].count) == (4 * MIB, 1)
    assert (names["outputs"].size, names["outputs"].count) == (3 * MIB, 3)
    assert sum(holding.size for holding in held.holdings) == held.level.allocated == 7 * MIB
    parts = held.level.allocated + held.cached.size + held.context + held.others
    assert parts == held.level.device_used
    # AND the screen says so
    assert "virtual 1GiB GPU (1.00 GiB)" in text.splitlines()[0]
    assert re.search(r"^  a +4\.0 MiB", text, re.MULTILINE)
    assert re.search(r"^  outputs +3\.0 MiB", text, re.MULTILINE)
    assert len(text.splitlines()) <= 40


def test_a_measured_cell_tells_where_things_were_made(run, shell):
    result, _ = run("%%gpumem -q\n\na = torch.ones(1 << 20, device='cuda')")
    number = result.execution_count
    _, text = run("%gpucheck")
    row = next(row for row in text.splitlines() if re.match("  a +4.0 MiB ", row))
    assert row.endswith(f"In[{number}]:3")


def test_what_a_variable_holds_by_part_and_kind(run, shell):
    run("model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(3)]).to('cuda')\n"
        "model(torch.ones(1, 512, device='cuda')).sum().backward()")  # fmt: skip
    found = asked(run, shell, "model")
    assert isinstance(found, Breakdown)
    sizes = {}
    for part in found.parts:
        sizes[part.category] = sizes.get(part.category, 0) + part.size
    layer = MIB + 2048
    assert sizes == {Category.PARAMETER: 3 * layer, Category.GRADIENT: 3 * layer}
    assert found.size == 6 * layer
    _, text = run("%gpucheck model")
    assert text.startswith("model holds 6.01 MiB in 12 tensors\n")
    head = text.splitlines()[1].split()
    assert head[:5] == ["By", "part", "and", "kind", "size"]
    assert {"parameter", "gradient"} == set(head[5:])


def test_several_names_and_attributes(run, shell):
    run("model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()).to('cuda')\nn = 1")
    found = asked(run, shell, "model, n")
    assert isinstance(found, Breakdowns)
    assert [one.name for one in found.breakdowns] == ["model", "n"]
    assert [one.size for one in found.breakdowns] == [MIB + 2048, 0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("modle", "no variable modle; did you mean model?"),
        ("model x", "no variable x"),
        ("free", "'free' is no name here; did you mean --free?"),
        ("--gpu T4, L4", "several cards go with commas and without spaces: T4,L4"),
        ("--free model", "--free takes no names and no code: model"),
        ("--free --watch", "--free and --watch do not go together"),
        ("--all", "--all goes with --free"),
        ("--outputs", "--outputs goes with --free"),
        ("--watch sometimes", "on or off"),
        ("--watch -o x", "--watch and --output do not go together"),
        ("--free --gpu T4", "--free and --gpu do not go together"),
        ("--free x = 1", "--free takes no names and no code: x = 1"),
        ("--freee", "did you mean --free?"),
        ("--explain", "no error to explain"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(run, shell, line, said):
    shell.user_ns["model"] = 1
    result, text = run(f"%gpucheck {line}")
    assert isinstance(result.error_in_exec, UsageError)
    assert said in text
    assert "Traceback" not in text


def test_a_statement_is_still_predicted(run, shell):
    shell.user_ns["n"] = 1 << 20
    _, text = run("%gpucheck x = torch.ones(n, device='cuda')")
    assert text.startswith("x = torch.ones(n, device='cuda') · Fits: ")
    assert "x" not in shell.user_ns


def test_after_out_of_memory_free_brings_everything_back(run, shell):
    shell.user_ns.update(kept=[], weakref=weakref)
    result, text = run(TRAIN.format(1 << 17))
    assert type(result.error_in_exec).__name__ == "OutOfMemoryError"
    del result
    alive = shell.user_ns["kept"][0]
    assert alive() is not None
    # THEN %gpucheck names the holder and the command
    held = asked(run, shell, "")
    assert held.size_of(HolderKind.EXCEPTION) >= 512 * MIB
    _, text = run("%gpucheck")
    row = next(row for row in text.splitlines() if row.startswith("  %gpucheck --free "))
    assert row.split()[2] == f"{held.size_of(HolderKind.EXCEPTION) / MIB:.1f}"
    # WHEN it is given
    recovery = asked(run, shell, "--free")
    # THEN the memory is back, without a restart, and the cell runs with a smaller batch
    assert alive() is None
    assert isinstance(recovery, Recovery)
    assert recovery.freed == held.size_of(HolderKind.EXCEPTION)
    assert recovery.after.reserved < 32 * MIB
    steps = {step.what: step for step in recovery.steps}
    assert steps["exceptions"].allocated == recovery.freed
    assert "%debug" in steps["exceptions"].cost
    assert sum(step.allocated for step in recovery.steps) == recovery.freed
    assert run(TRAIN.format(64))[0].success


def test_free_says_before_and_after_and_what_it_costs(run):
    run("def f():\n    x = torch.ones(1 << 20, device='cuda')\n    raise ValueError\nf()")
    _, text = run("%gpucheck --free")
    assert "4.00 MiB let go, 4.00 MiB back to the device" not in text  # 2 MiB pages: 20 MiB segment
    assert "4.00 MiB let go, 20.00 MiB back to the device" in text
    rows = text.splitlines()
    before = next(row for row in rows if row.startswith("  before"))
    after = next(row for row in rows if row.startswith("  after"))
    assert before.split()[1:5] == ["4.0", "MiB", "20.0", "MiB"]
    assert after.split()[1:5] == ["0", "bytes", "0", "bytes"]
    assert "what it costs: %debug" in " ".join(text.split())


def test_free_keeps_what_a_name_needs_and_the_debugger_where_nothing_is_won(run, shell):
    run("a = torch.ones(1 << 20, device='cuda')\na")
    run("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    kept = e\n    raise")
    alive = watched(shell, "a")
    recovery = asked(run, shell, "--free")
    assert alive() is not None
    assert recovery.freed == 0
    assert "exceptions" not in [step.what for step in recovery.steps]
    assert shell.user_ns["kept"].__traceback__ is not None
    assert shell.user_ns["_"] is shell.user_ns["a"]


def test_an_error_in_a_variable_keeps_what_it_has(run, shell):
    run("def f():\n    x = torch.ones(1 << 20, device='cuda')\n    raise ValueError\n"
        "try:\n    f()\nexcept ValueError as e:\n    errors = [e]\n    raise")  # fmt: skip
    assert asked(run, shell, "--free").freed == 0
    assert shell.user_ns["errors"][0].__traceback__ is not None
    run("del errors, e") if "e" in shell.user_ns else run("del errors")
    assert asked(run, shell, "--free").freed == 4 * MIB


@pytest.mark.parametrize("option", ["--outputs", "--all"])
def test_the_output_history_has_its_own_flag(run, shell, option):
    run("a = torch.ones(1 << 20, device='cuda')\na")
    alive = watched(shell, "a")
    run("del a")
    held = asked(run, shell, "")
    assert held.size_of(HolderKind.OUTPUT_HISTORY) == 4 * MIB
    recovery = asked(run, shell, "--free")
    assert (recovery.freed, alive() is not None) == (0, True)
    assert "%gpucheck --free --outputs" in recovery.text()
    recovery = asked(run, shell, f"--free {option}")
    assert (recovery.freed, alive()) == (4 * MIB, None)
    assert recovery.after.reserved == 0


def test_all_takes_gradients_and_leaves_variables(run, shell):
    run("model = torch.nn.Linear(512, 512).to('cuda')\n"
        "model(torch.ones(1, 512, device='cuda')).sum().backward()")  # fmt: skip
    before = asked(run, shell, "model").size
    asked(run, shell, "--free --outputs")
    assert asked(run, shell, "model").size == before
    recovery = asked(run, shell, "--free --all")
    steps = {step.what: step for step in recovery.steps}
    assert steps["gradients"].allocated == MIB + 2048
    assert steps["gradients"].cost
    assert asked(run, shell, "model").size == MIB + 2048


def test_cycles_go_for_nothing(run, shell):
    run("import gc; gc.disable(); gc.freeze()")  # what other tests left is not looked through
    run("class Node: pass\n"
        "n = Node(); n.me = n; n.x = torch.ones(1 << 20, device='cuda')\ndel n")  # fmt: skip
    held = asked(run, shell, "")
    assert held.size_of(HolderKind.CYCLE) == 4 * MIB
    recovery = asked(run, shell, "--free")
    run("gc.enable()")
    steps = {step.what: step for step in recovery.steps}
    assert (steps["reference cycles"].allocated, steps["reference cycles"].cost) == (4 * MIB, "")


def test_watch_names_what_grows_and_the_line_that_adds(run, shell):
    run("outputs = []\nw = torch.ones(1 << 18, device='cuda')")
    run("%gpucheck --watch")
    cell = "x = w + 1\n\noutputs.append(w * 2)"
    shown = [run(cell)[1] for _ in range(4)]
    assert shown[:2] == ["", ""]
    grew = "outputs grew in each of the last 3 runs of this cell, from"
    assert shown[2].startswith(f"{grew} 1.00 MiB to 3.00 MiB")
    assert shown[3].startswith(f"{grew} 2.00 MiB to 4.00 MiB")
    assert all(text.rstrip().endswith("line 3, outputs.append(w * 2)") for text in shown[2:])
    assert len(shown[3].splitlines()) == 1
    # AND what stays the same is not named, and no report is kept
    steady = [run("y = w + 1")[1] for _ in range(4)]
    assert steady == [""] * 4
    assert "empty" in run("%gpumem --history")[1]
    # WHEN it is off, nothing is said
    run("%gpucheck --watch off")
    assert run(cell)[1] == ""


OOM = (
    "CUDA out of memory. Tried to allocate 2.32 GiB (GPU 0; 15.78 GiB total capacity; 11.91 GiB "
    "already allocated; 182.75 MiB free; 14.26 GiB reserved in total by PyTorch)"
)


@pytest.mark.parametrize("line", [f'--explain "{OOM}"', f"--explain {OOM}", f"--explain='{OOM}'"])
def test_a_pasted_error_is_explained(run, line):
    result, text = run(f"%gpucheck {line}")
    assert result.success
    assert "2.32 GiB asked for" in text


def test_a_long_error_goes_into_a_cell(run, shell, tmp_path):
    path = tmp_path / "x.json"
    cell = f"Traceback (most recent call last):\n  x\nRuntimeError: {OOM}\n"
    result, text = run(f"%%gpucheck --save {path} -o x --explain\n{cell}")
    assert result.success, text
    assert "2.32 GiB asked for" in text
    assert isinstance(shell.user_ns["x"], Explanation)
    assert json.loads(path.read_text())["what"] == "explanation"


def test_without_a_text_the_last_error_is_explained(run):
    run("torch.empty(1 << 40, device='cuda')")
    _, text = run("%gpucheck --explain")
    assert "asked for" in text


def test_a_last_error_of_another_kind_is_named_and_not_explained(run):
    run("undefined + 1")
    result, _ = run("%gpucheck --explain")
    assert isinstance(result.error_in_exec, UsageError)
    said = str(result.error_in_exec)
    assert "no out-of-memory error: NameError: name 'undefined' is not defined" in said
    assert "growth, missing-no-grad" in " ".join(said.split())


@pytest.mark.parametrize("suffix", ["json", "csv", "html", "txt"])
@pytest.mark.parametrize("line", ["", "a", "--free"])
def test_answers_are_saved(run, tmp_path, suffix, line):
    path = tmp_path / f"x.{suffix}"
    result, text = run(f"a = torch.ones(1 << 20, device='cuda')\n%gpucheck --save {path} {line}")
    assert result.success, text
    assert path.stat().st_size > 20


def test_without_a_device_it_says_why(run):
    run("%gpumem --device off")
    result, text = run("%gpucheck")
    assert isinstance(result.error_in_exec, UsageError)
    assert "the device is off" in text


def test_looking_changes_nothing(run, shell):
    run("a = torch.ones(1 << 20, device='cuda')\na")
    before = (dict(shell.user_ns), list(shell.user_ns["Out"]), torch.cuda.memory_stats)
    result, _ = run("%gpucheck\n%gpucheck a")
    assert result.success
    assert list(shell.user_ns["Out"]) == before[1]
    names = {name for name in shell.user_ns if not name.startswith("_")}
    assert names == {name for name in before[0] if not name.startswith("_")}


def test_help_and_completion_know_everything(run, shell):
    for name in ("free", "outputs", "all", "watch", "explain"):
        assert f"--{name}" in shell.magics_manager.registry["GpuMemMagics"].gpucheck.__doc__
    run("model = 1")

    def completed(text):
        return shell.complete(None, text, len(text))[1]

    found = completed("%gpucheck --")
    assert {"--free", "--watch", "--explain", "--gpu"} <= set(found)
    found = completed("%%gpucheck --")
    assert "--explain" in found
    assert "--free" not in found
    found = completed("%gpucheck mod")
    assert "model" in found
    found = completed("%gpucheck --watch ")
    assert set(found) == {"on", "off"}
