"""%%gpucheck with real dry runs: exact bytes, true lines, and nothing of the user's is touched."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from IPython.utils.capture import capture_output

torch = pytest.importorskip("torch")
MIB = 1 << 20


@pytest.fixture
def run(shell):
    """Run cells on a virtual T4; gives the result and all text that was shown."""

    def run(cell):
        with capture_output() as shown:
            result = shell.run_cell(cell, store_history=True)
        texts = [output.data["text/plain"] for output in shown.outputs]
        return result, shown.stdout + shown.stderr + "".join(texts)

    run("%load_ext gpumem_magic\n%gpumem --device T4\nimport torch")
    return run


def by_line(report):
    return {line.number: line.allocated for line in report.lines if line.allocated}


def history(shell):
    return list(shell.magics_manager.registry["GpuMemMagics"].monitor.history)


CELL = """\
x = torch.ones(1 << 20, device='cuda')

def double(t):
    return t + t

y = double(x)
print('one')
y"""


def test_a_prediction_is_what_the_measurement_will_be(run, shell):
    assert run(f"%%gpucheck -o predicted\n{CELL}")[0].success
    assert not {"x", "y", "double"} & set(shell.user_ns)
    result, _ = run(f"%%gpumem\n{CELL}")
    predicted, measured = shell.user_ns["predicted"], history(shell)[0]
    assert result.success
    assert predicted.predicted
    assert by_line(predicted) == by_line(measured) == {2: 4 * MIB, 5: 4 * MIB}
    assert predicted.peak == measured.peak
    assert predicted.after == measured.after
    assert predicted.output.startswith("one\n")


@pytest.mark.parametrize(
    ("above", "line"),
    [("", 2), ("\n\n", 4), ("%%time\n", 3), ("%%gpumem -q\n", 3), ("%%gpumem\n\n%%time\n\n", 6)],
)
def test_lines_are_those_that_the_user_sees(run, shell, above, line):
    result, text = run(
        f"%%gpucheck -o r\n{above}x = torch.ones(1 << 20, device='cuda')\n"
        "torch.ones(1 << 40, device='cuda')"
    )
    assert result.success
    report = shell.user_ns["r"]
    assert by_line(report) == {line: 4 * MIB}
    assert report.oom.line == line + 1
    assert f"Does not fit: out of memory in line {line + 1}, at least" in text
    assert history(shell) == []


def test_another_error_is_told_with_its_line_and_fails_no_cell(run, shell):
    result, text = run("%%gpucheck -o r\n\ndef f():\n    return 1 / 0\n\nf()\n")
    assert result.success
    assert "The prediction ends in line 4: ZeroDivisionError: division by zero" in text
    assert shell.user_ns["r"].error_line == 4
    assert not hasattr(shell, "last_error")


def test_a_guessed_way_is_marked(run, shell):
    _, text = run(
        "%%gpucheck -o r\nx = torch.ones(1 << 20, device='cuda')\nif x.sum() > 3:\n    y = x + x"
    )
    assert shell.user_ns["r"].flow_guessed
    assert "Probably fits: " in text
    assert "The control flow was guessed" in text
    _, text = run("%%gpucheck\nx = torch.ones(1 << 20, device='cuda')\ny = x + x")
    assert "Fits: " in text


def test_cards_differ_in_what_fits(run, shell):
    _, text = run("%%gpucheck --gpu T4,A100-80GB -o f\nx = torch.ones(1 << 32, device='cuda')")
    assert [report.oom is None for report in shell.user_ns["f"].reports] == [False, True]
    assert "fits 1 of 2 cards" in text


def test_the_largest_value_is_the_largest(run, shell):
    _, text = run(
        "%%gpucheck --gpu 4GiB --fit n --headroom 0 -o f\n"
        "n = 3\nx = torch.ones(n << 20, 64, device='cuda')\n"
    )
    found = shell.user_ns["f"]
    assert (found.value, found.report.oom, found.next_report.oom.line) == (16, None, 3)
    assert "The largest n that fits 4GiB GPU (4.00 GiB) is 16" in text
    assert "n" not in shell.user_ns


@pytest.mark.parametrize(
    ("cell", "said"),
    [("x = 3", "neither assigned"), ("n = 'a'", "whole number"), ("n = 1", "does not change")],
)
def test_what_cannot_be_fitted_is_refused_with_the_reason(run, cell, said):
    result, text = run(f"%%gpucheck --fit n\n{cell}")
    assert not result.success
    assert text.startswith("UsageError: %%gpucheck: --fit n: ")
    assert said in text


def test_an_interrupt_leaves_everything_as_it_was(run, shell, torch_modes):
    run("x = torch.ones(1 << 20, device='cuda')\nkept = [1]")
    before = {name: id(value) for name, value in shell.user_ns.items() if name[0] != "_"}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    result, _ = run("%%gpucheck -o r\nkept.append(2)\nx = 5\nwhile True: pass")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    after = {name: id(value) for name, value in shell.user_ns.items() if name[0] != "_"}
    assert after == before
    assert shell.user_ns["kept"] == [1]
    assert torch_modes() == []
    _, text = run("%%gpumem --name next\ny = x + x")
    assert "next · peak" in text
    assert history(shell)[0].peak.allocated == 8 * MIB


def test_a_syntax_error_that_only_the_compiler_finds(run):
    result, text = run("%%gpucheck\nx = 1\nreturn x")
    assert isinstance(result.error_in_exec, SyntaxError)
    assert "line 3" in text
    assert "run_cell_magic" not in text


def test_a_measurement_in_a_predicted_cell_is_none(run, shell):
    run("%gpumem --reset\n%gpumem -q torch.ones(1 << 20, device='cuda').sum()")
    _, text = run(
        "%%gpucheck -o r\n%gpumem x = torch.ones(1 << 20, device='cuda')\n%gpumem --reset\n"
        "get_ipython().run_line_magic('gpumem', '--reset')"
    )
    assert by_line(shell.user_ns["r"]) == {2: 4 * MIB}
    assert len(history(shell)) == 1
    assert "%gpumem --reset" in text


def test_the_history_has_the_cell_once_also_when_it_is_saved_meanwhile(run, shell):
    _, text = run("%%gpucheck -o r\nget_ipython().history_manager.writeout_cache()")
    assert shell.user_ns["r"].error is None, text
    with capture_output() as shown:
        shell.history_manager.writeout_cache()
    assert "not unique" not in shown.stdout + shown.stderr
    saved = [text for *_, text in shell.history_manager.get_range(0)]
    assert sum(text.startswith("%%gpucheck") for text in saved) == 1


def test_predict_and_fit_are_functions_too(run, shell):
    result, _ = run(
        "from gpumem_magic import fit, predict\n"
        "report = predict('x = torch.ones(1 << 20, device=\"cuda\")', gpu='L4')\n"
        "found = fit('x = torch.ones(n << 20, device=\"cuda\")', 'n', {'n': 1, 'torch': torch}, "
        "'64MiB', headroom=0)"
    )
    assert result.success
    assert shell.user_ns["report"].device.name == "NVIDIA L4"
    assert shell.user_ns["found"].value == 16
    assert "The largest n that fits" in shell.user_ns["found"].text()
    assert set(shell.user_ns["found"]._repr_mimebundle_()) == {"text/plain", "text/html"}


TRAIN = """\
import sys
import torch

