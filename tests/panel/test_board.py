"""The panel as a whole: cells come in, its views follow, whatever ends it leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

VIEW = "application/vnd.jupyter.widget-view+json"
HOSTILE = "<script>alert(1)</script> '\"&amp; \u05e9\u05dc\u05d5\u05dd \u202e \U0001f680"


def threads():
    """Names of our threads that do not end; one that is in the middle of a step ends after it."""
    deadline = time.monotonic() + 60
    while True:
        alive = [t.name for t in threading.enumerate() if t.name.startswith("gpumem")]
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.005)


def htmls(widget):
    """Every piece of HTML in a widget and inside it."""
    own = [widget.value] if type(widget).__name__ == "HTML" else []
    return own + [text for child in getattr(widget, "children", ()) for text in htmls(child)]


def open_all(board):
    """As no one can: the panel itself opens one section of the second column at a time."""
    with board.desk.quiet():
        for switch in board.header.switches.values():
            switch.value = True
    board.redraw()


def test_the_magic_shows_a_live_view_and_what_stays_of_it_in_a_saved_notebook(rich, cell):
    live, still = cell(rich, "%gpumem --panel").outputs
    assert set(live.data) == {"text/plain", VIEW}
    assert "gpumem-still" in still.data["text/html"]
    assert VIEW not in still.data


def test_the_package_gives_the_same_callable_before_and_after_the_module_is_imported():
    probe = (
        "import sys, gpumem_magic\n"
        "assert 'ipywidgets' not in sys.modules\n"
        "from gpumem_magic import panel\n"
        "first = panel\n"
        "import gpumem_magic.panel\n"
        "from gpumem_magic import panel\n"
        "assert panel is first and callable(panel) and callable(gpumem_magic.panel)\n"
        "try:\n    panel()\nexcept RuntimeError as error:\n    print(error)"
    )
    command = [sys.executable, "-c", probe]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "the panel needs a notebook", done.stderr


def test_calling_the_module_opens_the_panel_and_loads_the_extension(rich, cell):
    cell(rich, "%unload_ext gpumem_magic")
    shown = cell(rich, "from gpumem_magic import panel\npanel()")
    assert VIEW in shown.outputs[0].data


def test_a_terminal_is_told_why_there_is_no_panel(shell, source, cell):
    from IPython.core.error import UsageError

    shell.run_line_magic("load_ext", "gpumem_magic")
    shell.display_formatter.active_types = ["text/plain"]
    with pytest.raises(UsageError, match="needs a notebook"):
        shell.run_line_magic("gpumem", "--panel")


def test_the_history_follows_measured_cells_from_the_panels_own_thread(board, rich, cell, settle):
    cell(rich, "%%gpumem -q --name first\nx = 1")
    cell(rich, "%%gpumem -q --name second\nx = 1")
    settle(board)
    assert [text.split()[1] for text in board.past.rows.options] == ["first", "second"]
    assert board.past.rows.index == 1
    assert "3.0 MiB" in board.past.rows.options[0]
    assert "report 2" in board.past.plot.value
    assert threads() == []


def test_a_cell_that_is_not_measured_is_followed_too(
    board, rich, cell, settle, source, monkeypatch
):
    from gpumem_magic.values.findings import Level

    looked = threading.Event()

    def level():
        looked.set()
        return Level(5 << 20, 20 << 20, 15 << 30)

    monkeypatch.setattr(source, "level", level)
    rich.user_ns["looked"] = looked
    looked.clear()
    cell(rich, "assert looked.wait(60)")
    settle(board)
    assert "5.0 MiB" in board.now.picture.value
    assert "high" in board.now.picture.value  # 15 of 16 GiB, in words


def test_while_a_cell_runs_its_line_and_time_are_shown(board, rich, cell, settle):
    seen = []
    rich.user_ns["seen"], rich.user_ns["board"] = seen, board
    cell(
        rich,
        "import time\nend = time.time() + 60\n"
        "while 'line 4' not in board.now.picture.value and time.time() < end:\n"
        "    time.sleep(0.01)\n"
        "seen.append(board.now.picture.value)",
    )
    assert "running for" in seen[0]
    assert "time.sleep(0.01)" in seen[0]
    settle(board)
    assert "no cell is running" in board.now.picture.value


def test_the_panel_opened_in_a_running_cell_follows_that_cell(rich, cell, settle):
    cell(
        rich,
        "%gpumem --panel\n"
        "board = get_ipython().magics_manager.registry['GpuMemMagics'].monitor.observers[0]\n"
        "import time\nend = time.time() + 60\n"
        "while 'running for' not in board.now.picture.value and time.time() < end:\n"
        "    time.sleep(0.01)\n"
        "assert 'running for' in board.now.picture.value",
    )
    settle(rich.user_ns.pop("board"))


def test_a_closed_section_costs_nothing_and_is_drawn_when_it_is_opened(board, rich, cell, settle):
    cell(rich, "%%gpumem -q --name mine\nx = 1")
    settle(board)
    assert board.cell.course.value == ""
    board.header.switches["Cell"].value = True
    assert "mine" in board.cell.course.value
    assert board.cell.box.layout.display is None


def test_no_view_no_thread(board, rich, cell):
    board.root._view_count = 1
    board.root._view_count = 0  # the browser has taken the last one away
    deadline = time.monotonic() + 60
    while board.timer.active and time.monotonic() < deadline:
        time.sleep(0.005)
    cell(rich, "import threading\nseen = [t.name for t in threading.enumerate()]")
    assert "gpumem-panel" not in rich.user_ns["seen"]
    assert not board.timer.active


def test_a_view_that_comes_back_sees_what_it_missed(board, rich, cell, settle):
    board.root._view_count = 1
    settle(board)
    board.root._view_count = 0
    cell(rich, "%%gpumem -q --name meanwhile\nx = 1")
    assert board.past.rows.options == ()
    board.root._view_count = 1
    settle(board)
    assert "meanwhile" in board.past.rows.options[0]


def test_two_panels_are_two_views_of_one_state(board, rich, cell):
    first = cell(rich, "%gpumem --panel").outputs[0].data[VIEW]
    second = cell(rich, "%gpumem --panel").outputs[0].data[VIEW]
    assert first == second
    assert len(rich.magics_manager.registry["GpuMemMagics"].monitor.observers) == 1


def test_closing_ends_it_and_the_magic_opens_another(board, rich, cell):
    board.header.exit.click()
    assert board.closed
    assert "closed" in board.desk.message.value
    assert board.root.children == (board.desk.message,)
    cell(rich, "%%gpumem -q\nx = 1")
    assert threads() == []
    assert cell(rich, "%gpumem --panel").outputs[0].data[VIEW]["model_id"] != board.root.model_id


def test_reloading_the_extension_leaves_a_message_and_a_new_panel_works(board, rich, cell, settle):
    cell(rich, "%reload_ext gpumem_magic")
    assert "unloaded" in board.desk.message.value
    assert threads() == []
    cell(rich, "%gpumem --panel")
    (new,) = rich.magics_manager.registry["GpuMemMagics"].monitor.observers
    cell(rich, "%%gpumem -q --name again\nx = 1")
    settle(new)
    assert "again" in new.past.rows.options[0]


def test_what_cannot_be_looked_at_is_told_and_the_next_cell_works(board, rich, cell, settle,
                                                                  source, monkeypatch):  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(source, "level", lambda: 1 / 0)
        cell(rich, "import time; time.sleep(0.1)")
        settle(board)
        assert "ZeroDivisionError" in board.desk.message.value
    cell(rich, "%%gpumem -q --name fine\nx = 1")
    settle(board)
    assert "fine" in board.past.rows.options[0]


def test_hostile_text_is_text_everywhere(board, rich, cell, settle):
    source = f'%%gpumem -q --name "{HOSTILE.replace(chr(34), "")}"\ntext = {HOSTILE!r}\n'
    cell(rich, source + f"long = '{'<b>' * 34_000}'")
    cell(rich, "%%gpumem -q\nx = 1")
    settle(board)
    open_all(board)
    board.past.rows.index = 0
    board.past.other.value = 2
    pieces = htmls(board.root)
    assert any("&lt;script&gt;" in html for html in pieces)
    for html in pieces:
        assert "<script" not in html
        assert "<b>" not in html
        assert "\u202e" not in html
        assert len(html.encode()) < 20_000


def test_every_piece_is_small_enough_for_a_message(board, rich, cell, settle):
    lines = "\n".join(f"x{i} = '\N{SNOWMAN}{'y' * 300}'" for i in range(400))
    cell(rich, f"%%gpumem -q\n{lines}")
    for _ in range(3):
        cell(rich, "%%gpumem -q\nx = 1")
    settle(board)
    open_all(board)
    board.past.rows.index = 0
    assert max(len(html.encode()) for html in htmls(board.root)) < 20_000
    assert "more lines" in board.cell.source.value


def test_where_no_browser_looks_the_saved_state_is_there_when_the_cell_ends(rich, cell):
    cell(rich, "%gpumem --panel")
    shown = cell(rich, "%%gpumem -q --name mine\nx = 1")
    (still,) = [one.data["text/html"] for one in shown.outputs if "text/html" in one.data]
    assert "mine" in still
    assert "data:image/png" in still


def test_one_section_of_the_second_column_is_open_at_a_time(board):
    switches = board.header.switches
    for title in ("Cell", "Advice", "Predict"):
        switches[title].value = True
        assert [name for name, one in switches.items() if one.value] == ["Now", "History", title]
    assert board.cell.box.layout.display == "none"
    assert board.predict.box.layout.display is None
    switches["Predict"].value = False
    assert board.header.columns.children[1].layout.display == "none"
