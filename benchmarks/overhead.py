"""What measuring costs per operator, per empty cell and at import, beside the tools in use; and on
a CUDA device, or its stub, per allocation and free, beside PyTorch's own recording.

python benchmarks/overhead.py [--json] [--rounds N] [--seconds N] [--events]

Everything that is compared runs in one process, in turns, and the best turn counts: a busy machine
only ever adds time. A tool that is not installed is named as such.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import stub_device
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem_magic import measure
from gpumem_magic.devices import choose_source

EVENTS = "microseconds_per_allocation_or_free"
UNWATCHED = "unwatched"
TORCHS = "PyTorch's recording and snapshot"
OURS = "gpumem_magic, report included"
STEPS = 50
LAYERS = 60
CELLS = 100


class EmptyDispatch(TorchDispatchMode):
    """The least that seeing every operator costs; counts them, too."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        return func(*args, **(kwargs or {}))


class EmptyFunction(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def training(device: str) -> Callable[[], None]:
    """One step of a deep and narrow network, so that overhead is what counts and not arithmetic."""
    layers = [
        layer for _ in range(LAYERS) for layer in (nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU())
    ]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.ones(8, 16, device=device)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

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
    """Microseconds an operator, over eager, of each way to watch, its own end included."""
    watchers = {
        "empty TorchDispatchMode": ("cpu", EmptyDispatch),
        "empty dispatch and function modes": ("cpu", both_modes),
        "torch.profiler(profile_memory, with_stack)": ("cpu", profiler),
        "torch.distributed._tools.MemTracker": ("cpu", mem_tracker),
        "gpumem_magic: the virtual GPU alone": ("cuda", virtual_gpu),
        "gpumem_magic: measuring, report included": ("cuda", lambda: measure(device="T4")),
    }
    total = count(training("cpu"))
    eager = best(nullcontext, "cpu", rounds)
    result: dict[str, float | str] = {"eager": eager / total * 1e6}
    for name, (device, watch) in watchers.items():
        result[name] = (best(watch, device, rounds) - eager) / total * 1e6
    result["pytorch_memlab LineProfiler"] = memlab(rounds)
    return result


def best(watch: Callable[[], AbstractContextManager[Any]], device: str, rounds: int) -> float:
    """Seconds of a training step, watched, over what watching does without one."""

    def watched(steps: int) -> float:
        start = time.perf_counter()
        with warnings.catch_warnings(), watch():
            warnings.simplefilter("ignore")
            step = training(device)
            for _ in range(steps):
                step()
        return time.perf_counter() - start

    without, once = zip(*((watched(0), watched(1)) for _ in range(rounds)), strict=True)
    return min(once) - min(without)


@contextmanager
def virtual_gpu() -> Iterator[None]:
    """The virtual GPU as it is in a cell that nobody measures."""
    source = choose_source("T4")
    assert source
    source.enter()
    try:
        yield
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
        work = training("cuda")
        total = count(work)
        bare = min(seconds(work) for _ in range(rounds))
        profile = LineProfiler(work)
        with profile:
            profiled = min(seconds(work) for _ in range(rounds))
    return (profiled - bare) / total * 1e6


def per_cell(rounds: int) -> dict[str, float | str]:
    """Milliseconds of an empty cell, run by IPython itself."""
    shell = InteractiveShell.instance()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
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
    shell.kernel = SimpleNamespace(shell=shell)  # it asks for the shell by way of the kernel
    experiment = IPyExperimentsCPU()
    try:
        return cell(shell, "pass", 1, 30)
    finally:
        experiment.finish()


def per_event(rounds: int, limit: float) -> dict[str, float | str]:
    """Microseconds for each block that is allocated or freed on this machine's CUDA device, over
    the same steps unwatched: medians of rounds in which all ways take turns, in processor time.

    limit: seconds that they may take, after which no further round begins.

    PyTorch's own recording has the settings that ours has. A cell of few events pays for looking at
    the model and for its report all the same: what it pays is told for a cell of one step, and for
    one without any.
    """
    from gpumem_magic.sources.cuda.device import read_counters

    step = training("cuda")
    step()  # the optimizer's state
    begun = read_counters(0).changes
    step()
    events = STEPS * (read_counters(0).changes - begun)
    until = time.monotonic() + limit
    empty, once, took = (watched(step, steps, rounds, until) for steps in (0, 1, STEPS))
    micros = {name: (one - took[UNWATCHED]) / events * 1e6 for name, one in took.items()}
    return {
        "torch": torch.__version__,
        "events": float(events),
        **micros,
        UNWATCHED: took[UNWATCHED] / events * 1e6,
        "gpumem_magic beside PyTorch's recording and snapshot": micros[OURS] - micros[TORCHS],
        "the same, milliseconds a cell of one step": (once[OURS] - once[TORCHS]) * 1e3,
        "the same, milliseconds an empty cell": (empty[OURS] - empty[TORCHS]) * 1e3,
    }


def watched(step: Callable[[], None], steps: int, rounds: int, until: float) -> dict[str, float]:
    """Seconds of so many steps in one cell, by the way in which they are watched; in fewer rounds
    where the next would go on after `until`."""

    def plain() -> None:
        for _ in range(steps):
            step()

    def recorded(read: bool) -> None:
        record = torch.cuda.memory._record_memory_history
        record("all", context="all", stacks="python", max_entries=2_000_000)
        try:
            plain()
            if read:
                torch.cuda.memory._snapshot()
        finally:
            record(None)

    def measured() -> None:
        with measure(device="cuda"):
            plain()

    ways = {
        UNWATCHED: plain,
        "PyTorch's recording": lambda: recorded(read=False),
        TORCHS: lambda: recorded(read=True),
        OURS: measured,
    }
    turns: list[dict[str, float]] = []
    lasted = 0.0
    while not turns or (len(turns) < rounds and time.monotonic() + lasted < until):
        begun = time.monotonic()
        turns.append({name: processor_seconds(way) for name, way in ways.items()})
        lasted = time.monotonic() - begun
    return {name: statistics.median(turn[name] for turn in turns) for name in ways}


def processor_seconds(work: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def on_device(rounds: int, limit: float) -> dict[str, float | str]:
    """`per_event` here, or on the stub; {} where there is neither."""
    if torch.cuda.is_available():
        return per_event(rounds, limit)
    if not stub_device.has_stub():
        return {}
    how = ("--rounds", str(rounds), "--seconds", str(limit))
    command = stub_device.on_stub(__file__, "--events", "--json", *how)
    environment = stub_device.environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float | str] = json.loads(done.stdout)[EVENTS]
    return found


def import_time(rounds: int) -> dict[str, float]:
    """Milliseconds of the import in a new interpreter; the libraries that it needs are in them."""
    probe = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"

    def fastest(module: str) -> float:
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

    return {module: fastest(module) for module in ("gpumem_magic", "numpy", "IPython", "torch")}


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
        "workload": f"one training step of {count(training('cpu')):,} operators",
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
    parser.add_argument(
        "--seconds", type=float, default=600, help="after which no more turns on the device begin"
    )
    parser.add_argument("--events", action="store_true", help="only what needs a CUDA device")
    options = parser.parse_args()
    torch.set_num_threads(1)
    said = io.StringIO()  # by the tools, about themselves
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        results: dict[str, dict[str, Any]] = {"machine": machine()}
        if not options.events:
            results |= {
                "microseconds_per_operator_over_eager": per_operator(options.rounds),
                "milliseconds_per_empty_cell": per_cell(options.rounds),
                "milliseconds_to_import": import_time(options.rounds),
            }
        results[EVENTS] = on_device(options.rounds, options.seconds)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print("\n".join(results.pop("machine").values()))
    bases = {"per_op": "empty TorchDispatchMode", "per_empty": "bare IPython"}
    for title, rows in results.items():
        base = next((name for part, name in bases.items() if part in title), None)
        print(table(f"\n{title.replace('_', ' ').capitalize()}", rows, "", base))


if __name__ == "__main__":
    main()
