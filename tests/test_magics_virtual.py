"""The magics on the virtual GPU: exact bytes, true lines, out of memory, and torch restored."""

from __future__ import annotations

import atexit
import re
import signal

import pytest
from IPython.utils.capture import capture_output

from gpumem_magic.devices import device_names

torch = pytest.importorskip("torch")
MIB = 1 << 20


@pytest.fixture
def run(shell):
    """Run cells on a virtual T4; gives the result and what was shown."""

    def run(cell):
        with capture_output() as shown:
            result = shell.run_cell(cell, store_history=True)
        return result, shown

    run("%load_ext gpumem_magic\n%gpumem --device T4\nimport torch")
    return run


def last(shell):
    return list(shell.magics_manager.registry["GpuMemMagics"].monitor.history)[-1]


def by_line(report):
    return {line.number: line.allocated for line in report.lines if line.allocated}


def test_lines_are_those_that_the_user_sees(run, shell):
    result, _ = run("\n%%gpumem\n\nx = torch.ones(1 << 20, device='cuda')\n\ny = x + x\nz = 1")
    assert result.success
    assert by_line(last(shell)) == {3: 4 * MIB, 5: 4 * MIB}
    assert last(shell).peak.allocated == 8 * MIB


@pytest.mark.parametrize("magic", ["%%time", "%%capture"])
def test_lines_stay_true_below_another_magic(run, shell, magic):
    run(f"%%gpumem\n{magic}\n\nx = torch.ones(1 << 20, device='cuda')")
    assert by_line(last(shell)) == {4: 4 * MIB}


def test_lines_stay_true_when_the_mark_is_below_another_magic(run, shell):
    run("%%time\n%%gpumem\n\nx = torch.ones(1 << 20, device='cuda')")
    assert by_line(last(shell)) == {3: 4 * MIB}


def test_a_statement_and_an_awaited_line_have_their_line(run, shell):
    run("%gpumem x = torch.ones(1 << 20, device='cuda')")
    assert by_line(last(shell)) == {1: 4 * MIB}
    run("%%gpumem\nimport asyncio\nawait asyncio.sleep(0)\ny = torch.ones(1 << 20, device='cuda')")
    assert by_line(last(shell)) == {4: 4 * MIB}


def test_a_function_of_another_cell_is_the_second_level(run, shell):
    run("def make():\n    big = torch.ones(1 << 20, device='cuda')\n    return big")
    run("%%gpumem\nx = make()")
    (line,) = [line for line in last(shell).lines if line.allocated]
    assert line.number == 2
    assert [(call.line, call.function, call.allocated) for call in line.calls] == [
        (2, "make", 4 * MIB)
    ]


def test_blocks_have_the_names_of_the_users_variables(run, shell):
    run(
        "%%gpumem\nkept = torch.ones(1 << 20, device='cuda')\n"
        "def f():\n    inner = torch.ones(1 << 19, device='cuda')\n    1 / 0\nf()"
    )
    blocks = {block.name: block.size for block in last(shell).blocks}
    assert blocks["kept"] == 4 * MIB
    assert last(shell).error.startswith("ZeroDivisionError")


def test_the_cell_that_loads_the_extension_can_use_the_device(shell):
    with capture_output():
        result = shell.run_cell(
            "%load_ext gpumem_magic\nimport torch\ntorch.ones(3, device='cuda').device.type"
        )
    assert result.result == "cuda"


def test_out_of_memory_is_raised_reported_and_survived(run, shell):
    result, _ = run("%%gpumem\nbig = torch.empty(20 << 30, dtype=torch.int8, device='cuda')")
    assert isinstance(result.error_in_exec, torch.OutOfMemoryError)
    assert "Tried to allocate 20.00 GiB" in str(result.error_in_exec)
    assert last(shell).oom.line == 2
    assert run("%%gpumem -q\ntorch.ones(1, device='cuda').item()")[0].result == 1.0


def test_unloading_leaves_torch_as_it_was(shell, torch_attributes, torch_modes):
    before = torch_attributes()
    with capture_output():
        shell.run_cell("%load_ext gpumem_magic\n%gpumem --device T4\nimport torch")
        assert torch_attributes() != before
        shell.run_cell(
            "%%gpumem\nx = torch.ones(9, device='cuda', requires_grad=True)\n"
            "(x * 2).sum().backward()"
        )
        assert shell.last_execution_succeeded
        shell.run_cell("%%gpumem\nx = torch.empty(1 << 50, device='cuda')")
        shell.run_cell("%gpumem --on")
        shell.run_cell("raise KeyboardInterrupt")
        shell.run_cell("%reload_ext gpumem_magic")
        shell.run_cell("%unload_ext gpumem_magic")
    after = torch_attributes()
    assert [name for name in before if after[name] is not before[name]] == []
    assert torch_modes() == []
    assert shell.user_ns["x"].device.type == "cpu"


