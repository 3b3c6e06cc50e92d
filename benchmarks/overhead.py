"""What measuring costs: per operator, per empty cell and at import, beside the tools that people use.

python benchmarks/overhead.py [--json] [--rounds N]

Everything that is compared runs in one process, in turns, and the best turn counts: a busy machine
only ever adds time. A tool that is not installed is named as such.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from IPython.core.interactiveshell import InteractiveShell
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic import measure

ITERATIONS = 150  # of `step`, 4 operators each
CELLS = 100


class EmptyDispatch(TorchDispatchMode):
    """The least that seeing every operator costs; counts them, too."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators += 1
        return func(*args, **(kwargs or {}))


class EmptyFunction(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def operators(device: str, iterations: int = ITERATIONS) -> Callable[[], None]:
    """Small operators, so that the time is the overhead: two that allocate, a view, one in place."""
    x = torch.ones(16, 16, device=device)

    def step() -> None:
        for _ in range(iterations):
            y = x * 1.5
            z = y + x
            z.view(256)
            z.add_(1.0)

    return step


def count(work: Callable[[], None]) -> int:
    with EmptyDispatch() as mode:
        work()
    return mode.operators


@contextmanager
def both_modes() -> Iterator[None]:
    with EmptyFunction(), EmptyDispatch():
        yield


def profiler() -> AbstractContextManager[Any]:
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, with_stack=True
    )


def mem_tracker() -> AbstractContextManager[Any]:
    from torch.distributed._tools import MemTracker

    return MemTracker()


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def per_operator(rounds: int) -> dict[str, float | str]:
    """Microseconds an operator, over eager, of each way to watch."""
    on_host = {
        "empty TorchDispatchMode": EmptyDispatch,
        "empty dispatch and function modes": both_modes,
        "torch.profiler(profile_memory, with_stack)": profiler,
        "torch.distributed._tools.MemTracker": mem_tracker,
    }
    work = operators("cpu")
    total = count(work)
    eager = min(seconds(work) for _ in range(rounds))
    result: dict[str, float | str] = {"eager": eager / total * 1e6}
    for name, watch in on_host.items():
        result[name] = over(eager, min(watched(watch, work) for _ in range(rounds)), total)
    measured = min(watched(lambda: measure(device="T4"), None) for _ in range(rounds))
    result["gpumem_magic, virtual GPU, recording"] = over(eager, measured, total)
    result["gpumem_magic, virtual GPU, not recording"] = over(eager, unrecorded(rounds), total)
    result["pytorch_memlab LineProfiler"] = memlab(rounds)
    return result


def over(eager: float, other: float, total: int) -> float:
    return (other - eager) / total * 1e6


def watched(
    watch: Callable[[], AbstractContextManager[Any]], work: Callable[[], None] | None
) -> float:
    """Seconds of the work alone, inside the watcher (which makes its tensors, if `work` is None)."""
    with warnings.catch_warnings(), watch():
        warnings.simplefilter("ignore")
        work = work or operators("cuda")
        return seconds(work)


def unrecorded(rounds: int) -> float:
    """The virtual GPU as it is in a cell that nobody measures."""
    from gpumem_magic.sources import choose_source

    source = choose_source("T4")
    assert source
    source.enter()
    try:
        work = operators("cuda")
        return min(seconds(work) for _ in range(rounds))
    finally:
        source.leave()
        source.close()


def memlab(rounds: int) -> float | str:
    """It needs a CUDA device, so it runs on the virtual GPU, whose own cost is taken off."""
    try:
        from pytorch_memlab import LineProfiler
    except ImportError:
        return "not installed"
    with measure(device="T4"):
        work = operators("cuda", 25)
        total = count(work)
        bare = min(seconds(work) for _ in range(rounds))
        profile = LineProfiler(work)
        with profile:
            watched = min(seconds(work) for _ in range(rounds))
    return over(bare, watched, total)


