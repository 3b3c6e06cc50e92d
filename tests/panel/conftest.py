"""A panel in a fresh shell, on the device that pretends, and a way to wait for its thread."""

from __future__ import annotations

import time

import pytest


@pytest.fixture
def rich(shell, source, monkeypatch):
    """The shell with the extension, showing HTML as a notebook does; its panel steps quickly."""
    pytest.importorskip("ipywidgets")
    monkeypatch.setattr("gpumem_magic.panel.live.INTERVAL", 0.005)
    monkeypatch.setattr("gpumem_magic.panel.live.SHARE", 1.0)
    monkeypatch.setattr("gpumem_magic.panel.front.PATIENCE", -1.0)
    run(shell, "%load_ext gpumem_magic")
    return shell


@pytest.fixture
def board(rich):
    """The panel of that shell, opened by the magic."""
    run(rich, "%gpumem --panel")
    return board_of(rich)


@pytest.fixture
def cell():
    """Runs a cell and gives what it displayed."""
    return run


def board_of(shell):
    (board,) = shell.magics_manager.registry["GpuMemMagics"].monitor.observers
    return board


def run(shell, code):
    from IPython.utils.capture import capture_output

    with capture_output() as shown:
        shell.run_cell(code, store_history=True).raise_error()
    return shown


@pytest.fixture
def settle():
    """Waits until the panel has nothing left to show."""

    def wait(board):
        deadline = time.monotonic() + 60
        while board.timer.active:
            assert time.monotonic() < deadline, "the panel's thread does not end"
            time.sleep(0.005)

    return wait
