"""The figure of a report below its cell: a picture until somebody asks, then it answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("anywidget")

from gpumem_magic.units import format_size
from tests.browser.notebooks import (
    KINDS,
    RESERVE,
    appears,
    check_accessible,
    opened,
    ready,
    write_notebook,
)

pytestmark = pytest.mark.browser

CELLS = (
    "%load_ext gpumem_magic\nimport torch",
    "%%gpumem --name step\n"
    "net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(2)]).cuda()\n"
    "x = torch.ones(4096, 1024, device='cuda')\nloss = net(x).sum()\nloss.backward()",
    "%%gpumem --name other\ny = torch.ones(1 << 20, device='cuda')",
)
FIGURE = ".gpumem-figure"
WEIGHT = 1024 * 1024 * 4
HEIGHT = """() => Math.max(...[...document.querySelectorAll('.jp-RenderedHTML details > summary')]
  .filter(s => s.textContent.startsWith('Details'))
  .map(s => s.parentElement.parentElement.getBoundingClientRect().height))"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_figure_answers_when_it_is_asked(
    browser, serve, user_settings, tmp_path, screenshots, kind
):
    folder = tmp_path / "files"
    folder.mkdir()
    write_notebook(folder, CELLS)
    user_settings(tmp_path, kind.theme)
    with serve(kind.module, tmp_path, folder) as url, opened(browser, screenshots) as page:
        received, errors = [], []

        def heard(frame):
            received.append(frame)

        page.on("websocket", lambda socket: socket.on("framereceived", heard))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{url}{kind.path}panel.ipynb")
        run_all(page, kind)

        # WHEN reports are shown THEN each has a button, no more than a screenful is seen, and
        # little was sent for those that nobody looks at
        button = page.locator(f"{FIGURE} > button")
        button.nth(1).wait_for()
        assert button.count() == page.locator(f"{FIGURE} img").count() == 2
        assert page.evaluate(HEIGHT) <= 400
        sent = [text for text in map(told, received) if b'"comm_' in text]
        assert sum(map(len, sent)) < 20_000
        page.screenshot(path=screenshots / f"figure-{kind.module}.png")

        # WHEN one is pressed THEN the timeline takes the picture's place, and tells of the peak
        figure = page.locator(FIGURE).first
        received.clear()
        figure.locator("> button").click()
        plot = figure.locator(".g-plot")
        plot.wait_for()
        assert not figure.locator("img").is_visible()
        assert max(len(told(text)) for text in received) < 20_000
        plot.press("p")
        said = figure.locator(".g-said")
        assert "(the peak)" in said.inner_text()
        plot.press("ArrowUp")
        plot.press("Enter")
        rows = figure.locator(".g-blocks tr").all_inner_texts()
        assert any("net[0].weight" in row and format_size(WEIGHT) in row for row in rows)
        assert not any("In[" in row and "line " in row for row in rows)  # both say the same
        page.screenshot(path=screenshots / f"figure-{kind.module}-open.png")
        check_accessible(page, FIGURE)
        widths(page, figure, screenshots, kind)

        # AND the picture comes back
        figure.locator("> button").press("Enter")
        assert figure.locator("img").is_visible()
        assert not plot.is_visible()

        # WHEN the page is loaded again, with the kernel alive, THEN figures still answer
        save(page, folder / "panel.ipynb")
        page.reload()
        figure = page.locator(FIGURE).first
        figure.locator("> button").click()
        figure.locator(".g-plot").wait_for()
        assert [error for error in errors if "blob:" in error] == []
    saved = json.loads((folder / "panel.ipynb").read_text())
    mimes = {
        mime for one in saved["cells"] for out in one["outputs"] for mime in out.get("data", {})
    }
    assert mimes <= {"text/html", "text/plain"}
    assert "widgets" not in saved["metadata"]


def save(page, notebook: Path) -> None:
    """A page that is loaded again before the file is written loses what cells have printed."""
    page.keyboard.press("Control+s")
    for _ in range(RESERVE // 100):
        text = notebook.read_text()
        if text.rstrip().endswith("}") and text.count('"output_type"') >= 2:
            return
        page.wait_for_timeout(100)
    raise AssertionError("the notebook is not written")


def widths(page, figure, screenshots, kind):
    """Nothing is wider than its place."""
    wide = """e => [...e.querySelectorAll('*')].filter(n => n.clientWidth && !n.closest('svg')
      && getComputedStyle(n).display != 'inline'
      && n.getBoundingClientRect().right > e.getBoundingClientRect().right + 1)
      .map(n => n.outerHTML.slice(0, 100))"""
    for width in (600, 360):
        figure.evaluate("(e, w) => e.style.width = `${w}px`", width)
        figure.screenshot(path=screenshots / f"figure-{kind.module}-{width}.png")
        assert figure.evaluate(wide) == []
    figure.evaluate("e => e.style.width = ''")


def told(frame) -> bytes:
    """What a frame of the kernel's connection holds."""
    return frame if isinstance(frame, bytes) else frame.encode()


def run_all(page, kind) -> None:
    """Run the cells; again, and on a page loaded again, for as long as no figure answers."""
    for attempt in range(6):
        ready(page, kind, len(CELLS))
        for place in range(len(CELLS)):
            page.locator(kind.cell).nth(place).locator(kind.editor).first.click()
            page.keyboard.press("Shift+Enter")
        if appears(page, f"{FIGURE} > button >> nth=1", RESERVE // 2):
            return
        page.keyboard.press("Escape")
        if attempt % 2:
            page.reload()
