"""After memory ran out: what is shown below the cell, measured or not, and that it is true."""

from __future__ import annotations

import linecache

import pytest
from IPython.utils.capture import capture_output

from gpumem_magic.values.findings import Way

torch = pytest.importorskip("torch")
MIB = 1 << 20
BYTES = "dtype=torch.uint8, device='cuda'"
HINT = "%gpucheck --explain tells what it means"


@pytest.fixture
def run(shell):
    """Run cells on a small virtual card; gives the result, what was shown, and stderr."""

    def run(cell):
        with capture_output() as shown:
            result = shell.run_cell(cell, store_history=True)
        rich = "".join(output.data["text/plain"] for output in shown.outputs)
        return result, shown.stdout + rich, shown.stderr

    run("%load_ext gpumem_magic\n%gpumem --device 1GiB\nimport torch")
    return run


def last(shell):
    return list(shell.magics_manager.registry["GpuMemMagics"].monitor.history)[-1]


@pytest.fixture(autouse=True)
def _only_cells_of_this_shell():
    """IPython 7 names cells alike in all shells of a process, and their sources stay."""
    for sources in (linecache.cache, getattr(linecache, "_ipython_cache", {})):
        for name in [name for name in sources if name.startswith("<ipython-input")]:
            del sources[name]


def fill(run):
    run(f"old = torch.empty(400 << 20, {BYTES})\nkept = torch.empty(200 << 20, {BYTES})")


def test_the_report_names_the_change_that_would_have_left_room_and_it_does(run, shell):
    fill(run)
    cell = f"new = torch.empty(500 << 20, {BYTES})\nkept[:9].clone()"
    result, text, _ = run(f"%%gpumem\n{cell}")
    assert isinstance(result.error_in_exec, torch.OutOfMemoryError)
    oom = last(shell).oom
    assert (oom.requested, oom.line, oom.op, oom.others) == (500 * MIB, 2, "aten.empty", 0)
    assert oom.missing == oom.segment - oom.device_free > 0
    assert [(r.way, r.name, r.size, r.enough) for r in oom.remedies] == [
        (Way.UNUSED, "old", 400 * MIB, True)
    ]
    assert "del old" in text
    assert text.rstrip().endswith("without a restart.")
    assert run(f"del old\n{cell}")[0].success


def test_variables_of_the_function_that_failed_are_named(run, shell):
    run(f"""%%gpumem -q
def train():
    net = torch.nn.Linear(4096, 1024, device="cuda")
    rows = torch.empty(300 << 20, {BYTES})
    more = torch.empty(800 << 20, {BYTES})
train()""")
    names = {block.name for block in last(shell).blocks}
    assert {"net.weight", "rows"} <= names


def test_what_is_said_not_to_be_enough_is_not(run, shell):
    fill(run)
    cell = f"new = torch.empty(900 << 20, {BYTES})\nkept[:9].clone()"
    _, text, _ = run(f"%%gpumem\n{cell}")
    assert last(shell).oom.too_large
    assert "nothing that could be freed makes it fit. What makes it smaller" in " ".join(
        text.split()
    )
    assert "del old" not in text
    assert not run(f"del old\n{cell}")[0].success


def test_where_every_cell_is_measured_the_post_mortem_stands_for_the_brief_line(run):
    fill(run)
    run("%gpumem --on")
    _, text, _ = run(f"new = torch.empty(900 << 20, {BYTES})")
    assert " · OUT OF MEMORY in line 1: 900.00 MiB asked for" in text
    assert "old" in text
    assert "By line" not in text
    assert "On the card" not in text
    _, text, _ = run("x = 1")
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "asked", "line"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", None, 3),
        (
            "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 15.00 GiB total capacity; 9.00 "
            "GiB already allocated; 1.00 GiB free; 9.50 GiB reserved in total by PyTorch)",
            1536 * MIB,
            3,
        ),
    ],
)
def test_errors_of_libraries_and_of_older_versions_get_a_post_mortem(run, shell, text, asked, line):
    fill(run)
    _, shown, _ = run(f"%%gpumem\nx = 1\nraise RuntimeError({text!r})")
    oom = last(shell).oom
    assert (oom.requested, oom.line) == (asked, line)
    assert [block.name for block in oom.blocks] == ["old", "kept"]
    assert "OUT OF MEMORY in line 3" in shown


def test_a_cell_that_nobody_measured_gets_one_line_once(run):
    fill(run)
    fails = f"new = torch.empty(900 << 20, {BYTES})"
    assert HINT not in run("1 / 0")[2]
    first = run(fails)[2]
    assert [line for line in first.splitlines() if HINT in line] == first.splitlines()
    assert HINT not in run(fails)[2]


def test_a_cell_that_measures_itself_gets_no_such_line(run):
    fill(run)
    assert HINT not in run(f"%gpumem new = torch.empty(900 << 20, {BYTES})")[2]
    assert HINT not in run(f"%%gpumem\nnew = torch.empty(900 << 20, {BYTES})")[2]


def test_the_post_mortem_keeps_nothing_alive(run, shell):
    import weakref

    fill(run)
    storage = weakref.ref(shell.user_ns["old"].untyped_storage())
    run(f"%%gpumem\nnew = torch.empty(900 << 20, {BYTES})")
    run("del old")
    assert storage() is None


def test_what_the_output_history_held_is_named_and_letting_it_go_is_enough(run, shell):
    run(f"torch.empty(400 << 20, {BYTES})")
    number = shell.execution_count - 1
    cell = f"new = torch.empty(700 << 20, {BYTES})"
    _, text, _ = run(f"%%gpumem\n{cell}")
    oom = last(shell).oom
    assert [block.name for block in oom.blocks] == [f"Out[{number}]"]
    assert [(r.way, r.size, r.enough) for r in oom.remedies] == [(Way.HISTORY, 400 * MIB, True)]
    assert "%gpucheck --free --outputs before this cell: 400.00 MiB" in " ".join(text.split())
    # WHEN it is done, THEN it is true
    run("%gpucheck --free --outputs")
    assert run(cell)[0].success


def test_a_command_of_the_shell_in_the_cell_keeps_what_could_have_left_room(run, shell):
    fill(run)
    cell = f"files = !ls\nnew = torch.empty(500 << 20, {BYTES})\nkept[:9].clone()"
    result, text, _ = run(f"%%gpumem\n{cell}")
    assert isinstance(result.error_in_exec, torch.OutOfMemoryError)
    remedies = last(shell).oom.remedies
    assert [(r.way, r.name) for r in remedies] == [(Way.UNUSED, "old")]
    assert "del old" in text
