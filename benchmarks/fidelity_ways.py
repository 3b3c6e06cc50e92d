"""The columns of fidelity.py, and how a cell gets to run in each of them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import stub_device
from fidelity_child import Outcome
from fidelity_table import Workload

from gpumem_magic.virtual.catalog import lookup

CHILD = Path(__file__).with_name("fidelity_child.py")
LIMIT = 300
QUIET = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Way:
    """A column. child: the way of fidelity_child.py. python: of whom, "" for this one. device:
    what the process finds as CUDA device: nothing, the stub (placing segments as it likes, or
    upwards), or a real one."""

    name: str
    child: str
    title: str
    python: Callable[[], str] = stub_device.python
    device: str = "none"


def here() -> str:
    return sys.executable


REAL = Way("real", "cuda", "the real allocator, on the stub device", device="stub")
UPWARDS = Way("real_up", "cuda", "the same, new segments at higher addresses", device="stub up")
DRY_UPWARDS = Way("dry_up", "dry up", "dry run, new segments at higher addresses")
WAYS = (
    REAL,
    UPWARDS,
    Way("dry", "dry", "dry run, the same torch"),
    DRY_UPWARDS,
    Way("live", "live", "virtual GPU, computed on the CPU, the same torch"),
    Way("dry_here", "dry", "dry run, this Python's torch", here),
    Way("live_here", "live", "virtual GPU, this Python's torch", here),
    Way("mem_tracker", "mem_tracker", "MemTracker under FakeTensorMode", device="stub"),
    Way("fake_sums", "fake_sums", "sums of FakeTensors' storages", device="stub"),
    Way("gpu", "cuda", "a real GPU", here, device="gpu"),
)


def has_gpu() -> bool:
    """Whether this Python's torch finds a CUDA device that is no stub."""
    ask = "import torch; print(torch.cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    return done.stdout.strip() == "True"


class Work(Protocol):
    """What is run: its name, its text, and the card it runs on."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def card(self) -> str: ...


class Runners:
    """One helper process for each way, started when it is first needed, in a folder that goes with
    what cells wrote there. limit: seconds a run."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._folder = tempfile.TemporaryDirectory()
        self._helpers: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Runners:
        return self

    def __exit__(self, *error: object) -> None:
        for helper in self._helpers.values():
            helper.communicate()
        self._folder.cleanup()

    def run(self, way: Way, work: Work, events: Path | None = None) -> Outcome:
        """In a process of its own; whatever goes wrong there is in the outcome's `error`."""
        job = {
            "way": way.child,
            "source": work.source,
            "card": work.card,
            "settings": stub_device.like(lookup(work.card)) if "stub" in way.device else {},
            "events": str(events) if events else None,
        }
        helper = self._helper(way)
        assert helper.stdin is not None
        assert helper.stdout is not None
        helper.stdin.write(json.dumps(job) + "\n")
        helper.stdin.flush()
        told = helper.stdout.readline()
        if not told:
            return Outcome(error=f"the helper ended with {helper.wait()}")
        return Outcome(**json.loads(told))

    def _helper(self, way: Way) -> subprocess.Popen[str]:
        key = f"{way.device} {way.python()}"
        if key not in self._helpers or self._helpers[key].poll() is not None:
            arguments = [str(CHILD), "--limit", str(self._limit)]
            command = [way.python(), "-W", "ignore", *arguments]
            if way.device.startswith("stub"):
                command = stub_device.on_stub(*arguments)
            if way is UPWARDS:
                command = [*stub_device.upwards(), *command]
            self._helpers[key] = subprocess.Popen(
                command,
                env=stub_device.environment(**QUIET),
                cwd=self._folder.name,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        return self._helpers[key]


def is_possible(way: Way) -> bool:
    """Whether this machine has what the way needs."""
    if way.device == "gpu":
        return has_gpu()
    return way is not UPWARDS or bool(stub_device.upwards())


def applies(way: Way, work: Workload) -> bool:
    """Whether a workload is run in this way: on the CPU only what is small."""
    return work.live or way.child != "live"
