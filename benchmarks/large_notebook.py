"""What commands take in a notebook that holds many Python objects, beside one that holds none.

    python benchmarks/large_notebook.py [--save]     writes results/large_notebook.json

Each notebook is a process of its own, on a virtual card; times are of the wall clock, in seconds,
of a measured cell that allocates one tensor, of `%gpucheck`, of a prediction of that cell, of a
cell that runs out of memory, and of `%gpucheck --free` after it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import platform
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "large_notebook.json"
SETUP = "import torch, types\n%gpumem --gpu t4"
SMALL = "y = torch.ones(1000, device='cuda')"
COMMANDS = {
    "measured cell": f"%%gpumem\n{SMALL}",
    "%gpucheck": "%gpucheck",
    "prediction": f"%%gpucheck\n{SMALL}",
    "out of memory": "%%gpumem\nx = torch.empty(1 << 40, device='cuda')",
    "--free": "%gpucheck --free",
}
NOTEBOOKS = {
    "nothing": "data = None",
    "1 M records in a list": "data = [{'text': 'x', 'ids': [i]} for i in range(1_000_000)]",
    "500,000 records in a dict": "data = {i: (i, [i]) for i in range(500_000)}",
    "100,000 lists of 64 numbers": "data = [{'ids': [i] * 64} for i in range(100_000)]",
    "300,000 objects": "data = [types.SimpleNamespace(ids=[i]) for i in range(300_000)]",
    "2,000 lists of 200 records": "data = [[{'n': [i]} for i in range(200)] for j in range(2000)]",
    "200,000 tensors of the host": "data = [torch.zeros(3) for i in range(200_000)]",
}


def measure(notebook: str, answer: Connection) -> None:
    """Run the commands; sends their seconds by name."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        shell.run_line_magic("load_ext", "gpumem_magic")
        for cell in (SETUP, COMMANDS["measured cell"], COMMANDS["prediction"], NOTEBOOKS[notebook]):
            shell.run_cell(cell)
        taken = {}
        for name, cell in COMMANDS.items():
            begin = time.perf_counter()
            shell.run_cell(cell)
            taken[name] = round(time.perf_counter() - begin, 3)
    answer.send(taken)


def in_a_process(notebook: str) -> dict[str, float]:
    """Of a notebook in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(notebook, send))
    process.start()
    taken: dict[str, float] = receive.recv()
    process.join()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    print(f"{'':<30}" + "".join(f"{name:>15}" for name in COMMANDS))
    rows = {}
    for notebook in NOTEBOOKS:
        rows[notebook] = in_a_process(notebook)
        print(f"{notebook:<30}" + "".join(f"{rows[notebook][name]:>13.2f} s" for name in COMMANDS))
    if options.save:
        about = {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version()}
        RESULTS.write_text(json.dumps({**about, "seconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