def per_cell(rounds: int) -> dict[str, float | str]:
    """Milliseconds of an empty cell, run by IPython itself."""
    shell = InteractiveShell.instance()
    with ExitStack() as silence:
        silence.enter_context(contextlib.redirect_stdout(io.StringIO()))
        silence.enter_context(contextlib.redirect_stderr(io.StringIO()))
        result: dict[str, float | str] = {"bare IPython": cell(shell, "pass", rounds)}
        shell.run_line_magic("load_ext", "gpumem_magic")
        shell.run_line_magic("gpumem", "--device T4")
        result["gpumem_magic loaded, not measuring"] = cell(shell, "pass", rounds)
        result["%%gpumem"] = cell(shell, "%%gpumem\npass", rounds)
        shell.run_line_magic("gpumem", "--on")
        result["%gpumem --on"] = cell(shell, "pass", rounds)
        shell.run_line_magic("gpumem", "--off")
        shell.run_line_magic("unload_ext", "gpumem_magic")
        result["ipyexperiments"] = ipyexperiments(shell)
    return result


def cell(shell: InteractiveShell, source: str, rounds: int, cells: int = CELLS) -> float:
    def run() -> None:
        for _ in range(cells // 10):
            shell.run_cell(source)

    run()
    return min(seconds(run) for _ in range(max(rounds, 10))) / (cells // 10) * 1e3


def ipyexperiments(shell: InteractiveShell) -> float | str:
    try:
        from ipyexperiments import IPyExperimentsCPU
    except ImportError:
        return "not installed"
    shell.push({"Experiment": IPyExperimentsCPU})
    shell.run_cell("experiment = Experiment()")
    try:
        return cell(shell, "pass", 2, 30)
    finally:
        shell.run_cell("del experiment")


def import_time(rounds: int) -> dict[str, float]:
    """Milliseconds of the import in a new interpreter; the libraries that it needs are in them."""
    probe = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"

    def best(module: str) -> float:
        times = [
            subprocess.run(
                [sys.executable, "-c", probe.format(module)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for _ in range(max(rounds, 5))
        ]
        return min(map(float, times)) * 1e3

    return {module: best(module) for module in ("gpumem_magic", "numpy", "IPython", "torch")}


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            row.split(":")[1].strip()
            for row in info.read_text().splitlines()
            if "model name" in row
        ]
        cpu = names[0] if names else cpu
    packages = ("torch", "ipython", "ipyexperiments", "pytorch_memlab")
    return {
        "cpu": f"{cpu}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "packages": ", ".join(f"{name} {installed(name)}" for name in packages),
        "date": time.strftime("%Y-%m-%d"),
    }


def installed(package: str) -> str:
    try:
        return version(package)
    except ModuleNotFoundError:
        return "not installed"


def table(title: str, rows: dict[str, float | str], unit: str, base: str | None = None) -> str:
    lines = [title]
    for name, value in rows.items():
        text = f"{value:10.2f} {unit}" if isinstance(value, float) else f"  {value}"
        reference = rows.get(base or "")
        if isinstance(value, float) and isinstance(reference, float) and name != base:
            text += f"   {value / reference:8.1f} x"
        lines.append(f"  {name:<44}{text}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each measurement")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with nullcontext() if not options.json else contextlib.redirect_stderr(io.StringIO()):
        results = {
            "machine": machine(),
            "microseconds_per_operator_over_eager": per_operator(options.rounds),
            "milliseconds_per_empty_cell": per_cell(options.rounds),
            "milliseconds_to_import": import_time(options.rounds),
        }
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print("\n".join(results["machine"].values()))
    op, cells, imports = list(results.values())[1:]
    print(table("\nMicroseconds an operator, over eager", op, "us", "empty TorchDispatchMode"))
    print(table("\nMilliseconds of an empty cell", cells, "ms", "bare IPython"))
    print(table("\nMilliseconds to import", imports, "ms"))


if __name__ == "__main__":
    main()
