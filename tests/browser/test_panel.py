"""The panel where no browser runs our module, or the kernel has no anywidget: plain controls follow
a running cell, give a changed cell that needs less, are accessible, show hostile text as text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("ipywidgets")

from tests.browser.notebooks import (
    KINDS,
    LAB,
    PANEL,
    axe_core,
    check_accessible,
    open_and_run,
    opened,
    run_cell,
    write_notebook,
)

pytestmark = pytest.mark.browser

ROWS = f"{PANEL} select >> nth=1"

HOSTILE = (
    "<script>document.title='broken'</script><img src=x onerror=document.title='broken'>"
    "'&amp; \u05e9\u05dc\u05d5\u05dd \u202e \U0001f469\u200d\U0001f680"
)
OPEN = "%load_ext gpumem_magic\n%gpumem --panel"
CELLS = (
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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_the_panel_follows_advises_and_shows_text(
    browser, serve, user_settings, no_anywidget, tmp_path, screenshots, kind
):
    folder = tmp_path / "files"
    folder.mkdir()
    user_settings(tmp_path, kind.theme)
    if kind is LAB:
        no_anywidget(tmp_path)
        first = OPEN
    else:
        first = f"import sys\nsys.modules['anywidget'] = None\n{OPEN}"
    write_notebook(folder, (first, *CELLS))
    with serve(kind.module, tmp_path, folder) as url, opened(browser, screenshots) as page:
        page.goto(f"{url}{kind.path}panel.ipynb")
        open_and_run(page, kind, len(CELLS) + 1, 3)
        page.locator(PANEL).get_by_text("pip install anywidget").first.wait_for()
        assert page.locator(".gpumem-screen").count() == 0

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

        check_slider(page)

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


def check_slider(page) -> None:
    """The handle is below the moment that the chart above marks, at any moment."""
    handle = page.locator(f"{PANEL} .gpumem-slider [role=slider], {PANEL} .ui-slider-handle").first
    for key in ("Home", "End"):
        handle.press(key)
        page.wait_for_function(BELOW, timeout=20_000)


BELOW = """() => {
  const middle = (box) => (box.left + box.right) / 2;
  const panel = [...document.querySelectorAll('.gpumem-panel')].find(p => p.offsetParent);
  const handle = panel.querySelector('.gpumem-slider [role=slider], .ui-slider-handle');
  const mark = panel.querySelector('svg line[stroke=currentColor]');
  const [x, wanted] = [handle, mark].map(one => middle(one.getBoundingClientRect()));
  return Math.abs(x - wanted) <= 1.5;
}"""


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


COUNT = "([lists, n]) => document.querySelectorAll(lists)[1]?.options.length == n"


def levels_while_running(page) -> set[str]:
    """Sizes that the first gauge showed while cells ran; ends with the second one."""
    seen: set[str] = set()
    page.locator(PANEL).get_by_text("running for").first.wait_for()
    for _ in range(200):
        text = page.locator(PANEL).first.inner_text()
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


def test_axe_core_is_here():
    if axe_core() is None:
        pytest.skip("npm cannot get axe-core: accessibility is not checked")
