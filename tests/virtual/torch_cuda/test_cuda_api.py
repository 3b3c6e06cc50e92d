"""What torch.cuda and torch.accelerator answer for a virtual card."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic.virtual.catalog import lookup
from gpumem_magic.virtual.gpu import VirtualGPU

pytestmark = pytest.mark.usefixtures("gpu")

MIB = 1 << 20


def test_the_card_describes_itself():
    cuda = torch.cuda
    assert (cuda.is_available(), cuda.device_count(), cuda.current_device()) == (True, 1, 0)
    assert cuda.get_device_name() == cuda.get_device_name("cuda:0") == "Tesla T4"
    assert cuda.get_device_capability() == (7, 5)
    properties = cuda.get_device_properties(0)
    assert (properties.name, properties.major, properties.minor) == ("Tesla T4", 7, 5)
    assert properties.total_memory == lookup("T4").total
    assert properties.multi_processor_count == 40
    assert "name='Tesla T4'" in repr(properties)
    assert cuda.get_arch_list() == ["sm_75"]
    assert cuda.is_initialized()


def test_bfloat16_is_native_from_capability_8_on():
    assert torch.cuda.is_bf16_supported()
    assert not torch.cuda.is_bf16_supported(including_emulation=False)


def test_counters_are_those_of_the_allocator():
    cuda = torch.cuda
    free, total = cuda.mem_get_info()
    assert (total - free, cuda.memory_allocated(), cuda.memory_reserved()) == (
        lookup("T4").context, 0, 0,
    )  # fmt: skip
    x = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")
    assert (cuda.memory_allocated(), cuda.memory_reserved()) == (3 * MIB, 20 * MIB)
    assert cuda.mem_get_info()[0] == free - 20 * MIB
    del x
    assert (cuda.memory_allocated(), cuda.max_memory_allocated()) == (0, 3 * MIB)
    cuda.reset_peak_memory_stats()
    assert (cuda.max_memory_allocated(), cuda.max_memory_reserved("cuda:0")) == (0, 20 * MIB)
    cuda.empty_cache()
    assert (cuda.memory_reserved(), cuda.mem_get_info()[0]) == (0, free)


def test_statistics_summary_and_snapshot():
    keep = [torch.zeros(1000, device="cuda"), torch.zeros(3 * MIB, device="cuda")]
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.current"] == 2
    assert stats["allocated_bytes.small_pool.current"] == 4096
    assert stats["allocated_bytes.large_pool.current"] == 12 * MIB
    assert stats["requested_bytes.all.current"] == 4000 + 12 * MIB
    assert stats["segment.all.current"] == 2
    assert "| Allocated memory      |  12292 KiB |" in torch.cuda.memory_summary()
    small, large = sorted(torch.cuda.memory_snapshot(), key=lambda s: s["total_size"])
    assert (small["total_size"], large["total_size"]) == (2 * MIB, 12 * MIB)
    assert [block["state"] for block in small["blocks"]] == ["active_allocated", "inactive"]
    assert small["blocks"][0]["requested_size"] == 4000
    assert len(keep) == 2


def test_accelerator_answers_the_same():
    accelerator = torch.accelerator
    assert accelerator.is_available()
    assert accelerator.current_accelerator().type == "cuda"
    assert (accelerator.device_count(), accelerator.current_device_index()) == (1, 0)
    accelerator.set_device_index(0)
    accelerator.synchronize()
    assert torch.get_device_module() is torch.cuda
    if hasattr(accelerator, "memory_allocated"):
        x = torch.zeros(1000, device="cuda")
        assert accelerator.memory_allocated() == torch.cuda.memory_allocated() == 4096
        del x
        accelerator.empty_cache()
        assert accelerator.memory_reserved() == 0


def test_a_fraction_of_the_card():
    torch.cuda.set_per_process_memory_fraction(0.5)
    with pytest.raises(torch.OutOfMemoryError, match="allowed"):
        torch.empty(10 << 30, dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.get_per_process_memory_fraction() == 1.0


def test_calls_that_mean_nothing_here_do_nothing():
    cuda = torch.cuda
    cuda.synchronize()
    cuda.ipc_collect()
    cuda.init()
    cuda.set_device("cuda:0")
    cuda.nvtx.range_push("part")
    cuda.nvtx.range_pop()
    with cuda.nvtx.range("part"):
        pass
    assert not cuda.is_current_stream_capturing()
    read = cuda.utilization, cuda.memory_usage, cuda.temperature, cuda.power_draw, cuda.clock_rate
    assert [each(0) for each in read] == [0] * 5
    assert not cuda.can_device_access_peer(0, 0)
    assert torch.backends.cuda.matmul.allow_tf32 in (True, False)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        cuda.set_device(1)


REFUSED = {
    "CUDAGraph": lambda: torch.cuda.CUDAGraph(keep_graph=True),
    "export_memory_timeline": lambda: torch.profiler.profile().export_memory_timeline("x.html"),
    "CUDAPluggableAllocator": lambda: torch.cuda.memory.CUDAPluggableAllocator("a", "b", "c"),
    "ExternalStream": lambda: torch.cuda.ExternalStream(0),
    "cudaFuncGetAttributes": lambda: torch.cuda.cudart().cudaFuncGetAttributes(),
    "torch.export.export": lambda: torch.export.export(torch.nn.ReLU(), (torch.ones(2).cuda(),)),
}


@pytest.mark.parametrize(("name", "call"), REFUSED.items(), ids=REFUSED)
def test_what_is_not_covered_says_so_by_name(name, call):
    with pytest.raises(NotImplementedError, match=rf"{name} is not covered by the virtual GPU"):
        call()


@pytest.mark.parametrize(
    ("card", "capability", "native"), [("A100-40GB", (8, 0), True), ("P100-16GB", (6, 0), False)]
)
def test_other_cards_answer_for_themselves(gpu, card, capability, native):
    gpu.__exit__()
    with VirtualGPU(lookup(card)):
        assert torch.cuda.get_device_capability() == capability
        assert torch.cuda.is_bf16_supported(including_emulation=False) == native
        assert torch.cuda.mem_get_info()[1] == lookup(card).total
    gpu.__enter__()


OF_A_DEVICE = (
    *("memory_allocated", "memory_reserved", "max_memory_allocated", "memory_stats"),
    *("mem_get_info", "reset_peak_memory_stats", "current_stream", "default_stream"),
)


@pytest.mark.parametrize("name", OF_A_DEVICE)
def test_there_is_no_second_device(gpu, name):
    getattr(torch.cuda, name)(0)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        getattr(torch.cuda, name)("cuda:1")


def test_properties_that_kernels_are_chosen_by(gpu):
    card = torch.cuda.get_device_properties(0)
    assert (card.L2_cache_size, card.shared_memory_per_block) == (4 << 20, 48 << 10)
    assert (card.shared_memory_per_block_optin, card.max_threads_per_block) == (64 << 10, 1024)
    assert (card.shared_memory_per_multiprocessor, card.warp_size) == (64 << 10, 32)
    assert card.max_threads_per_multi_processor == 1024
    assert not hasattr(card, "memory_bus_width")
    with pytest.raises(NotImplementedError, match="memory_bus_width is not covered"):
        _ = card.memory_bus_width


def test_the_profiler_tells_what_the_host_computes(capfd):
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(50, 50, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as kept:
        x @ x
    assert "aten::mm" in kept.key_averages().table(sort_by="cuda_time_total")
    assert "Failed to record CUDA event" not in capfd.readouterr().err
