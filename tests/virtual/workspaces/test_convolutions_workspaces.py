"""What is not known of cuDNN's workspaces: how much they may be, where an answer says so, and what
`cudnn.benchmark` does to the cache."""

from __future__ import annotations

from json import loads

import pytest
import torch
from torch import nn

from gpumem_magic import fit, predict
from gpumem_magic.renderers.formats import json
from gpumem_magic.units import MIB
from tests.benches import benchmark_module

SEEN = 128 * MIB  # the largest workspace that traces of real cards show

CELL = """
import torch
torch.backends.cudnn.benchmark = {benchmark}
rest = torch.empty({rest}, dtype=torch.uint8, device="cuda")
conv = torch.nn.Conv2d(16, 32, 3, padding=1).to("cuda", torch.{dtype})
out = conv(torch.ones({batch}, 16, 64, 64, device="cuda", dtype=torch.{dtype}))
"""


def predicted(rest=1024, batch=8, dtype="float32", benchmark=False, gpu="T4"):
    cell = CELL.format(rest=rest, batch=batch, dtype=dtype, benchmark=benchmark)
    return predict(cell, {}, gpu=gpu)


@pytest.fixture
def benchmark():
    torch.backends.cudnn.benchmark = True
    yield
    torch.backends.cudnn.benchmark = False


def test_the_cache_is_emptied_where_a_shape_is_new(gpu, benchmark):
    conv = nn.Conv2d(8, 8, 3, device="cuda")
    x, smaller = torch.ones(2, 8, 32, 32, device="cuda"), torch.ones(1, 8, 32, 32, device="cuda")

    def keeps_the_cache(image, net=conv):
        torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        cached = gpu.allocator.reserved
        net(image)
        return gpu.allocator.reserved >= cached

    images = (x, x, smaller, x, smaller)
    assert [keeps_the_cache(image) for image in images] == [False, True, False, True, True]
    assert not keeps_the_cache(x, nn.Conv2d(8, 8, 3, padding=1, device="cuda"))


def test_each_gradient_is_a_shape_of_its_own(gpu, benchmark):
    conv = nn.Conv2d(8, 8, 3, device="cuda")
    kept = []
    for _ in range(2):
        out = conv(torch.ones(2, 8, 32, 32, device="cuda", requires_grad=True)).sum()
        torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        cached = gpu.allocator.reserved
        out.backward()
        kept.append(gpu.allocator.reserved >= cached)
    assert kept == [False, True]


def test_without_benchmark_the_cache_stays(gpu):
    torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    cached = gpu.allocator.reserved
    nn.Conv2d(8, 8, 3, device="cuda")(torch.ones(2, 8, 32, 32, device="cuda"))
    assert gpu.allocator.reserved >= cached


@pytest.mark.parametrize(
    ("dtype", "gpu", "batch", "most"),
    [
        ("float32", "T4", 640, SEEN),
        ("float16", "T4", 16, SEEN),
        ("float16", "T4", 640, 2 * (80 * MIB + 16 * 32 * 9 * 2 + 160 * MIB)),
        ("bfloat16", "A100-40GB", 640, 2 * (80 * MIB + 16 * 32 * 9 * 2 + 160 * MIB)),
        ("float32", "A100-40GB", 640, 2 * (160 * MIB + 16 * 32 * 9 * 4 + 320 * MIB)),
    ],
)
def test_a_peak_within_a_convolution_may_be_higher(dtype, gpu, batch, most):
    report = predicted(dtype=dtype, batch=batch, gpu=gpu)
    assert report.uncounted == most


def test_no_more_is_told_than_what_exceeds_the_peak():
    cell = CELL.format(rest=1024, batch=8, dtype="float32", benchmark=False)
    later = "torch.empty({}, dtype=torch.uint8, device='cuda')\n"
    there = predict(cell, {}, gpu="T4").peak.allocated
    assert predict(cell + later.format(100 * MIB), {}, gpu="T4").uncounted == 28 * MIB
    beyond = predict(cell + later.format(200 * MIB), {}, gpu="T4")
    assert (beyond.peak.allocated, beyond.uncounted) == (there + 200 * MIB, 0)
    assert any("cuDNN" in note for note in beyond.notes)


OPERANDS = 8 * 4 * (16 * 64 * 64 + 32 * 64 * 64) + 16 * 32 * 9 * 4


