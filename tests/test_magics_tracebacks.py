import dataclasses
import re
import sys
from types import SimpleNamespace

import pytest

from gpumem_magic.sources.stacks import tracebacks


@pytest.fixture
def loaded(shell):
    pytest.importorskip("torch")
    shell.run_line_magic("load_ext", "gpumem_magic")
    shell.run_line_magic("gpumem", "--device 64MiB")
    yield shell
    shell.run_line_magic("unload_ext", "gpumem_magic")


def files_in(text):
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return re.findall(r"^File (\S+?):\d+", plain, re.MULTILINE)


FAILING = """import torch
x = torch.zeros(1024, 1024, device="cuda")
w = torch.zeros(1024, 8192, device="cuda", requires_grad=True)
(x @ w).sum().backward()
"""


@pytest.mark.parametrize("mark", ["", "%%gpumem -q\n"])
def test_an_out_of_memory_error_shows_no_frame_of_ours(loaded, capsys, mark):
    # WHEN an allocation fails below backward(), deep inside the virtual GPU
    result = loaded.run_cell(mark + FAILING)
    shown = capsys.readouterr().out
    # THEN the traceback goes from the cell into torch, as on a real GPU
    assert type(result.error_in_exec).__name__ == "OutOfMemoryError"
    assert "gpumem_magic" not in "".join(files_in(shown))
    assert "handle_torch_function" not in shown
    assert "(x @ w).sum().backward()" in re.sub(r"\x1b\[[0-9;]*m", "", shown)


def test_debuggers_begin_at_the_users_line(loaded, capsys):
    # GIVEN an error with another error as its context, both raised below operators on the card
    loaded.run_cell(
        "import torch\nx = torch.ones(3, device='cuda')\ndef product(here):\n"
        "    try:\n        x @ torch.ones(7, device='cuda')\n    except RuntimeError:\n"
        "        x.reshape(here)\nproduct(2)"
    )
    capsys.readouterr()
    # THEN %debug and pdb.pm() find the user's function where the traceback ends
    error, ends = sys.last_value, []
    for each in (error, error.__context__):
        entry = each.__traceback__
        while entry.tb_next is not None:
            entry = entry.tb_next
        ends.append((entry.tb_frame.f_code.co_name, entry.tb_lineno))
    assert ends == [("product", 7), ("product", 5)]
    assert sys.last_traceback is error.__traceback__


def test_an_error_in_user_code_is_shown_as_it_is(loaded, capsys):
    loaded.run_cell("def f():\n    return 1 / 0\nf()")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "in f()" in shown
    assert "ZeroDivisionError" in shown


def test_a_failing_operator_stands_in_the_traceback_as_on_a_real_gpu(loaded, capsys):
    # GIVEN what Python shows where no mode is in the way
    cell = "import torch\ntorch.zeros(2, device={!r}) + torch.zeros(3, device={!r})"
    loaded.run_cell(cell.format("cpu", "cpu"))
    plain = files_in(capsys.readouterr().out)
    # THEN the error on the card comes from the same files
    loaded.run_cell(cell.format("cuda", "cuda"))
    assert files_in(capsys.readouterr().out) == plain


def test_a_frame_without_a_line_is_shown_at_its_first(monkeypatch):
    class Entry:
        """As an interrupt leaves one that comes before a function's first line."""

        def __init__(self, file, line, following=None):
            code = compile("def f():\n    raise_here = 1", file, "exec")
            self.tb_frame, self.tb_lasti = SimpleNamespace(f_code=code, f_globals={}), 0
            self.tb_lineno, self.tb_next = line, following

    made = []
    monkeypatch.setattr(tracebacks, "TracebackType", lambda *parts: made.append(parts) or parts)
    ours = Entry(f"{tracebacks.PACKAGE}/sources/interrupts.py", 1)
    tracebacks.without_ours(Entry("<cell>", None, ours))
    assert [line for *_, line in made] == [1]


def test_code_that_was_generated_for_ours_is_no_users():
    def fail(self):
        raise KeyboardInterrupt

    made = dataclasses.make_dataclass("Made", ["x"], namespace={"__post_init__": fail})
    init = made.__init__
    ours = type(init)(init.__code__, {**init.__globals__, "__name__": "gpumem_magic.values"})
    with pytest.raises(KeyboardInterrupt) as raised:
        ours(object.__new__(made), 1)
    shown = tracebacks.without_ours(raised.value.__traceback__)
    assert (
        shown.tb_frame.f_code.co_filename == shown.tb_next.tb_frame.f_code.co_filename == __file__
    )


@pytest.mark.parametrize("is_set_before", [True, False])
def test_a_handler_of_the_users_gets_a_traceback_without_us(shell, is_set_before):
    # GIVEN a handler for errors that is set before or after the extension is loaded
    pytest.importorskip("torch")
    ends = []

    def handle(shell, kind, error, entry, tb_offset=None):
        while entry.tb_next is not None:
            entry = entry.tb_next
        ends.append((entry.tb_frame.f_globals["__name__"], entry.tb_lineno))

    if is_set_before:
        shell.set_custom_exc((RuntimeError,), handle)
    native = shell.CustomTB
    shell.run_line_magic("load_ext", "gpumem_magic")
    if not is_set_before:
        shell.set_custom_exc((RuntimeError,), handle)
    # WHEN an operator on the card fails
    shell.run_cell("import torch\ntorch.ones(3, device='cuda') @ torch.ones(7, device='cuda')")
    # THEN what the handler gets ends at the user's line, and unloaded we stand no more before it
    assert ends == [("__main__", 2)]
    shell.run_line_magic("unload_ext", "gpumem_magic")
    assert (shell.CustomTB == native) is is_set_before
    assert "set_custom_exc" not in vars(shell)
    assert shell.CustomTB.__func__.__name__ == "wrapped"
