"""How long a prediction takes and how much host memory, beside MemTracker under FakeTensorMode.

python benchmarks/predict.py [--json FILE] [--rounds N] [NAME ...]
Each number is the best of some fresh processes, which have imported everything before the clock
starts. The interpreter is $GPUMEM_STUB_PYTHON where it is set (a CUDA build of torch, which
MemTracker needs to know of CUDA tensors, with the stub for its device), else this one.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import stub_device
from fidelity_table import Workload

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
LIMIT = 300
GB = 10**9
IMPORTS = (
    "numpy",
    "torch._dynamo",
    "torch.distributed._tools.mem_tracker",
    "torch._subclasses.fake_tensor",
    "gpumem_magic.values.report",
    "gpumem_magic.trace",
    "gpumem_magic.devices",
    "gpumem_magic.dryrun",
)
"""What predictions import on their first use."""


@dataclass(frozen=True, slots=True)
class Model:
    """A cell of fidelity_workloads/ and its limits: seconds, and bytes of host memory."""

    title: str
    work: Workload
    seconds: float | None = None
    memory: int | None = None


MODELS = (
    Model("GPT-2 small, 8 x 512, 1 step", Workload("gpt2", values=(("steps", 1),)), 0.6),
    Model("BERT base, 16 x 256, 2 steps", Workload("bert_mlm")),
    Model("ViT-B, 32 x 224 x 224, autocast, 2 steps", Workload("vit")),
    Model("ResNet-50, 32 x 224 x 224, 2 steps", Workload("resnet")),
    Model("T5 small, 16 x (256, 64), Adafactor, 2 steps", Workload("t5")),
    Model("Llama 7 B, 1 x 2048, made on the card, 1 step", Workload("llama_7b", "B200"), 2.0, GB),
    Model("Llama 7 B, made on the host and moved", Workload("llama_7b_moved", "B200"), 2.0, GB),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """seconds, and bytes of host memory at their highest, over those of the imports. cpu: seconds
    of the processor, which other processes do not lengthen as much. again: seconds of the same in
    the same process a second time. allocated: the predicted peak, in bytes."""

    seconds: float | None = None
    cpu: float | None = None
    memory: int | None = None
    again: float | None = None
    allocated: int | None = None
    error: str | None = None


def import_everything(source: str) -> None:
    """What the cell and the tools import."""
    for name in IMPORTS:
        importlib.import_module(name)
    tree = ast.parse(source)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), "<imports>", "exec"), {})


def status(name: str) -> int:
    """A size of this process, in bytes ("VmRSS", and its highest, "VmHWM")."""
    if not STATUS.exists():
        unit = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    row = next(row for row in STATUS.read_text().splitlines() if row.startswith(name))
    return int(row.split()[1]) * 1024


def processor_seconds() -> float:
    """Of this process and of those it has made."""
    return sum(os.times()[:4])


def cost(way: str, work: Workload) -> Cost:
    """Of a prediction in this process."""
    import_everything(work.source)
    import fidelity_child

    if CLEAR.exists():
        CLEAR.write_text("5")  # the highest size begins anew
    before = status("VmRSS")
    started = processor_seconds()
    first = fidelity_child.attempt(way, work.source, work.card, None)
    cpu = round(processor_seconds() - started, 3)
    in_children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # with what is ours
    memory = max(status("VmHWM"), in_children) - before
    if first.error:
        return Cost(error=first.error)
    if way == "mem_tracker":  # the second time is no faster, and it takes long enough
        return Cost(first.seconds, cpu, memory, None, first.allocated)
    again = fidelity_child.attempt(way, work.source, work.card, None)
    return Cost(first.seconds, cpu, memory, again.seconds, first.allocated)


def python() -> str:
    """The interpreter that is measured."""
    return stub_device.python() if stub_device.has_stub() else sys.executable


def in_fresh_process(way: str, model: Model) -> Cost:
    arguments = [__file__, "--here", way, model.work.cell]
    command = [python(), "-W", "ignore", *arguments]
    if way == "mem_tracker" and stub_device.has_stub():
        command = stub_device.on_stub(*arguments)
    settings = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command,
            env=stub_device.environment(**settings),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Cost(error=f"not done within {LIMIT} s")
    if not done.stdout.startswith("{"):
        return Cost(error=f"ended with {done.returncode}: {done.stderr[-300:].strip()}")
    return Cost(**json.loads(done.stdout))


def best(way: str, model: Model, rounds: int) -> Cost:
    """The best of each number; the first error, if there is one."""
    costs = [in_fresh_process(way, model)]
    while costs[0].error is None and len(costs) < rounds:
        costs.append(in_fresh_process(way, model))
    told = [each for each in costs if each.error is None]
    if not told:
        return costs[0]
    again = [each.again for each in told if each.again is not None]
    return Cost(
        min(each.seconds or 0.0 for each in told),
        min(each.cpu or 0.0 for each in told),
        min(each.memory or 0 for each in told),
        min(again, default=None),
        told[0].allocated,
    )


def about() -> dict[str, str]:
    names = Path("/proc/cpuinfo").read_text().splitlines() if STATUS.exists() else []
    model = next((row.split(":")[1].strip() for row in names if "model name" in row), "")
    return {
        "torch": stub_device.torch_version(python()),
        "cpu": f"{model or platform.machine()}, {os.cpu_count()} cores",
        "load": f"{os.getloadavg()[0]:.1f} processes ran on average in the last minute",
        "numbers": "the best of fresh processes; seconds without imports, of the clock and of the "
        "processor (cpu), by the clock of a second prediction "
        "in the same process (again), highest host memory over that of the imports (bytes)",
        "date": time.strftime("%Y-%m-%d"),
    }


def shown(cost: Cost) -> str:
    if cost.error:
        return f"{cost.error[:40]:<42}"
    again = "       -  " if cost.again is None else f"{cost.again:8.2f} s"
    sizes = f"{(cost.memory or 0) / 2**20:8,.0f} MiB {(cost.allocated or 0) / 2**30:7.2f} GiB"
    return f"{cost.seconds:8.2f} s {cost.cpu:8.2f} s {again} {sizes}"


def row_as_json(model: Model, predicted: Cost, tracked: Cost) -> dict[str, Any]:
    ratios = {
        name: round(theirs / mine, 2)
        for name in ("seconds", "memory")
        if (mine := getattr(predicted, name)) and (theirs := getattr(tracked, name))
    }
    return {
        "title": model.title,
        "promised": {"seconds": model.seconds, "memory": model.memory},
        "predict": asdict(predicted),
        "mem_tracker": asdict(tracked),
        "mem_tracker_over_predict": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="cells; all if none is named")
    parser.add_argument("--json", type=Path, help="the file to write")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes for each number")
    parser.add_argument("--here", metavar="WAY", help="measure in this process, print JSON")
    options = parser.parse_args()
    chosen = [m for m in MODELS if not options.names or m.work.cell in options.names]
    if options.here:
        warnings.simplefilter("ignore")
        with redirect_stdout(sys.stderr):
            told = cost(options.here, chosen[0].work)
        print(json.dumps(asdict(told)))
        return
    told_of = about()
    print("\n".join(told_of.values()))
    head = f"{'first':>10} {'cpu':>10} {'again':>10} {'memory':>12} {'peak':>11}"
    print(f"\n{'':<50}{'predict: ' + head:>67}   MemTracker: {head}")
    rows = []
    for model in chosen:
        predicted, tracked = (best(way, model, options.rounds) for way in ("dry", "mem_tracker"))
        limits = f"<= {model.seconds} s" if model.seconds else ""
        print(f"{model.title:<50}{limits:>9} {shown(predicted)} | {shown(tracked)}", flush=True)
        rows.append(row_as_json(model, predicted, tracked))
    if options.json:
        options.json.write_text(json.dumps({"about": told_of, "models": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
