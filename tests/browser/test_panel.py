"""The panel in real notebooks: it follows a running cell, gives a changed cell that needs less, is
accessible, and shows hostile text as text."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ipywidgets = pytest.importorskip("ipywidgets")
pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
PANEL = ".gpumem-panel"
ROWS = f"{PANEL} select >> nth=1"
RESERVE = 120_000  # milliseconds; most is the import of torch on a busy machine

HOSTILE = (
    "<script>document.title='broken'</script><img src=x onerror=document.title='broken'>"
    "'&amp; \u05e9\u05dc\u05d5\u05dd \u202e \U0001f469\u200d\U0001f680"
)
CELLS = (
    "%load_ext gpumem_magic\n%gpumem --panel",
    "import time, torch\n"
    "net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).cuda()\n"
    "batches = [torch.randn(4096, 256) for _ in range(9)]",
    "%%gpumem -q --name scores\n"
    "scores = []\n"
    "for batch in batches:\n"
    "    out = net(batch.to('cuda'))\n"
    "    scores.append(out.mean())\n"
    "    time.sleep(0.6)",
    "del scores, out",
    f'%%gpumem -q --name "{HOSTILE}"\n'
    f"text, long = {HOSTILE!r}, '{'<b>' * 33_000}'\nz = torch.ones(1 << 20, device='cuda')",
)


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


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind",
    [
        front_end(LAB, "ipywidgets is older than 8", NEW),
        front_end(NOTEBOOK, "ipywidgets is older than 8", NEW),
        front_end(CLASSIC, "ipywidgets is newer than 7", not NEW),
    ],
)
def test_the_panel_follows_advises_and_shows_text(
    browser, serve, user_settings, tmp_path, screenshots, kind
):
    folder = tmp_path / "files"
    folder.mkdir()
    write_notebook(folder)
    user_settings(tmp_path, kind.theme)
    with serve(kind.module, tmp_path, folder) as url, opened(browser, screenshots) as page:
        page.goto(f"{url}{kind.path}panel.ipynb")
        open_and_run(page, kind, 3)

        # WHEN a cell runs THEN the gauges move while it does
        assert len(levels_while_running(page)) >= 2
        page.wait_for_function("() => document.body.innerText.includes('no cell is running')")

        # WHEN its row is chosen THEN the other views tell of it
        choose(page, "scores")
        open_section(page, "Cell")
        page.locator(PANEL).get_by_text("The cell, line by line").wait_for()
        open_section(page, "Advice")
        page.locator(PANEL).locator("option", has_text="missing-no-grad").first.wait_for(
            state="attached"
        )

        # WHEN it is picked, its changed cell is inserted and run THEN the peak is smaller
        pick(page, "missing-no-grad")
        page.locator(PANEL).get_by_role("button", name="Insert cell").click()
        page.locator(PANEL).get_by_text("below the next cell that you run").first.wait_for()
        run_cell(page, kind, 3)
        changed = page.locator(kind.cell).nth(4)
        changed.get_by_text("no_grad").first.wait_for()
        run_cell(page, kind, 4)
        page.wait_for_function(COUNT, arg=[ROWS.split(" >> ")[0], 2])
        before, after = peaks(page)
        assert after < before * 0.6

        # WHEN everything about it is hostile THEN it is text
        run_cell(page, kind, 5)
        page.wait_for_function(COUNT, arg=[ROWS.split(" >> ")[0], 3])
        choose(page, "<script>")
        open_section(page, "Cell")
        page.locator(PANEL).get_by_text("<script>document.title").first.wait_for()
        page.locator(PANEL).get_by_text("text, long =").first.wait_for()
        assert "broken" not in page.title()
        assert page.locator(f"{PANEL} script, {PANEL} b").count() == 0

        # AND it can be used by everyone, on every page
        check_height(page, screenshots, kind)
        name = f"panel-{kind.module}"
        for width in ("100%", "320px"):
            page.evaluate("([p, w]) => document.querySelector(p).style.width = w", [PANEL, width])
            height = page.evaluate("p => document.querySelector(p).scrollHeight", PANEL)
            page.set_viewport_size({"width": 1280, "height": min(height + 400, 8000)})
            page.wait_for_timeout(700)
            file = f"{name}-{width.strip('%px')}.png"
            page.locator(PANEL).first.screenshot(path=screenshots / file)
        page.evaluate("p => document.querySelector(p).style.width = ''", PANEL)
        report = save_report(page, folder)
        page.wait_for_timeout(3000)  # names of sliders come a second later
        check_accessible(page, PANEL)
        page.goto(report.as_uri())
        check_accessible(page, "html")
        assert "broken" not in page.title()


def check_height(page, screenshots, kind) -> None:
    """Whatever is open, the panel is no taller than a screen."""
    style = "([p, w]) => document.querySelector(p).style.width = w"
    for width in (1000, 360):
        page.evaluate(style, [PANEL, f"{width}px"])
        for title in ("Advice", "Predict", "Export", "Cell"):
            open_section(page, title)
            page.wait_for_timeout(300)
            file = f"panel-{kind.module}-{title.lower()}-{width}.png"
            page.locator(PANEL).first.screenshot(path=screenshots / file)
            assert page.locator(PANEL).first.bounding_box()["height"] <= 900, title
    page.evaluate(style, [PANEL, ""])


@contextmanager
def opened(browser, screenshots):
    """A page; where the test fails, a picture of it is kept, and its text is told."""
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    page.set_default_timeout(RESERVE)
    try:
        yield page
    except BaseException:
        page.screenshot(path=screenshots / "panel-failed.png")
        told = page.inner_text("body")
        (screenshots / "panel-failed.txt").write_text(told)
        print(f"{page.url} said:\n{told}")
        raise
    finally:
        page.close()


COUNT = "([lists, n]) => document.querySelectorAll(lists)[1]?.options.length == n"


def open_and_run(page, kind, count: int) -> None:
    """Run the first cells. The first one is run again, and then the page is loaded again, for as
    long as there is no panel: on a busy machine the kernel's connection, or the extension of the
    widgets, comes late, and a page then loses what it was told too early."""
    for attempt in range(6):
        ready(page, kind)
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


def ready(page, kind) -> None:
    """Wait for the cells, and in the classic notebook for the extension of the widgets."""
    page.locator(kind.cell).nth(len(CELLS) - 1).wait_for()
    if kind is CLASSIC:
        page.wait_for_function(
            "() => window.Jupyter?.notebook?.kernel?.is_connected() "
            "&& Jupyter.notebook.kernel.widget_manager"
        )


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


def levels_while_running(page) -> set[str]:
    """Sizes that the first gauge showed while the cell ran; ends with the second one."""
    seen: set[str] = set()
    page.locator(PANEL).get_by_text("running for").first.wait_for()
    for _ in range(200):
        text = page.locator(PANEL).first.inner_text()
        if "running for" not in text and seen:
            break
        seen.update(re.findall(r"allocated\s+([\d.]+ [KMG]iB)", text)[:1])
        if len(seen) >= 2:
            break
        page.wait_for_timeout(150)
    return seen


def open_section(page, title: str) -> None:
    page.locator(PANEL).get_by_role("button", name=f"\u25b8 {title}").click()


def choose(page, name: str) -> None:
    options = page.locator(ROWS).locator("option", has_text=name).first
    page.locator(ROWS).select_option(label=options.text_content())


def pick(page, rule: str) -> None:
    listed = page.locator(f"{PANEL} select", has=page.locator("option", has_text=rule)).last
    listed.select_option(label=listed.locator("option", has_text=rule).first.text_content())
    page.locator(PANEL).get_by_role("button", name="Insert cell", disabled=False).wait_for()


def peaks(page) -> list[float]:
    texts = page.locator(ROWS).locator("option").all_text_contents()
    return [float(re.search(r"([\d.]+)\sMiB", text)[1]) for text in texts]


def save_report(page, folder: Path) -> Path:
    open_section(page, "Export")
    page.locator(PANEL).get_by_role("button", name="Save").click()
    page.locator(PANEL).get_by_text("gpumem-history.html").first.wait_for()
    return folder / "gpumem-history.html"


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


def test_axe_core_is_here():
    if axe_core() is None:
        pytest.skip("npm cannot get axe-core: accessibility is not checked")


def write_notebook(folder: Path) -> None:
    made = [
        {"cell_type": "code", "source": source, "metadata": {}, "outputs": [],
         "execution_count": None, "id": f"cell-{number}"}
        for number, source in enumerate(CELLS)
    ]  # fmt: skip
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4,
               "nbformat_minor": 5}  # fmt: skip
    (folder / "panel.ipynb").write_text(json.dumps(content))
