"""Every answer of torch.cuda and torch.accelerator is the simulated allocator's, or a refusal."""

from __future__ import annotations

import re

import pytest
import torch

from gpumem_magic.units import MIB
from gpumem_magic.virtual.catalog import lookup

T4 = lookup("T4")
CUDA = torch.device("cuda", 0)


@pytest.fixture
def busy(gpu):
    """A card with blocks of both pools, some of them free; 3 and 12 MiB share a segment of 20."""
    keep = [torch.zeros(n, dtype=torch.uint8, device="cuda") for n in (700, 3 * MIB, 12 * MIB)]
    drop = [torch.zeros(n, dtype=torch.uint8, device="cuda") for n in (5000, 40 * MIB)]
    del drop
    yield gpu.allocator
    del keep


@pytest.mark.parametrize("device", [None, 0, "cuda", "cuda:0", CUDA])
def test_counters_are_the_allocators_however_the_card_is_named(busy, device):
    cuda = torch.cuda
    assert cuda.memory_allocated(device) == busy.allocated == 1024 + 15 * MIB
    assert cuda.memory_reserved(device) == busy.reserved == (2 + 20 + 40) * MIB
    assert cuda.max_memory_allocated(device) == 1024 + 5120 + 55 * MIB
    assert cuda.max_memory_reserved(device) == busy.reserved
    assert cuda.mem_get_info(device) == (T4.total - T4.context - busy.reserved, T4.total)
    assert cuda.get_device_properties(device).total_memory == T4.total
    assert cuda.get_device_name(device) == "Tesla T4"


def test_statistics_are_the_allocators(busy):
    stats = torch.cuda.memory_stats()
    assert {key: stats[key] for key in busy.stats()} == busy.stats()
    assert stats["requested_bytes.all.current"] == 700 + 15 * MIB
    assert stats["allocation.all.allocated"] == 5
    assert stats["allocation.all.freed"] == 2
    assert stats["segment.small_pool.current"] == 1
    assert stats["inactive_split_bytes.small_pool.current"] == 2 * MIB - 1024
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == busy.allocated
    assert stats.keys() == torch.accelerator.memory_stats().keys()


def test_accelerator_answers_as_cuda_does(busy):
    accelerator, cuda = torch.accelerator, torch.cuda
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated"):
        assert getattr(accelerator, name)() == getattr(cuda, name)()
    assert accelerator.get_memory_info() == cuda.mem_get_info()
    accelerator.empty_cache()
    assert cuda.memory_reserved() == (2 + 20) * MIB
    accelerator.reset_peak_memory_stats()
    assert cuda.max_memory_allocated() == busy.allocated
    stream = torch.cuda.Stream()
    accelerator.set_stream(stream)
    assert accelerator.current_stream() == cuda.current_stream() == stream
    accelerator.set_stream(cuda.default_stream())
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        accelerator.set_device_index(1)


def test_peaks_start_anew_when_they_are_reset(busy):
    cuda = torch.cuda
    cuda.reset_peak_memory_stats()
    assert cuda.max_memory_allocated() == busy.allocated
    x = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    del x
    assert cuda.max_memory_allocated() == busy.allocated + MIB
    cuda.reset_accumulated_memory_stats()
    assert cuda.memory_stats()["allocation.all.allocated"] == 0
    assert cuda.max_memory_allocated() == busy.allocated + MIB


def rows(summary):
    found = (re.split(r"\s*\|\s*", line.strip("|")) for line in summary.splitlines())
    return {row[0].strip(): row[1] for row in found if len(row) >= 2 and row[1]}


def test_the_summary_is_torchs_own_table(busy):
    summary = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary, device ID 0" in summary
    found = rows(summary)
    assert found["Allocated memory"] == "15361 KiB"
    assert found["Requested memory"] == "15360 KiB"
    assert found["GPU reserved memory"] == "63488 KiB"
    assert found["Allocations"] == "3"
    assert found["GPU reserved segments"] == "3"
    assert "from large pool" not in torch.cuda.memory_summary(abbreviated=True)


def test_the_snapshot_adds_up(busy):
    segments = torch.cuda.memory_snapshot()
    assert sum(segment["total_size"] for segment in segments) == busy.reserved
    assert sum(segment["allocated_size"] for segment in segments) == busy.allocated
    for segment in segments:
        blocks = segment["blocks"]
        assert sum(block["size"] for block in blocks) == segment["total_size"]
        ends = [block["address"] + block["size"] for block in blocks]
        assert [b["address"] for b in blocks] == [segment["address"], *ends[:-1]]
    whole = torch.cuda.memory._snapshot()
    assert [s["address"] for s in whole["segments"]] == [s["address"] for s in segments]


def test_the_cache_is_given_back_as_far_as_segments_are_free(busy):
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == (2 + 20) * MIB
    assert torch.cuda.mem_get_info()[0] == T4.total - T4.context - 22 * MIB


def test_tensors_of_size_zero_take_nothing(gpu):
    x = torch.zeros(0, 3, device="cuda")
    assert (x.device, gpu.allocator.allocated, gpu.allocator.reserved) == (CUDA, 0, 0)


