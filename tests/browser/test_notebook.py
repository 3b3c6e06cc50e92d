"""Notebook 1 in a real JupyterLab, light and dark: everything is there, visible and readable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser
pytest.importorskip("jupyterlab")

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "1-first-measurement.ipynb"
OUTPUT = ".jp-OutputArea-output"

# The lowest contrast (WCAG 1.4.3) of the reports' words with what is painted behind them. Signs
# without a letter or digit are left out: they repeat what the words say.
CONTRAST = """() => {
  const rgb = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = c => c.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const c = rgb(getComputedStyle(node).backgroundColor);
      if (c.length < 4 || c[3] > 0.5) return c;
    }
    return [255, 255, 255];
  };
  const nodes = [...document.querySelectorAll('.jp-RenderedHTML *')].filter(n => n.offsetParent
    && [...n.childNodes].some(c => c.nodeType === 3 && /[\\w]/.test(c.textContent)));
  return nodes.map(n => {
    const [a, b] = [light(rgb(getComputedStyle(n).color)), light(behind(n))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), n.textContent.trim().slice(0, 60)];
  }).sort((x, y) => x[0] - y[0])[0];
}"""


# The pixels of each report, all that it says more being folded.
HEIGHTS = """() => [...document.querySelectorAll('.jp-RenderedHTML details > summary')]
  .filter(summary => summary.textContent.startsWith('Details'))
  .map(summary => summary.parentElement.parentElement)
  .filter(shown => !shown.textContent.includes('Allocated, from start to end'))
  .map(report => report.getBoundingClientRect().height)"""


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_reports_can_be_read_in_jupyterlab(browser, lab, screenshots, theme):
    cells = [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    marks = [c["source"][0] for c in cells if c["source"][0].startswith("%%gpumem")]
    failing = sum("raises-exception" in c["metadata"].get("tags", []) for c in cells)
    with lab(theme) as (url, folder):
        shutil.copy(NOTEBOOK, folder)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(120_000)
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))

        # WHEN a person opens the notebook and runs all its cells
        page.goto(f"{url}/tree/{NOTEBOOK.name}")
        page.wait_for_function(
            "n => document.querySelectorAll('.jp-CodeCell').length == n", arg=len(cells)
        )
        page.get_by_text("| Idle").first.wait_for()
        try:
            run_all(page)
        finally:
            keep(page, screenshots, theme.split()[-1].lower())

        # THEN each measured cell shows its report: a table, its caption and a picture; so does a
        # comparison
        images = page.locator(f"{OUTPUT} img[alt]")
        compared = sum("--compare" in "".join(c["source"]) for c in cells)
        assert images.count() == sum("--no-plot" not in mark for mark in marks) + compared > 0
        assert page.locator(f"{OUTPUT} table:visible").count() >= len(marks)
        assert page.locator(f"{OUTPUT} caption:visible").count() >= len(marks)
        assert all(n > 100 for n in images.evaluate_all("all => all.map(i => i.naturalWidth)"))
        assert all(images.evaluate_all("all => all.map(i => i.alt.length > 20)"))

        # AND each is seen at one look, with the rest folded
        heights = page.evaluate(HEIGHTS)
        assert len(heights) >= len(marks) - 1
        assert max(heights) <= 400

        # AND nothing failed but the cells that are meant to
        complaints = page.locator('[data-mime-type="application/vnd.jupyter.stderr"]')
        assert sum("Traceback" in text for text in complaints.all_inner_texts()) == failing
        assert errors == []

        # AND every text stands out from what is behind it
        worst, text = page.evaluate(CONTRAST)
        assert worst >= 4.5, f"contrast {worst:.1f} of {text!r}"


def run_all(page) -> None:
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator('[data-command="runmenu:run-all"]').click()
    page.wait_for_function(
        """() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
           .every(prompt => /\\d/.test(prompt.textContent))""",
        timeout=240_000,
    )
    page.get_by_text("| Idle").first.wait_for()
    page.wait_for_function(  # pictures are decoded after the kernel is idle
        "() => [...document.images].every(image => image.complete && image.naturalWidth)"
    )


def keep(page, folder: Path, theme: str) -> None:
    """Pictures of the whole notebook and of each report, for people to look at."""
    height = page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollHeight")
    page.set_viewport_size({"width": 1280, "height": min(int(height) + 120, 16_000)})
    page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollTo(0, 0)")
    page.wait_for_timeout(1000)
    page.locator(".jp-NotebookPanel").screenshot(path=folder / f"notebook-{theme}.png")
    reports = page.locator(f"{OUTPUT}:has(caption)")
    for number in range(reports.count()):
        reports.nth(number).screenshot(path=folder / f"report-{number + 1}-{theme}.png")
