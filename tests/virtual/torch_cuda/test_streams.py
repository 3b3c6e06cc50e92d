"""Streams and events: work is done at once, memory keeps a pool for each stream."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("gpu")


def test_the_idiom_that_measures_time():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(1000, device="cuda").sum()
    end.record()
    torch.cuda.synchronize()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    with pytest.raises(ValueError, match="enable_timing"):
        torch.cuda.Event().elapsed_time(end)
    with pytest.raises(ValueError, match="recorded"):
        torch.cuda.Event(enable_timing=True).elapsed_time(end)


def test_streams_begin_end_and_wait():
    stream = torch.cuda.Stream()
    default = torch.cuda.current_stream()
    assert default == torch.cuda.default_stream() != stream
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        x = torch.ones(3, device="cuda")
    assert torch.cuda.current_stream() == default
    default.wait_stream(stream)
    stream.wait_event(default.record_event())
    stream.synchronize()
    assert stream.query()
    assert x.tolist() == [1, 1, 1]
    with stream, torch.cuda.Stream(priority=-1):
        assert torch.cuda.current_stream().priority in (0, -1)
    assert torch.cuda.current_stream() == default


def test_each_stream_has_a_pool_of_its_own(gpu):
    x = torch.ones(1000, device="cuda")
    first = gpu.storages.locate(x)
    del x
    with torch.cuda.stream(torch.cuda.Stream()):
        assert gpu.storages.locate(torch.ones(1000, device="cuda")) != first
    assert torch.cuda.memory_reserved() == 2 * (2 << 20)
    assert gpu.storages.locate(torch.ones(1000, device="cuda")) == first


def test_a_block_used_by_another_stream_waits_for_it(gpu):
    x, stream = torch.ones(1000, device="cuda"), torch.cuda.Stream()
    x.record_stream(stream)
    del x
    stats = torch.cuda.memory_stats()
    assert (stats["allocated_bytes.all.current"], stats["active_bytes.all.current"]) == (0, 4096)
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 0


def test_streams_and_events_of_any_device():
    assert isinstance(torch.Stream(device="cuda"), torch.cuda.Stream)
    assert isinstance(torch.cuda.Stream(), torch.Stream)
    assert isinstance(torch.Event(device="cuda"), torch.cuda.Event)


@pytest.mark.parametrize(
    ("device", "text"), [("cuda:1", "invalid device ordinal"), ("garbage", "Expected one of cpu")]
)
def test_streams_are_of_devices_that_exist(device, text):
    with pytest.raises(RuntimeError, match=text):
        torch.cuda.Stream(device)
    assert torch.cuda.Stream("cuda:0").device == torch.device("cuda", 0)


def test_a_stream_is_of_the_card():
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.Stream("cpu")
    assert torch.cuda.Stream("cuda").device == torch.device("cuda", 0)