def step():
    torch.ones(int(sys.argv[1]), device="cuda")[0].item() > 2

if __name__ == "__main__":
    kept = torch.ones(1 << 20, device="cuda")
    for _ in range(2):
        step()
"""


@pytest.mark.parametrize(
    ("line", "kept"), [("%run train.py {n}", 4 * MIB), ("!python train.py {n}", 0)]
)
def test_a_script_that_the_cell_runs_is_told_line_by_line(
    run, shell, tmp_path, monkeypatch, line, kept
):
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    result, text = run(f"%%gpucheck -o r\nn = 1 << 19\n{line}\n1 / 0")
    assert result.success
    report = shell.user_ns["r"]
    assert report.error.startswith("ZeroDivisionError")  # the cell goes on after it
    calls = {(call.script, call.line): call.allocated for call in report.lines[0].calls}
    assert calls["train.py", 5] == 2 * 2 * MIB
    assert calls["train.py", 8] == 4 * MIB
    assert report.peak.allocated == 6 * MIB
    assert report.after.allocated == kept
    assert "train.py:5 step" in text
    assert "train.py:5 goes by values" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_memory_that_runs_out_in_a_script_is_told_with_its_line(run, shell, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    run(f"%%gpucheck -o r\n!python train.py {1 << 40}")
    report = shell.user_ns["r"]
    assert (report.oom.line, report.oom.requested) == (2, 4 << 40)


def test_a_library_can_be_assumed(run, shell):
    cell = "import triton\nfrom flash_attn import flash_attn_func"
    run(f"%%gpucheck -o r --assume triton,flash_attn\n{cell}")
    report = shell.user_ns["r"]
    assert report.error is None
    assert any("only have shapes: triton, flash_attn." in note for note in report.notes)
    _, text = run("%%gpucheck --assume apex\nx = 1")
    assert "--assume apex: 'apex' cannot be assumed; triton, flash_attn, xformers" in text


LOADERS = """\
lengths = [3, 5, 1 << 18, 4, 7]
def collate(items):
    rows = [torch.ones(n) for n in items]
    return {"x": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}
