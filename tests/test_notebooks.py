"""The tutorials run from a clean start, and every number that their text names is one they show."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))
SIZE = re.compile(r"\d[\d,.]*\s(?:[KMG]iB|bytes)")


def texts(cell):
    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.text
        elif output.output_type == "error":
            yield output.evalue
        else:
            yield output.data.get("text/plain", "")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_and_shows_the_numbers_it_explains(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]

    # THEN only cells that are meant to fail do, and those really do
    for cell in code:
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == ("raises-exception" in cell.metadata.get("tags", []))
        complaints = [output.text for output in cell.outputs if output.get("name") == "stderr"]
        assert all(text.startswith("gpumem_magic: ") for text in complaints), complaints

    # AND every measured cell has its report, for a screen, a page and a file
    for cell in code:
        if cell.source.startswith("%%gpumem"):
            kinds = [set(o.data) for o in cell.outputs if o.output_type == "display_data"]
            assert {"text/plain", "text/html"} <= set.union(set(), *kinds), cell.source

    # AND every size in the text stands in an output
    seen = "\n".join(text for cell in code for text in texts(cell))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            told = [size for size in SIZE.findall(cell.source) if size not in seen]
            assert told == [], f"no output shows {told}"
