"""Notebooks of any front end with the panel in them: how they are opened, run and looked at."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ipywidgets
import pytest

ROOT = Path(__file__).resolve().parents[2]
PANEL = ".gpumem-panel"
RESERVE = 120_000  # milliseconds; most is the import of torch on a busy machine


@dataclass(frozen=True)
class FrontEnd:
    """Where a front end has its cells, and how its pages are called."""

    module: str
    path: str
    cell: str = ".jp-CodeCell"
    editor: str = ".cm-content"
    prompt: str = ".jp-InputPrompt"
    theme: str = "JupyterLab Light"


LAB = FrontEnd("jupyterlab", "/lab/tree/")
NOTEBOOK = FrontEnd("notebook", "/notebooks/", theme="JupyterLab Dark")
CLASSIC = FrontEnd("nbclassic", "/nbclassic/notebooks/", ".code_cell", ".CodeMirror",
                   ".input_prompt")  # fmt: skip


def front_end(found: FrontEnd, reason: str, usable: bool = True):
    here = usable and importlib.util.find_spec(found.module) is not None
    mark = pytest.mark.skipif(not here, reason=f"{found.module} is not installed, or {reason}")
    return pytest.param(found, marks=mark, id=found.module)


NEW = int(ipywidgets.__version__.split(".")[0]) >= 8


KINDS = [
    front_end(LAB, "ipywidgets is older than 8", NEW),
    front_end(NOTEBOOK, "ipywidgets is older than 8", NEW),
    front_end(CLASSIC, "ipywidgets is newer than 7", not NEW),
]


@contextmanager
def opened(browser, screenshots):
    """A page; where the test fails, a picture of it is kept, its text and its console are told."""
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    page.set_default_timeout(RESERVE)
    console: list[str] = []
    page.on("console", lambda message: console.append(f"{message.type}: {message.text}"[:500]))
    page.on("pageerror", lambda error: console.append(f"{error}"[:2000]))
    try:
        yield page
    except BaseException:
        page.screenshot(path=screenshots / "panel-failed.png")
        told = page.inner_text("body")
        (screenshots / "panel-failed.txt").write_text(told)
        print(f"{page.url} said:\n{told[-5000:]}\nIts console:", *console[-50:], sep="\n")
        raise
    finally:
        page.close()


def open_and_run(page, kind, cells: int, count: int) -> None:
    """Run the first cells. The first one is run again, and then the page is loaded again, for as
    long as there is no panel: on a busy machine the kernel's connection, or the extension of the
    widgets, comes late, and a page then loses what it was told too early."""
    for attempt in range(6):
        ready(page, kind, cells)
        page.locator(kind.cell).first.locator(kind.editor).first.click()
        page.keyboard.press("Shift+Enter")
        if appears(page, PANEL, RESERVE // 6):
            break
        page.keyboard.press("Escape")
        if attempt % 2:
            page.reload()
    page.locator(PANEL).first.wait_for(timeout=1000)
    for place in range(1, count):
        page.locator(kind.cell).nth(place).locator(kind.editor).first.click()
        page.keyboard.press("Shift+Enter")


def ready(page, kind, cells: int) -> None:
    """Wait for the cells and the kernel; in the classic notebook for the extension of the widgets.

    A cell that is run before there is a kernel asks for one in a dialog. The extension asks the
    kernel for widgets that are there already; those that a cell makes meanwhile it may build twice,
    and only one of the two hears what comes later. Asked again, it answers when both are done.
    """
    page.locator(kind.cell).nth(cells - 1).wait_for()
    if kind is CLASSIC:
        page.wait_for_function(
            "() => window.Jupyter?.notebook?.kernel?.is_connected() "
            "&& Jupyter.notebook.kernel.widget_manager"
        )
        page.evaluate("() => Jupyter.notebook.kernel.widget_manager._loadFromKernel()")
    else:
        page.locator(".jp-Toolbar-kernelName", has_text="Python 3").wait_for()
        page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()


def appears(page, what: str, milliseconds: int) -> bool:
    """Whether it is seen within that time."""
    from playwright.sync_api import TimeoutError as TooLate  # not there without a browser

    try:
        page.locator(what).first.wait_for(timeout=milliseconds)
    except TooLate:
        return False
    return True


def run_cell(page, kind, place: int) -> None:
    cell = page.locator(kind.cell).nth(place)
    cell.locator(kind.editor).first.click()
    page.keyboard.press("Shift+Enter")
    prompt = cell.locator(kind.prompt).first
    page.wait_for_function("e => /\\d/.test(e.textContent)", arg=prompt.element_handle())


def check_accessible(page, what: str) -> None:
    """No serious violation, if axe-core can be had."""
    axe = axe_core()
    if axe is None:
        return
    page.evaluate(axe.read_text())
    found = page.evaluate("what => axe.run(what)", what)["violations"]
    grave = [v for v in found if v["impact"] in ("serious", "critical")]
    told = [(v["id"], v["nodes"][0]["html"][:200], v["nodes"][0]["failureSummary"]) for v in grave]
    assert not told


def axe_core() -> Path | None:
    """axe-core from npm, kept below build/; None where npm cannot get it."""
    home = ROOT / "build" / "npm"
    script = home / "node_modules" / "axe-core" / "axe.min.js"
    npm = shutil.which("npm")
    if not script.exists() and npm:
        home.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--silent", "axe-core"]
        subprocess.run(command, cwd=home, check=False, timeout=60)
    return script if script.exists() else None


def write_notebook(folder: Path, cells: Sequence[str]) -> None:
    """A notebook of these cells, `panel.ipynb`."""
    made = [
        {"cell_type": "code", "source": source, "metadata": {}, "outputs": [],
         "execution_count": None, "id": f"cell-{number}"}
        for number, source in enumerate(cells)
    ]  # fmt: skip
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4,
               "nbformat_minor": 5}  # fmt: skip
    (folder / "panel.ipynb").write_text(json.dumps(content))
