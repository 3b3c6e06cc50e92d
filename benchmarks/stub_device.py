"""How benchmarks reach the stub of a CUDA device: with $GPUMEM_STUB/run.sh and the Python of
$GPUMEM_STUB_PYTHON, which has a CUDA build of torch."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpumem_magic.virtual.catalog import GPUModel


def has_stub() -> bool:
    """Whether the environment says where the stub device is."""
    return bool(os.environ.get("GPUMEM_STUB") and os.environ.get("GPUMEM_STUB_PYTHON"))


def python() -> str:
    """The interpreter whose torch is built for CUDA."""
    return os.environ["GPUMEM_STUB_PYTHON"]


def on_stub(*arguments: str) -> list[str]:
    """The command line for that Python on the stub device."""
    return [f"{os.environ['GPUMEM_STUB']}/run.sh", python(), "-W", "ignore", *arguments]


def upwards() -> list[str]:
    """What to put before a command so that the stub places each new segment above the last; by
    itself it places most below, as Linux places mappings and as the virtual GPU does. Real drivers
    are seen to do the one and the other. Empty where that cannot be had."""
    if shutil.which("setarch") is None:
        return []
    prefix = ["setarch", platform.machine(), "--addr-compat-layout"]
    works = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if works else []


def like(card: GPUModel) -> dict[str, str]:
    """The stub's settings for a card of the catalog; cuDNN's workspaces are off."""
    return {
        "STUB_GPU_NAME": card.name,
        "STUB_GPU_CC": "{}.{}".format(*card.capability),
        "STUB_GPU_SMS": str(card.multiprocessors),
        "STUB_GPU_MEMORY": str(card.total + (not card.context)),  # it takes a byte at least
        "STUB_CONTEXT_MEMORY": str(card.context),
        "STUB_CUDNN_WORKSPACE": "0",
    }


def environment(**settings: str) -> dict[str, str]:
    """This process's, without what it says of the allocator; the repository can be imported."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTORCH_")}
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), **settings}


def answer_lines(answer: Callable[[str], Any]) -> None:
    """Answer each line of stdin by a line of JSON, in a process of its own: what this one has
    imported is imported once, and none has used the device before."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            print(json.dumps(answer(line)), end="", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(flush=True)


def torch_version(interpreter: str) -> str:
    """Of the torch that an interpreter imports."""
    ask = "import torch; print(torch.__version__)"
    command = [interpreter, "-W", "ignore", "-c", ask]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