loader = torch.utils.data.DataLoader(lengths, 2, collate_fn=collate)
batches = [{"x": torch.ones(n)} for n in lengths]
"""


@pytest.mark.parametrize(
    ("name", "told", "first"),
    [("loader", "number 1 of 3", "[2, 262144]"), ("batches", "number 2 of 5", "[262144]")],
)
def test_the_largest_batch_of_a_loader_comes_first(run, shell, name, told, first):
    run(LOADERS)
    state = torch.get_rng_state()
    cell = f"for b in {name}:\n    y = b['x'].cuda()\n    print(list(y.shape))"
    run(f"%%gpucheck -o r --worst-batch {name}\n{cell}")
    report = shell.user_ns["r"]
    assert report.error is None
    assert report.output.splitlines()[0] == first
    assert any(f"{told} from 0: float32{first}" in note for note in report.notes)
    assert report.peak.allocated >= 4 << 18
    assert torch.equal(torch.get_rng_state(), state)
    assert next(iter(shell.user_ns[name]))["x"].numel() in (3, 10)


def test_a_loader_that_the_cell_makes_is_looked_through_when_it_is_walked(run, shell):
    loop = "for b in loader:\n    y = b['x'].cuda()"
    run(f"%%gpucheck -o r --worst-batch loader\n{LOADERS}{loop}")
    assert shell.user_ns["r"].peak.allocated >= 4 << 18
    run(f"%%gpucheck -o r --worst-batch batches\n{LOADERS}{loop}")
    assert "the cell walked no DataLoader of that name" in " ".join(shell.user_ns["r"].notes)


def test_objects_with_tensors_are_batches(run, shell):
    graphs = (
        "class Graph:\n"
        "    def __init__(self, n):\n"
        "        self.store = type('Store', (), {})()\n"
        "        self.store.mapping = {'x': torch.ones(n)}\n"
        "graphs = [Graph(4), Graph(1 << 18), Graph(5)]"
    )
    run(graphs)
    cell = "%%gpucheck -o r --worst-batch graphs\nfor g in graphs: y = g.store.mapping['x'].cuda()"
    run(cell)
    assert "number 1 of 3 from 0: float32[262144]" in " ".join(shell.user_ns["r"].notes)


def test_what_is_no_loader_is_told(run):
    run("n = 3\nonce = iter([1])")
    assert "there is no variable nix" in run("%%gpucheck --worst-batch nix\nx = 1")[1]
    assert "n is a int" in run("%%gpucheck --worst-batch n\nx = 1")[1]
    assert "once is a list_iterator" in run("%%gpucheck --worst-batch once\nx = 1")[1]
