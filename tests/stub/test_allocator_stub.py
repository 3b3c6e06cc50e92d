"""The simulated allocator against the real one, on the stub device: same steps, same everything.

The stub decides nothing about blocks: what is compared is torch's own C++ code, its events,
addresses, statistics and error texts. From it the simulation gets only where new segments lie.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import deque
from pathlib import Path

import pytest

from gpumem_magic.allocator.caching import (
    AllocationFailed,
    CachingAllocator,
    SimulatedDriver,
)
from gpumem_magic.allocator.settings import Settings
from gpumem_magic.values.recording import Action

STUB = os.environ.get("GPUMEM_STUB")
PYTHON = os.environ.get("GPUMEM_STUB_PYTHON")
MIB = 1 << 20
CONTEXT = 300 * MIB

pytestmark = pytest.mark.skipif(
    not (STUB and PYTHON),
    reason="needs the stub device: set GPUMEM_STUB (folder of run.sh) and GPUMEM_STUB_PYTHON",
)

NAMES = {
    Action.ALLOC: "alloc",
    Action.FREE: "free_requested",
    Action.FREE_COMPLETED: "free_completed",
    Action.SEGMENT_ALLOC: "segment_alloc",
    Action.SEGMENT_FREE: "segment_free",
    Action.SEGMENT_MAP: "segment_map",
    Action.SEGMENT_UNMAP: "segment_unmap",
    Action.OOM: "oom",
}


@pytest.fixture(scope="module")
def stub():
    """Torch on the stub device, for steps to be sent to."""
    environment = dict(os.environ)
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    environment.pop("PYTORCH_ALLOC_CONF", None)
    script = Path(__file__).with_name("allocator_script.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [Path(STUB) / "run.sh", PYTHON, script]
    with subprocess.Popen(command, env=environment, **pipes) as process:
        yield process


def run_on_stub(stub, steps, memory, configuration=None):
    environment = {"STUB_GPU_MEMORY": f"{memory}", "STUB_CONTEXT_MEMORY": "300M"}
    if configuration is not None:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = configuration
    print(json.dumps({"environment": environment, "steps": steps}), file=stub.stdin, flush=True)
    return json.loads(stub.stdout.readline())


class AddressedDriver(SimulatedDriver):
    """Grants and refuses by its own books, at the addresses where the stub had its segments.

    Where the stub reserved an address range is not in its events, only what it mapped there:
    `translate` gives the stub's address for one in a range of ours.
    """

    def __init__(self, total, events):
        super().__init__(total, CONTEXT)
        self.segments = deque(address for name, address, _ in events if name == "segment_alloc")
        self.maps = deque(address for name, address, _ in events if name == "segment_map")
        self.shifts = {}
        self.next_range = 900  # a range lies below the one before it, as with the stub's mmap

    def malloc(self, size):
        if super().malloc(size) is None:
            return None
        return self.segments.popleft() if self.segments else 0

    def release(self, address, size):
        self.used -= size

    def reserve(self, size):
        self.next_range -= 1
        return self.next_range << 50

    def unreserve(self, address, size):
        pass

    def map(self, address, size):
        granted = super().map(address, size)
        if granted and self.maps:
            self.shifts.setdefault(address >> 50, self.maps.popleft() - address)
        return granted

    def translate(self, address):
        return address + self.shifts.get(address >> 50, 0)


def run_simulated(steps, memory, configuration, recorded):
    driver = AddressedDriver(memory, recorded["events"])
    events = []

    def listen(action, address, size, requested):
        if action is Action.OOM:
            events.append(["oom", driver.free, size])
        else:
            events.append([NAMES[action], driver.translate(address), requested])

    allocator = CachingAllocator(driver, Settings.parse(configuration or ""), listen)
    addresses, done = {}, []
    for action, *arguments in steps:
        try:
            outcome = _simulate(allocator, addresses, recorded["order"], action, arguments)
        except AllocationFailed as failure:
            outcome = {"failed": str(failure)}
        done.append(outcome)
    segments = [
        [
            *(driver.translate(s.address), s.size, s.pool, s.expandable),
            [[driver.translate(b.address), b.size, b.state] for b in s.blocks],
        ]
        for s in allocator.snapshot()
    ]
    segments.sort()
    return {"done": done, "events": events, "segments": segments}


def _simulate(allocator, addresses, order, action, arguments):
    if action == "malloc":
        name, size, stream = arguments
        addresses[name] = allocator.malloc(size, order.index(stream))
        return {"address": allocator.driver.translate(addresses[name])}
    if action in ("free", "record_stream") and arguments[0] not in addresses:
        return {"absent": arguments[0]}
    if action == "free":
        allocator.free(addresses.pop(arguments[0]))
    elif action == "record_stream":
        allocator.record_stream(addresses[arguments[0]], order.index(arguments[1]))
    elif action == "empty_cache":
        allocator.empty_cache()
    elif action == "fraction":
        allocator.set_memory_fraction(arguments[0])
    elif action == "reset_peaks":
        allocator.reset_peaks()
    elif action == "reset_accumulated":
        allocator.reset_accumulated()
    elif action == "settings":
        allocator.settings = Settings.parse(arguments[0], allocator.settings)
    elif action == "stats":
        return {"stats": allocator.stats(), "free": allocator.driver.free}
    return {}


def random_size(rng):
    kind = rng.random()
    if kind < 0.35:
        return rng.randrange(1, 4096)
    if kind < 0.6:
        return rng.randrange(4096, MIB + 1)
    if kind < 0.75:
        return rng.choice([512, MIB - 512, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB])
    if kind < 0.9:
        return rng.randrange(MIB, 12 * MIB)
    return rng.randrange(12 * MIB, 160 * MIB)


def random_steps(seed, count, others=("empty_cache", "reset_peaks", "stats"), streams=3):
    """Steps that keep the device nearly full; uses of a block that did not come do nothing."""
    rng = random.Random(seed)
    steps, live = [], {}
    for number in range(count):
        held = sum(live.values())
        if rng.random() < 0.02 and others:
            steps.append([rng.choice(others)])
        elif live and (rng.random() < 0.42 or held > 1100 * MIB):
            name = rng.choice(sorted(live))
            del live[name]
            steps.append(["free", name])
        else:
            name = f"b{seed}.{number}"
            live[name] = random_size(rng)
            stream = rng.choice([0] * 6 + list(range(1, streams)))
            steps.append(["malloc", name, live[name], stream])
            if rng.random() < 0.1 and streams > 1:
                steps.append(
                    ["record_stream", name, 1]
                )  # one only: among several, no order is defined
    return [*steps, ["stats"]]


def assert_same(stub, steps, memory, configuration=None):
    recorded = run_on_stub(stub, steps, memory, configuration)
    simulated = run_simulated(steps, memory, configuration, recorded)
    pairs = zip(recorded["events"], simulated["events"], strict=False)
    for position, (theirs, ours) in enumerate(pairs):
        assert ours == theirs, f"event {position}"
    for step, theirs, ours in zip(steps, recorded["done"], simulated["done"], strict=True):
        changed = {
            key for key in ours.get("stats", ()) if ours["stats"][key] != theirs["stats"][key]
        }
        assert ours == theirs, (step, changed)
    assert len(simulated["events"]) == len(recorded["events"])
    assert simulated["segments"] == recorded["segments"]
    return recorded


CONFIGURATIONS = [
    None,
    "max_split_size_mb:21",
    "max_split_size_mb:60,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,4:2,16:16,64:4,>:1]",
    "roundup_power2_divisions:[4:4,>:8]",
    "roundup_power2_divisions:[>:2]",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,max_split_size_mb:40",
    "large_segment_size_mb:12",
    "large_segment_size_mb:64,expandable_segments:True",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.6",
    "garbage_collection_threshold:0.8,max_split_size_mb:30,per_process_memory_fraction:0.9",
    "garbage_collection_threshold:0.3,expandable_segments:True,per_process_memory_fraction:0.7",
]


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_random_steps_are_decided_as_by_torch(stub, configuration):
    memory = 1200 * MIB + CONTEXT
    seed = CONFIGURATIONS.index(configuration)
    steps = random_steps(seed, 6000)
    recorded = assert_same(stub, steps, memory, configuration)
    stats = recorded["done"][-1]["stats"]
    assert stats["num_alloc_retries"] > 0, "the steps must bring the device to its limit"


def test_fraction_and_running_sums_change_on_the_way(stub):
    memory = 1500 * MIB
    steps = [
        *random_steps(91, 400),
        ["fraction", 0.5],
        *random_steps(92, 400),
        ["reset_accumulated"],
        ["fraction", 1.0],
        *random_steps(93, 400),
    ]
    assert_same(stub, steps, memory)


def test_settings_change_on_the_way(stub):
    memory = 1500 * MIB
    steps = [
        *random_steps(81, 300),
        ["settings", "expandable_segments:True"],
        *random_steps(82, 300),
        ["settings", "expandable_segments:False,max_split_size_mb:32"],
        *random_steps(83, 300),
        ["settings", "roundup_power2_divisions:4"],
        *random_steps(84, 300),
    ]
    assert_same(stub, steps, memory)


@pytest.mark.parametrize("configuration", [None, "expandable_segments:True"])
@pytest.mark.parametrize("fraction", [None, 0.5])
def test_out_of_memory_text_equals_torchs(stub, configuration, fraction):
    # GIVEN a 16179 MiB card filled with 1 GiB blocks, as in the stub's own demonstration
    steps = [] if fraction is None else [["fraction", fraction]]
    steps += [["malloc", f"b{number}", 1 << 30, 0] for number in range(17)]
    steps += [["malloc", "small", 700, 0], ["malloc", "medium", 3 * MIB, 0]]
    steps += [["malloc", "huge", 1 << 50, 0], ["stats"]]
    # THEN each refusal reads as torch's does, number by number
    recorded = assert_same(stub, steps, 16179 * MIB, configuration)
    texts = [outcome["failed"] for outcome in recorded["done"] if "failed" in outcome]
    assert len(texts) >= 2
    assert any("Tried to allocate 1024.00 MiB" in text for text in texts)
    assert all((" allowed; " in text) == (fraction is not None) for text in texts)
