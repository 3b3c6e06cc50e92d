"""Draw docs/report.png from a real run of the README's example: `make picture`."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from playwright.sync_api import sync_playwright

README = Path(__file__).resolve().parents[1] / "README.md"
LARGEST = 200_000  # bytes; a README should load fast


def example() -> str:
    """The first measured cell of the README."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if block.startswith("%%gpumem")).rstrip("\n")


def executed(code: str) -> str:
    """The page of a notebook whose last cell is `code`, run."""
    cells = ["%load_ext gpumem_magic\nimport torch", code]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120).execute()
    exporter = HTMLExporter(template_name="lab", mathjax_url="", require_js_url="")
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    return str(exporter.from_notebook_node(notebook)[0])


def draw(html: str, target: Path) -> None:
    """Photograph the last cell of the page."""
    page_file = Path(tempfile.mkdtemp()) / "page.html"
    page_file.write_text(html)
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 960, "height": 1200})
        page.goto(page_file.as_uri())
        page.locator(".jp-CodeCell").last.screenshot(path=target)
        browser.close()


def main() -> None:
    """Draw, and say so."""
    target = Path(sys.argv[1])
    draw(executed(example()), target)
    size = target.stat().st_size
    if size > LARGEST:
        sys.exit(f"{target} has {size:,} bytes, more than {LARGEST:,}")
    print(f"drew {target}, {size:,} bytes")


if __name__ == "__main__":
    main()
