"""Made-up sequences, lines, files and texts: no promise is broken, and no error of ours appears.

GPUMEM_MAGIC_EXAMPLES sets how many examples each test makes up: 60, or thousands by hand.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from IPython.core.error import UsageError

from gpumem_magic.allocator.caching import AllocationFailed, CachingAllocator, SimulatedDriver
from gpumem_magic.allocator.settings import Settings
from gpumem_magic.magics import gpucheck, gpumem
from gpumem_magic.oom_text import explain
from gpumem_magic.pipeline import analyse
from gpumem_magic.renderers.formats.json import dumps, loads
from gpumem_magic.snapshots.files import read_plain_values
from gpumem_magic.snapshots.recordings import recordings
from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU

from .snapshots.test_snapshots import a_snapshot

torch = pytest.importorskip("torch")

EXAMPLES = int(os.environ.get("GPUMEM_MAGIC_EXAMPLES", "60"))
MIB = 1 << 20
TOTAL = 256 * MIB
SMALL_REPORT = Path(__file__).parent / "renderers/golden/small.json"

more = settings(max_examples=EXAMPLES)


class Allocator(RuleBasedStateMachine):
    """Blocks are taken, used by streams and given back in any order."""

    @initialize(
        split=st.sampled_from(["", "max_split_size_mb:21", "expandable_segments:True"]),
        rounding=st.sampled_from(["", "roundup_power2_divisions:4"]),
        collection=st.sampled_from(["", "garbage_collection_threshold:0.6"]),
    )
    def make(self, split, rounding, collection):
        parsed = Settings.parse(",".join(filter(None, (split, rounding, collection))))
        self.driver = SimulatedDriver(TOTAL)
        self.allocator = CachingAllocator(self.driver, parsed)
        self.asked = {}

    @rule(size=st.integers(1, 40 * MIB) | st.integers(1, 4096), stream=st.integers(0, 2))
    def take(self, size, stream):
        try:
            address = self.allocator.malloc(size, stream)
        except AllocationFailed:
            assert size > self.driver.free - 40 * MIB
        else:
            assert address not in self.asked
            self.asked[address] = size

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0), stream=st.integers(0, 2), is_used_elsewhere=st.booleans())
    def give_back(self, which, stream, is_used_elsewhere):
        address = [*self.asked][which % len(self.asked)]
        if is_used_elsewhere:
            self.allocator.record_stream(address, stream)
        del self.asked[address]
        self.allocator.free(address)

    @rule()
    def synchronize(self):
        self.allocator.synchronize()

    @rule()
    def empty_cache(self):
        self.allocator.empty_cache()
        if not self.asked:
            assert self.allocator.reserved == 0

    @invariant()
    def books_are_right(self):
        allocator, segments = self.allocator, self.allocator.snapshot()
        blocks = [block for segment in segments for block in segment.blocks]
        held = {b.address: b for b in blocks if b.state == "active_allocated"}
        assert held.keys() == self.asked.keys()
        assert all(held[at].requested == size <= held[at].size for at, size in self.asked.items())
        assert allocator.allocated == sum(block.size for block in held.values())
        assert allocator.requested == sum(b.requested for b in blocks if b.state != "inactive")
        assert allocator.active == sum(b.size for b in blocks if b.state != "inactive")
        assert allocator.reserved == sum(segment.size for segment in segments)
        assert allocator.reserved + self.driver.free <= TOTAL
        for segment in segments:
            ends = [segment.address, *(b.address + b.size for b in segment.blocks)]
            assert ends[:-1] == [block.address for block in segment.blocks]
            assert ends[-1] == segment.address + segment.size


TestAllocator = Allocator.TestCase
TestAllocator.settings = settings(max_examples=EXAMPLES // 2, stateful_step_count=40)


STEPS = {
    "make": lambda one, two: torch.ones(random.randint(0, 3000), device="cuda"),
    "host": lambda one, two: torch.ones(5),
    "add": lambda one, two: one + 1,
    "view": lambda one, two: one.reshape(-1)[1:],
    "both": lambda one, two: torch.cat([one, two]),
    "in place": lambda one, two: one.mul_(2),
    "to the host": lambda one, two: one.cpu(),
    "to the device": lambda one, two: one.cuda(),
    "wider": lambda one, two: one.double(),
    "clone": lambda one, two: one.clone(),
    "gradient": lambda one, two: torch.autograd.grad(
        (w := one.detach().clone().requires_grad_()).exp().sum(), w
    )[0],
    "none": lambda one, two: None,
    "sum": lambda one, two: one.sum(),
    "set data": lambda one, two: setattr(one, "data", two.detach().clone()),
    "resize": lambda one, two: torch.ones(3, device="cuda").resize_(700),
    "split": lambda one, two: one.reshape(-1).split(7)[0],
    "error": lambda one, two: one @ torch.ones(3, 3, 3, 3, device="cuda"),
}


@more
@given(st.lists(st.sampled_from([*STEPS]), max_size=40), st.randoms(use_true_random=False))
def test_what_the_device_holds_is_what_lives(steps, chance):
    with VirtualGPU(lookup("T4"), Settings.parse("")) as card:
        living = [torch.ones(100, device="cuda")]
        for step in steps:
            one, two = chance.choice(living), chance.choice(living)
            try:
                made = STEPS[step](one, two)
            except RuntimeError:
                made = None
            if isinstance(made, torch.Tensor):
                living.append(made)
            elif len(living) > 1:
                living.pop(chance.randrange(len(living)))
            del one, two, made
        gc.collect()
        # a view keeps the tensor that it was taken from, also when its own data is replaced
        tensors = [t for one in living for t in (one, one._base) if t is not None]
        on_device = {t.untyped_storage()._cdata: t for t in tensors if t.is_cuda}
        sizes = [t.untyped_storage().nbytes() for t in on_device.values()]
        scratch = sum(map(card.allocator.size_of, card.scratch.held.values()))
        assert card.allocator.allocated - scratch == sum(-(-size // 512) * 512 for size in sizes)
        assert len(card.storages.addresses) == len(on_device)


TABLES = gpumem.OPTIONS, gpucheck.OPTIONS
WORDS = [
    *(flag for table in TABLES for option in table.options for flag in option.flags),
    *("--", "-", "---", "--name=", "'", '"', "\\", "=", ",", ";", "T4", "1", "-1", "x", "x.json"),
    *("/", "~nobody", "{x}", "$x", "9" * 30, "\x00", "é", "\u0663", "x = 1", "None", "batch=1"),
]
LINES = st.lists(st.sampled_from(WORDS) | st.text(max_size=8), max_size=8).map(" ".join)


def read_or_refused(read, *given, refusal=UsageError):
    """What `read` gives; None where it refuses, with a reason."""
    try:
        return read(*given)
    except refusal as error:
        if not str(error):
            raise
        return None


@settings(max_examples=5 * EXAMPLES)
@given(LINES)
def test_a_line_of_options_is_read_or_refused(line):
    read_or_refused(gpumem.read_cell, line)
    read_or_refused(gpumem.OPTIONS.scan, line, "%gpumem")
    read_or_refused(gpucheck.read_cell, line, "x = 1\n")
    read_or_refused(gpucheck.read_line, line, {"x": 1})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


def places(data):
    """Every container in `data`, with the keys that it has."""
    keys = [*data] if isinstance(data, dict) else range(len(data))
    found = [(data, key) for key in keys]
    for key in keys:
        if isinstance(data[key], (dict, list)):
            found += places(data[key])
    return found


@more
@given(st.randoms(use_true_random=False), st.lists(VALUES, min_size=1, max_size=3))
def test_a_damaged_report_is_refused_or_can_be_shown(chance, values):
    data = copy.deepcopy(REPORT)
    for value in values:
        container, key = chance.choice(places(data))
        container[key] = value
    for report in read_or_refused(loads, json.dumps(data), refusal=ValueError) or ():
        assert report.text()
        assert report._repr_mimebundle_()
        assert loads(dumps(report))


REPORT = json.loads(SMALL_REPORT.read_text("utf-8"))


@more
@given(st.text())
def test_what_is_no_report_is_refused(text):
    assert not read_or_refused(loads, text, refusal=ValueError)


@pytest.fixture(scope="module")
def snapshot_file(tmp_path_factory):
    return tmp_path_factory.mktemp("snapshots") / "x.pickle"


def read_snapshot(path, data):
    """The reports of a pickle, or nothing where it is refused."""
    path.write_bytes(data)
    found = read_or_refused(lambda: recordings(read_plain_values(path)), refusal=ValueError)
    return [analyse(one, "x", advised=False).report for one in found or ()]


@more
@given(
    st.randoms(use_true_random=False),
    st.lists(VALUES | st.sampled_from([-1, 1 << 62, 1 << 70, "alloc", "oom"]), max_size=3),
    st.sampled_from([2, 4, 5]),
)
def test_a_snapshot_with_other_values_is_refused_or_can_be_shown(
    snapshot_file, chance, values, protocol
):
    data = copy.deepcopy(SNAPSHOT)
    for value in values:
        container, key = chance.choice(places(data) or [({"gone": None}, "gone")])
        if chance.random() < 0.3:
            del container[key]
        else:
            container[key] = value
    for report in read_snapshot(snapshot_file, pickle.dumps(data, protocol)):
        assert report.text()
        assert loads(dumps(report))


ENTRIES = st.tuples(
    st.sampled_from(
        [
            *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"),
            *("segment_map", "segment_unmap", "oom", "snapshot"),
        ]
    ),
    st.integers(0, 8).map(lambda place: (1 << 40) + place * 2 * MIB),
    st.sampled_from([0, 700, MIB, 2 * MIB, 4 * MIB, 20 * MIB]),
)


@settings(max_examples=3 * EXAMPLES)
@given(st.lists(ENTRIES, max_size=30))
def test_a_snapshot_that_contradicts_itself_is_refused_or_can_be_shown(snapshot_file, entries):
    first = SNAPSHOT["device_traces"][0][0]
    trace = [
        {**first, "action": action, "addr": address, "size": size, "device_free": 0}
        for action, address, size in entries
    ]
    for report in read_snapshot(
        snapshot_file, pickle.dumps({**SNAPSHOT, "device_traces": [trace]})
    ):
        assert report.text()
        assert loads(dumps(report))


@settings(max_examples=3 * EXAMPLES)
@given(
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4),
    st.none() | st.integers(0),
    st.sampled_from([2, 4, 5]),
)
def test_a_snapshot_with_other_bytes_is_refused_or_can_be_shown(
    snapshot_file, changes, length, protocol
):
    data = bytearray(pickle.dumps(SNAPSHOT, protocol))
    for place, byte in changes:
        data[place % len(data)] = byte
    if length is not None:
        del data[length % len(data) :]
    for report in read_snapshot(snapshot_file, bytes(data)):
        assert report.text()


SNAPSHOT = a_snapshot()


OOM = [
    *("CUDA out of memory.", "Tried to allocate", "GiB", "MiB", "20.00", "0 bytes", "GPU 0", "has"),
    *("a total capacity of", "of which", "is free.", "Process", "memory in use.", "already"),
    *("Of the allocated memory", "is allocated by PyTorch, and", "is reserved by PyTorch but"),
    *("unallocated.", "1e999", "-3", "9" * 400, "CUBLAS_STATUS_ALLOC_FAILED", "max_split_size_mb"),
]


@settings(max_examples=3 * EXAMPLES)
@given(st.lists(st.sampled_from(OOM) | st.text(max_size=10), max_size=30).map(" ".join))
def test_any_text_of_an_error_is_explained(text):
    assert explain(text).text()