REFUSED = {
    "torch.cuda.CUDAGraph": lambda cuda: cuda.CUDAGraph(),
    "torch.cuda.graph_pool_handle": lambda cuda: cuda.graph_pool_handle(),
    "torch.cuda.MemPool": lambda cuda: cuda.MemPool(),
    "torch.cuda.use_mem_pool": lambda cuda: cuda.use_mem_pool(None),
    "torch.cuda.ExternalStream": lambda cuda: cuda.ExternalStream(1),
    "torch.cuda.change_current_allocator": lambda cuda: cuda.memory.change_current_allocator(None),
    "torch.cuda.current_blas_handle": lambda cuda: cuda.current_blas_handle(),
    "torch.cuda.cudart().cudaMalloc": lambda cuda: cuda.cudart().cudaMalloc(1),
}
if not torch.version.cuda:  # a CUDA build has them, and answers without a driver
    REFUSED["torch._C._cuda_tunableop_is_enabled"] = lambda cuda: cuda.tunable.is_enabled()


@pytest.mark.parametrize(("name", "call"), REFUSED.items(), ids=REFUSED)
def test_a_call_that_is_not_covered_is_named(gpu, name, call):
    with pytest.raises(NotImplementedError) as refusal:
        call(torch.cuda)
    assert str(refusal.value).startswith(f"{name} is not covered by the virtual GPU")
    assert gpu.allocator.allocated == 0


def test_who_asks_whether_there_is_such_a_function_is_told_no(gpu):
    assert hasattr(torch._C, "_cuda_tunableop_is_enabled") == bool(torch.version.cuda)
    assert getattr(torch._C, "_cuda_no_such_thing", None) is None
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = torch._C.no_such_thing


def test_classes_stay_classes(gpu):
    cuda = torch.cuda
    for kind in (cuda.Stream, cuda.Event, cuda.CUDAGraph, cuda.graph, cuda.ExternalStream):
        assert isinstance(kind, type)
        assert not isinstance(3, kind)
    assert isinstance(cuda.current_stream(), cuda.Stream)
    assert isinstance(cuda.Event(), cuda.Event)
    assert isinstance(torch.Generator("cuda"), torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert issubclass(cuda.OutOfMemoryError, RuntimeError)

    class OwnStream(cuda.Stream):
        pass

    with cuda.stream(OwnStream()):
        assert isinstance(cuda.current_stream(), cuda.Stream)


def test_streams_have_pools_of_their_own_and_are_told_apart(gpu):
    first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    assert len({first, second, torch.cuda.default_stream()}) == 3
    with torch.cuda.stream(first):
        x = torch.zeros(3, device="cuda")
        with torch.cuda.stream(second):
            y = torch.zeros(3, device="cuda")
            assert torch.cuda.current_stream() == second
        assert torch.cuda.current_stream() == first
    z = torch.zeros(3, device="cuda")
    segments = torch.cuda.memory_snapshot()
    assert {segment["stream"] for segment in segments} == {
        0,
        first.cuda_stream,
        second.cuda_stream,
    }
    assert gpu.allocator.reserved == 3 * 2 * MIB
    assert (x + 0).tolist() == y.tolist() == z.tolist()
    with torch.cuda.stream(None):
        assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_events_order_and_measure(gpu):
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream()
    first.record()
    assert stream.record_event(second) is second
    first.wait()
    second.synchronize()
    assert first.query()
    assert 0 <= first.elapsed_time(second) < 60_000
    with pytest.raises(NotImplementedError, match="interprocess"):
        torch.cuda.Event(interprocess=True)


def test_random_states_of_the_card(gpu):
    cuda = torch.cuda
    cuda.manual_seed(11)
    assert cuda.initial_seed() == 11
    (state,) = cuda.get_rng_state_all()
    first = torch.randn(4, device="cuda")
    for restore in (
        lambda: cuda.set_rng_state(state),
        lambda: cuda.set_rng_state(state, "cuda:0"),
        lambda: cuda.set_rng_state_all([state]),
        lambda: cuda.manual_seed_all(11),
        lambda: torch.manual_seed(11),
    ):
        restore()
        assert torch.equal(torch.randn(4, device="cuda"), first)
    cuda.seed()
    assert not torch.equal(torch.randn(4, device="cuda"), first)
    cuda.set_rng_state(state)
    with torch.random.fork_rng(devices=[0]):
        torch.randn(9, device="cuda")
    assert torch.equal(torch.randn(4, device="cuda"), first)


def test_generators_of_the_card_are_apart_from_its_own(gpu):
    generator = torch.Generator("cuda:0").manual_seed(5)
    assert (generator.device, generator.initial_seed()) == (CUDA, 5)
    state = torch.cuda.get_rng_state()
    saved = generator.get_state()
    first = torch.rand(3, device="cuda", generator=generator)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    generator.set_state(saved)
    assert torch.equal(torch.rand(3, device="cuda", generator=generator), first)
    assert len(torch.cuda.default_generators) == 1
    assert torch.cuda.default_generators[0].device == CUDA


def test_libraries_say_what_they_are(gpu):
    assert torch.backends.cuda.matmul.allow_tf32 in (True, False)
    assert torch.cuda.get_allocator_backend() == "native"
    assert torch.cuda.get_arch_list() == ["sm_75"]
    assert torch.cuda.get_gencode_flags() == "-gencode compute=compute_75,code=sm_75"
    assert torch.cuda.get_sync_debug_mode() == 0
    torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1
    torch.cuda.set_sync_debug_mode(0)
    free, total = torch.cuda.cudart().cudaMemGetInfo(0)
    assert (free, total) == torch.cuda.mem_get_info()
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())
