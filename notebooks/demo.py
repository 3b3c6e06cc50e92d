"""Run notebook 1 on the virtual GPU, print what it measured, and keep what it made: `make demo`."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).with_name("1-first-measurement.ipynb")


def run(folder: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs; files that it writes go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook,
        timeout=600,
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--log-level=40"],  # errors only: this is a terminal to be read
    ).execute()
    nbformat.write(notebook, folder / NOTEBOOK.name)
    return notebook


def reports(notebook: nbformat.NotebookNode) -> list[str]:
    """The text of every Report below a measured cell."""
    return [
        output.data["text/plain"]
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.source.startswith("%%gpumem")
        for output in cell.outputs
        if output.output_type == "display_data" and output.data["text/plain"]
    ]


def main() -> None:
    """Run, print, and say where everything is."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo")
    print(f"Running {NOTEBOOK.name} on a virtual GPU ...\n", flush=True)
    for text in reports(run(folder)):
        print(f"{'─' * 80}\n{text}\n")
    print("Everything above, with pictures and explanations:")
    print(f"  the executed notebook   {folder / NOTEBOOK.name}")
    for page in sorted(folder.glob("*.html")):
        print(f"  the report as a page    {page}")


if __name__ == "__main__":
    main()
