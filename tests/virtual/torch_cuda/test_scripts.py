"""TorchScript on the device: what it is told, and where what it has saved is loaded to."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("gpu")

CUDA, HOST = torch.device("cuda", 0), torch.device("cpu")


def devices(module):
    return {tensor.device for tensor in module.state_dict().values()}


def test_scripted_modules_are_loaded_to_the_device(tmp_path):
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "net.pt")
    assert devices(torch.jit.load(tmp_path / "net.pt", map_location="cuda")) == {CUDA}
    assert devices(torch.jit.load(tmp_path / "net.pt")) == {HOST}


@pytest.mark.parametrize(
    "save", [torch.jit.save, lambda script, path: script.save(path), lambda script, path: None]
)
def test_what_was_saved_on_the_device_is_loaded_to_it(tmp_path, save):
    path = str(tmp_path / "net.pt")
    script = torch.jit.script(nn.Linear(2, 2).cuda())
    save(script, path)
    if not (tmp_path / "net.pt").exists():
        torch.jit.save(script, buffer := io.BytesIO(), _extra_files={"note": "mine"})
        (tmp_path / "net.pt").write_bytes(buffer.getvalue())
    extra = {"note": ""}
    loaded = torch.jit.load(path, _extra_files=extra)
    assert devices(loaded) == {CUDA}
    assert loaded(torch.ones(1, 2, device="cuda")).device == CUDA
    assert devices(torch.jit.load(path, "cpu")) == {HOST}
    assert set(extra) == {"note"}


def asks_cuda(x: torch.Tensor) -> int:
    if x.dim() > 1 and x.is_cuda:
        return 1
    return 0


def asks_type(x: torch.Tensor) -> int:
    if x.dim() > 1 and x.device.type == "cuda":
        return 1
    return 0


def asks_equal(x: torch.Tensor) -> int:
    if x.dim() > 1 and x.device == torch.device("cuda:0"):
        return 1
    return 0


@pytest.mark.parametrize(
    ("function", "read"), [(asks_cuda, "is_cuda"), (asks_type, "device"), (asks_equal, "device")]
)
def test_a_script_that_would_take_the_hosts_branch_is_refused(function, read):
    choose = torch.jit.script(function)
    assert choose(torch.ones(2, 2)) == 0
    x = torch.ones(2, 2, device="cuda")
    with pytest.raises(NotImplementedError, match=f"TorchScript that reads {read}"):
        choose(x)


def test_a_script_may_make_tensors_where_others_are():
    @torch.jit.script
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(3, device=x.device) + x

    assert shifted(torch.ones(3, device="cuda")).tolist() == [1, 1, 1]


@torch.jit.script
def beside(x):
    return torch.zeros(3, device=x.device) + 1, torch.arange(4, device=x.device)


@torch.jit.script
def on_both(x):
    return torch.zeros(3, device=x.device), torch.arange(4, device=torch.device("cpu"))


def test_what_a_script_makes_beside_a_tensor_is_on_its_device(gpu):
    x = torch.ones(3, device="cuda")
    for made in beside(x):
        assert made.is_cuda
    assert not any(made.is_cuda for made in beside(torch.ones(3)))
    assert not on_both(x)[1].is_cuda
    assert not torch.zeros(3, device="cpu").is_cuda


def test_traces_have_what_was_called_and_nothing_beside_it():
    def work(x, weight):
        y = torch.conv2d(x, weight, padding=1).relu()
        return y.view(x.shape[0], -1) + torch.arange(x.shape[1], device="cuda")[0]

    traced = torch.jit.trace(
        work, given := (torch.rand(2, 4, 8, 8).cuda(), torch.rand(4, 4, 3, 3).cuda())
    )
    kinds = [node.kind() for node in traced.graph.nodes()]
    assert [kind for kind in kinds if "conv" in kind] == ["aten::_convolution"]
    assert "aten::empty_strided" not in kinds
    assert torch.equal(traced(*given), work(*given))
    assert traced(*given).device == CUDA


def test_a_traced_convolution_takes_what_a_convolution_takes(gpu):
    x, weight = torch.rand(2, 4, 8, 8, device="cuda"), torch.rand(4, 4, 3, 3, device="cuda")
    plain, peaks = (torch.conv2d, torch.jit.trace(torch.conv2d, (x, weight))), []
    for call in plain:
        torch.cuda.reset_peak_memory_stats()
        call(x, weight)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] == peaks[1]
