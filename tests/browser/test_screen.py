"""The panel's ES module in real notebooks: tabs, the table, comparisons, the timeline, by mouse
and by keyboard; how tall and how wide it is; who can use it."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("anywidget")

from tests.browser.notebooks import (
    KINDS,
    LAB,
    PANEL,
    RESERVE,
    appears,
    check_accessible,
    open_and_run,
    opened,
    run_cell,
    write_notebook,
)

pytestmark = pytest.mark.browser

SCREEN = f"{PANEL} .gpumem-screen"
LONG = "\n".join(f"y{i} = x * {i}" for i in range(299))
CELLS = (
    "%load_ext gpumem_magic\n%gpumem --panel",
    "import time, torch\n"
    "net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).cuda()\n"
    "batches = [torch.randn(4096, 256) for _ in range(9)]",
    "%%gpumem -q --name scores\nscores = []\nfor batch in batches:\n"
    "    out = net(batch.to('cuda'))\n    scores.append(out.mean())\n    time.sleep(0.3)",
    "%%gpumem -q --name one\nx = torch.ones(1 << 22, device='cuda')",
    "%%gpumem -q --name twelve\n" + "\n".join(["x = torch.ones(1 << 20, device='cuda')"] * 12),
    f"%%gpumem -q --name long\nx = torch.ones(1 << 18, device='cuda')\n{LONG}",
    "import time\ntime.sleep(2)",
)
TABS = ("Now", "Cell", "History", "Advice", "Predict")
WIDE = """p => [...document.querySelector(p).querySelectorAll('*')]
  .filter(e => e.clientWidth && getComputedStyle(e).display != 'inline' && !e.closest('svg'))
  .filter(e => e.getBoundingClientRect().right
    > document.querySelector(p).getBoundingClientRect().right + 1)
  .filter(e => !e.parentElement.closest('.g-scroll, .gpumem-screen pre, .gpumem-screen [dir=ltr]'))
  .map(e => e.outerHTML.slice(0, 120))"""

SCROLLED = """p => [...document.querySelectorAll(`${p} .g-scroll`)]
  .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.outerHTML.slice(0, 120))"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS[:2])