def test_changing_the_card_tells_where_the_tensors_are(run, shell):
    run("x = torch.ones(9, device='cuda')")
    _, shown = run("%gpumem --device A100-80GB")
    assert "host memory" in shown.stderr
    _, shown = run("%%gpumem --device 24GiB\ny = torch.ones(9, device='cuda')")
    assert last(shell).device.total == 24 << 30


def test_the_virtual_card_is_no_device_of_this_machine(run, shell):
    if torch.cuda._device_count_nvml() > 0:
        pytest.skip("this machine has a real one")
    # GIVEN a tensor on the virtual card
    run("x = torch.ones(1 << 20, device='cuda')")
    # WHEN a real device is asked for, which would otherwise take its place
    assert not run("%%gpumem --device cuda:0\nran = True")[0].success
    assert not run("%gpumem --device cuda")[0].success
    # THEN nothing has run, the tensor is where it was, and no name of a real device is offered
    assert "ran" not in shell.user_ns
    assert run("x.is_cuda")[0].result
    assert not [name for name in device_names() if name.startswith("cuda")]


def test_another_name_of_the_same_card_leaves_its_tensors_there(run, shell):
    # GIVEN a tensor on the T4 that stands in
    run("%gpumem --device auto")
    run("x = torch.ones(1 << 20, device='cuda')")
    # WHEN that card is asked for by name, then another one
    result, shown = run("%%gpumem --device t4\nx.is_cuda")
    # THEN the tensor stays for the one, and moves for the other, which is said
    assert result.result
    assert "host memory" not in shown.stderr
    result, shown = run("%%gpumem --device A100-40GB\nx.is_cuda")
    assert not result.result
    assert "host memory" in shown.stderr


def test_a_list_that_grows_in_a_loop_is_one_row_with_all_of_it(run, shell):
    run(
        "%%gpumem\nkept = []\nfor i in range(300):\n"
        "    kept.append(torch.ones(1 << 10, device='cuda'))"
    )
    text = last(shell).text()
    assert re.search(r"kept\[0\.\.299\] +300 x float32\[1024\] +1\.2 MiB +line 4", text)


def test_a_statement_that_is_no_python_changes_no_device(run, shell, capsys):
    result = shell.run_cell("%gpumem --device A100-40GB 24GiB")
    capsys.readouterr()
    assert isinstance(result.error_in_exec or result.error_before_exec, SyntaxError)
    assert shell.run_cell("import torch; torch.cuda.get_device_name()").result == "Tesla T4"


@pytest.fixture
def two_shells(shell):
    """The shell and one beside it in the same process, both with the extension."""
    from IPython.core.interactiveshell import InteractiveShell

    other = InteractiveShell(config=shell.config)
    with capture_output():
        for one in (shell, other):
            one.run_line_magic("load_ext", "gpumem_magic")
    yield shell, other
    other.run_line_magic("unload_ext", "gpumem_magic")
    other.atexit_operations()
    atexit.unregister(other.atexit_operations)


def test_two_shells_unload_in_the_order_in_which_they_loaded(two_shells):
    first, second = two_shells
    with capture_output():
        first.run_line_magic("unload_ext", "gpumem_magic")
    # THEN the other one's device is still there
    cell = "import torch\nx = torch.ones(5, device='cuda')\nstr(x.device), x.is_cuda"
    with capture_output():
        assert second.run_cell(cell).result == ("cuda:0", True)
        second.run_line_magic("unload_ext", "gpumem_magic")
        # AND after it nothing is, as the fixture of all tests checks
        assert not second.run_cell("x.is_cuda").result


def test_what_the_user_replaced_stays_when_the_extension_goes(shell):
    name = "_group_tensors_by_device_and_dtype"
    before = getattr(torch._C, name)
    with capture_output():
        shell.run_line_magic("load_ext", "gpumem_magic")
        shell.run_line_magic("gpumem", "--device T4")
    theirs = torch.cuda.synchronize
    setattr(torch._C, name, theirs)
    try:
        with pytest.warns(RuntimeWarning, match=f"{name} stays as other code has replaced it"):
            shell.run_line_magic("unload_ext", "gpumem_magic")
        assert getattr(torch._C, name) is theirs
    finally:
        setattr(torch._C, name, before)


@pytest.mark.parametrize("mark", ["", "%%gpumem -q\n"])
def test_an_interrupt_where_memory_dies_ends_the_cell(run, shell, monkeypatch, mark):
    storages = shell.magics_manager.registry["GpuMemMagics"].monitor.source.gpu.storages
    free = storages.allocator.free

    def free_and_interrupt(address):
        signal.raise_signal(signal.SIGINT)
        free(address)

    monkeypatch.setattr(storages.allocator, "free", free_and_interrupt)
    cell = "x = torch.ones(8, device='cuda')\ndel x\nfor _ in range(1_000_000_000): pass"
    result, _ = run(mark + cell)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