@pytest.mark.parametrize(
    ("change", "gpu", "likely"),
    [
        ("Conv2d(16, 32", "T4", 0),  # nobody has measured it there
        ("Conv2d(16, 32", "H200", 0),  # few terms, in float32
        ("Conv2d(32, 32", "H200", OPERANDS + 8 * 4 * 16 * 64 * 64 + 16 * 32 * 9 * 4),
        ("Conv2d(32, 32", "A100-40GB", OPERANDS + 8 * 4 * 16 * 64 * 64 + 16 * 32 * 9 * 4),
    ],
)
def test_what_tensor_cores_likely_take_is_room_for_the_operands(change, gpu, likely):
    channels = 32 if "(32" in change else 16
    cell = CELL.format(rest=1024, batch=8, dtype="float32", benchmark=False)
    cell = cell.replace("Conv2d(16, 32", change).replace("ones(8, 16", f"ones(8, {channels}")
    report = predict(cell, {}, gpu=gpu)
    assert report.likely == likely
    assert ("convolutions likely take" in report.text()) is (likely > 0)
    assert json.from_dict(json.to_dict(report)).likely == likely


@pytest.mark.parametrize("end", [".to(memory_format=torch.channels_last)", "[..., :1, :1]"])
def test_operands_that_lie_as_the_kernel_wants_them_are_not_copied(end):
    cell = CELL.format(rest=1024, batch=8, dtype="float16", benchmark=False)
    assert predict(cell, {}, gpu="H200").likely > 0
    filters = "conv.to(memory_format=torch.channels_last)\n" if "last" in end else ""
    kernel = "3, padding=1" if "last" in end else "1"
    cell = cell.replace("3, padding=1", kernel).replace("out =", f"{filters}out =")
    image = f'device="cuda", dtype=torch.float16){end if "last" in end else ""})'
    cell = cell.replace('device="cuda", dtype=torch.float16))', image)
    assert predict(cell, {}, gpu="H200").likely == 0


@pytest.mark.parametrize(("name", "percent"), [("gan", 2), ("vgg", 1), ("unet_interpolated", 1)])
def test_with_it_peaks_are_what_a_real_card_was_seen_to_have(name, percent):
    with benchmark_module("fidelity_table") as table:
        (cell,) = (each for each in table.WORKLOADS if each.name == name)
        source = cell.source
        kept = (table.CELLS.parent / "results" / "gpu-nvidia-h200.json").read_text()
    seen = loads(kept)["fidelity"]["cells"][name]["bytes"]
    report = predict(source, {}, gpu="H200")
    assert report.peak.allocated + report.likely == pytest.approx(seen, rel=percent / 100)


def test_fits_keeps_what_may_be_taken():
    roomy = predicted()
    left = roomy.free_at_peak
    assert "Fits: " in roomy.text()
    assert "convolutions may take up to 128.00 MiB more" in roomy.text()
    tight = predicted(rest=left - 100 * MIB)
    assert tight.oom is None
    assert 0 < tight.free_at_peak < SEEN
    assert "May not fit: " in tight.text()


def test_the_largest_value_keeps_it_too():
    cell = CELL.format(rest="count * 2**20", batch=8, dtype="float32", benchmark=False)
    found = fit("count = 14_000\n" + cell, "count", {}, gpu="T4", headroom=0.0)
    assert found.exact
    assert not found.report.is_tight
    assert found.report.free_at_peak < 2 * MIB  # beside what is kept
    assert any("of the card is kept free" in note for note in found.notes)
    assert any("cuDNN" in note for note in found.report.notes)


def test_what_is_kept_free_anyhow_is_there_for_it():
    cell = "count = 14_000\n" + CELL.format(
        rest="count * 2**20", batch=8, dtype="float32", benchmark=False
    )
    found = fit(cell, "count", {}, gpu="T4")
    assert found.report.uncounted == 0  # 3 % of the card are more
    assert not any("128.00 MiB" in note for note in found.notes)


@pytest.mark.parametrize(("benchmark", "said"), [(True, True), (False, False)])
def test_what_benchmark_may_take_is_said(benchmark, said):
    notes = predicted(benchmark=benchmark).notes
    assert any("128 MiB in calls" in note for note in notes)
    assert any("cudnn.benchmark" in note for note in notes) is said


def test_without_convolutions_nothing_is_said():
    report = predict("import torch\nx = torch.ones(4, 4, device='cuda')", {}, gpu="T4")
    assert (report.uncounted, report.notes) == (0, ())
    assert "uncounted" not in json.to_dict(report)


def test_it_is_kept_in_files():
    report = predicted()
    assert json.from_dict(json.to_dict(report)).uncounted == report.uncounted == SEEN