def test_the_module_shows_the_panel(browser, serve, user_settings, tmp_path, screenshots, kind):
    folder = tmp_path / "files"
    folder.mkdir()
    write_notebook(folder, CELLS)
    user_settings(tmp_path, kind.theme)
    with serve(kind.module, tmp_path, folder) as url, opened(browser, screenshots) as page:
        errors = []
        page.on("pageerror", lambda error: errors.append(f"{error}\n{error.stack}"))
        page.goto(f"{url}{kind.path}panel.ipynb")
        open_and_run(page, kind, len(CELLS), 6)

        # WHEN a browser has the module THEN it shows the panel, and nothing else does
        page.locator(SCREEN).first.wait_for()
        assert page.locator(f"{PANEL} .widget-button, {PANEL} .widget-select").count() == 0

        # WHEN a cell runs THEN the first lines say so, on every tab
        told = page.locator(f"{SCREEN} .g-state")
        told.get_by_text("running for").first.wait_for()
        assert "line " in told.inner_text()
        told.get_by_text("no cell is running").wait_for()

        check_history(page)
        check_cell(page)
        check_keyboard(page)
        check_advice(page)
        check_predictions(page)

        # WHEN the page is loaded again THEN the comparison is still there
        tab(page, "History")
        page.reload()
        page.locator(kind.cell).nth(len(CELLS) - 1).wait_for()
        if not appears(page, SCREEN, RESERVE // 6):  # by then the kernel is connected again
            run_cell(page, kind, 0)
        page.locator(SCREEN).get_by_text("Allocated by line").first.wait_for()
        check_looks(page, screenshots, kind)
        check_accessible(page, PANEL)
        if kind is LAB:
            check_beside(page, screenshots)
        assert [error for error in errors if "blob:" in error] == []  # the module's own


def tab(page, name):
    page.locator(SCREEN).get_by_role("tab", name=name, exact=True).click()
    page.locator(f"{SCREEN} [role=tabpanel]:not([hidden])").wait_for()


def names(page):
    return page.locator(f"{SCREEN} .g-rows tbody .g-name").all_inner_texts()


def check_history(page):
    """The table sorts; cells of 1, 12 and 300 lines can be compared."""
    tab(page, "History")
    row = page.locator(f"{SCREEN} .g-rows tbody tr")
    row.nth(3).wait_for()
    assert names(page) == ["long", "twelve", "one", "scores"]
    page.get_by_role("button", name="cell", exact=True).click()
    assert names(page) == ["long", "one", "scores", "twelve"]
    page.get_by_role("button", name="peak", exact=True).click()
    peaks = page.locator(f"{SCREEN} .g-rows tbody td:nth-child(4)").all_inner_texts()
    values = [float(text.split()[0]) for text in peaks]
    assert values == sorted(values, reverse=True)
    page.get_by_role("button", name="No", exact=True).click()
    for first, second in (("one", "twelve"), ("one", "long"), ("scores", "twelve")):
        row.filter(has_text=first).first.click()
        page.locator(f"{SCREEN} tr[aria-selected=true]", has_text=first).wait_for()
        row.filter(has_text=second).get_by_role("button").click()
        page.locator(f"{SCREEN} [aria-pressed=true]", has_text="compare").wait_for()
        title = page.locator(SCREEN).get_by_text(f"({second}) \u2192 ").filter(has_text=first)
        title.first.wait_for()
        assert page.locator(SCREEN).get_by_text("Allocated by line").first.is_visible()
        assert page.locator(SCREEN).get_by_text("too long to be shown").count() == 0
        courses = page.locator(f"{SCREEN} svg[aria-label*='course of both'] path")
        assert [courses.nth(i).is_visible() for i in range(courses.count())] == [True, True]
    with page.expect_download() as download:
        page.get_by_role("button", name="Download", exact=True).click()
    assert download.value.suggested_filename == "gpumem-history.html"
    assert download.value.path().read_text().startswith("<!DOCTYPE html>")


def check_cell(page):
    """Peaks are the same on each tab; a band tells its blocks."""
    row = page.locator(f"{SCREEN} .g-rows tbody tr").filter(has_text="twelve")
    row.locator("th").click()
    page.locator(f"{SCREEN} tr[aria-selected=true]", has_text="twelve").wait_for()
    peak = row.locator("td").nth(2).inner_text()
    tab(page, "Cell")
    page.locator(f"{SCREEN} .g-plot").wait_for()
    page.locator(SCREEN).get_by_text("twelve").first.wait_for()
    page.get_by_role("button", name="Peak", exact=True).click()
    said = page.locator(f"{SCREEN} .g-said")
    whole = float(re.search(r"([\d.]+) MiB allocated", said.inner_text())[1])
    assert peak == f"{whole:.1f} MiB"
    page.locator(f"{SCREEN} .g-plot").press("Enter")
    rows = page.locator(f"{SCREEN} .g-blocks tr").all_inner_texts()
    assert any("4.0 MiB" in row for row in rows)


def check_keyboard(page):
    """From tab to tab and from row to row with the keys alone."""
    page.get_by_role("tab", name="Cell", exact=True).focus()
    page.keyboard.press("ArrowRight")
    page.locator(f"{SCREEN} [role=tab][aria-selected=true]", has_text="History").wait_for()
    page.keyboard.press("Tab")  # to what the tab shows, then to the heads of the table
    row = page.locator(f"{SCREEN} .g-rows tbody tr[tabindex='0']")
    row.focus()
    before = row.get_attribute("data-number")
    page.keyboard.press("ArrowDown")
    page.wait_for_function(
        "([p, n]) => document.querySelector(p)?.dataset.number != n"
        " && document.activeElement == document.querySelector(p)",
        arg=[f"{SCREEN} tr[aria-selected=true]", before],
    )


def check_advice(page):
    page.locator(f"{SCREEN} .g-rows tbody tr").filter(has_text="scores").locator("th").click()
    page.locator(f"{SCREEN} tr[aria-selected=true]", has_text="scores").wait_for()
    tab(page, "Advice")
    card = page.locator(f"{SCREEN} .g-card > button").filter(has_text="missing-no-grad")
    card.click()
    page.locator(f"{SCREEN} .g-card > button[aria-expanded=true]", has_text="no-grad").wait_for()
    button = page.locator(SCREEN).get_by_role
    button("button", name="Insert cell", disabled=False).click()
    done = page.locator(SCREEN).get_by_text("was inserted below this one").first
    allow = page.locator(".jp-Dialog").get_by_role("button", name="Run Once")
    for _ in range(2):  # JupyterLab asks before each command, as nobody trusts this notebook
        done.or_(allow).first.wait_for()
        if allow.count():
            allow.click()
    done.wait_for()
    cells = page.locator(".jp-CodeCell")
    place = next(n for n in range(cells.count()) if cells.nth(n).locator(PANEL).count())
    assert "no_grad" in cells.nth(place + 1).locator(".cm-content").inner_text()
    button("button", name="Measure", exact=True).click()
    page.locator(SCREEN).get_by_text("Measured:").wait_for()


def check_predictions(page):
    tab(page, "Predict")
    for card in ("T4", "A100-80GB"):
        chip = page.locator(SCREEN).get_by_role("button", name=card, exact=True)
        chip.click()
        page.locator(f"{SCREEN} [aria-pressed=true]").get_by_text(card, exact=True).wait_for()
    page.locator(SCREEN).get_by_role("button", name="Predict", exact=True).click()
    page.locator(SCREEN).get_by_text("Predicted.").wait_for()
    for card in ("Tesla T4", "NVIDIA A100"):
        assert page.locator(SCREEN).get_by_text(card).count()


def check_looks(page, screenshots, kind):
    """No tab is taller than a screen, nothing is wider than its place."""
    style = "([p, w]) => document.querySelector(p).style.width = w"
    page.set_viewport_size({"width": 1280, "height": 1400})
    for width in (1000, 600, 360):
        page.evaluate(style, [PANEL, f"{width}px"])
        for name in TABS:
            tab(page, name)
            page.wait_for_timeout(400)
            file = f"screen-{kind.module}-{name.lower()}-{width}.png"
            page.locator(PANEL).first.screenshot(path=screenshots / file)
            assert page.locator(PANEL).first.bounding_box()["height"] <= 900, (name, width)
            assert page.evaluate(WIDE, PANEL) == [], (name, width)
            assert page.evaluate(SCROLLED, SCREEN) == [], (name, width)
        tab(page, "History")
        row = page.locator(f"{SCREEN} .g-rows tbody tr").filter(has_text="scores")
        shown = row.locator("svg").filter(visible=True)
        assert re.search(r"[\d.]+ m?s", row.inner_text())
        assert "Tesla T4" in row.inner_text()
        assert shown.count() == 1
    page.evaluate(style, [PANEL, ""])


def check_beside(page, screenshots):
    """JupyterLab puts the panel beside the notebook in the way that the header tells; the picture
    is the README's."""
    page.set_viewport_size({"width": 1400, "height": 820})
    page.locator(PANEL).first.get_by_text("Beside the notebook").click(button="right")
    page.locator(".lm-Menu").get_by_text("Create New View for Cell Output", exact=True).click()
    beside = page.locator(".jp-LinkedOutputView .gpumem-screen").first
    beside.get_by_role("tab", name="Cell", exact=True).click()
    view = page.locator(".lm-TabBar-tab", has_text="Output View").first.bounding_box()
    notebook = page.locator(".jp-NotebookPanel").first.bounding_box()
    page.mouse.move(view["x"] + 30, view["y"] + 10)
    page.mouse.down()
    page.mouse.move(notebook["x"] + notebook["width"] - 40, notebook["y"] + 200, steps=20)
    page.mouse.up()
    page.keyboard.press("Control+b")  # the list of files goes
    beside.locator(".g-plot").wait_for()
    page.locator(LAB.cell, has_text="import time, torch").evaluate("cell => cell.scrollIntoView()")
    beside.evaluate("panel => panel.scrollIntoView()")
    page.wait_for_timeout(1000)
    page.screenshot(path=screenshots / "beside-jupyterlab.png")
    assert beside.bounding_box()["width"] <= page.viewport_size["width"] / 2 + 100
