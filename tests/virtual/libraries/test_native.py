"""Native code of other libraries launches nothing, and memory is what the Python around it asks
for."""

from __future__ import annotations

import sys

import pytest
import torch._dynamo

from gpumem_magic import predict

MIB = 2**20

TRITON = {
    "triton/__init__.py": "from triton.runtime.jit import JITFunction\n",
    "triton/runtime/__init__.py": "",
    "triton/runtime/jit.py": (
        "class JITFunction:\n"
        "    def run(self, *args, grid=None): raise RuntimeError('no driver')\n"
        "    def __getitem__(self, grid):\n"
        "        return lambda *args: self.run(*args, grid=grid)\n"
        "    def warmup(self, *args, grid): return self.run(*args, grid=grid)\n"
    ),
    **dict.fromkeys(("triton/backends/__init__.py", "triton/backends/nvidia/__init__.py"), ""),
    "triton/backends/nvidia/driver.py": (
        "class CudaUtils:\n    def __init__(self): raise AssertionError('libcuda.so')\n"
        "class CudaDriver:\n    def __init__(self): self.utils = CudaUtils()\n"
    ),
}

BITSANDBYTES = {
    "bitsandbytes/__init__.py": "from bitsandbytes import functional, optim\n",
    "bitsandbytes/functional.py": (
        "import torch\n"
        "class Missing:\n"
        "    def __getattr__(self, name): raise RuntimeError('no native library')\n"
        "lib = Missing()\n"
        "def get_paged(*shape, dtype=torch.float32, device=None): lib.cget_managed_ptr()\n"
        "def prefetch_tensor(tensor, to_cpu=False): lib.cprefetch()\n"
        "def quantize(a):\n"
        "    out = torch.empty((a.numel() + 1) // 2, dtype=torch.uint8, device=a.device)\n"
        "    lib.cquantize(a.data_ptr(), out.data_ptr())\n"
        "    return out\n"
    ),
    "bitsandbytes/optim.py": (
        "def refuse(*args): raise RuntimeError('no native library')\n"
        "str2optimizer8bit = {'adam': (refuse, refuse), 'lion': refuse}\n"
    ),
}


@pytest.fixture
def library(tmp_path, monkeypatch):
    def write(files):
        for path, text in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))

    return write


def predicted(code):
    report = predict("import torch\n" + code, {}, gpu="T4")
    assert report.error is None
    return report


@pytest.mark.skipif("triton" in sys.modules, reason="torch has loaded the real one")
def test_a_triton_launch_takes_no_memory_and_makes_values_unknown(library):
    library(TRITON)
    code = """
from triton import JITFunction
kernel = JITFunction()
a = torch.zeros(64, device="cuda")
kernel[(1,)](a, 64)
if a[0].item() > 0:
    pass
"""
    report = predicted(code)
    assert report.peak.allocated == 512
    assert any("values that a dry run does not know" in note for note in report.notes)


@pytest.mark.skipif("triton" in sys.modules, reason="torch has loaded the real one")
def test_triton_is_told_of_the_card_and_of_a_compiled_kernel(library):
    library(TRITON)
    code = """
from triton import JITFunction
from triton.backends.nvidia.driver import CudaDriver
told = CudaDriver().utils.get_device_properties(0)
assert told["multiprocessor_count"] == 40 and told["max_num_regs"] == 65536
kernel = JITFunction().warmup(torch.zeros(64, device="cuda"), grid=(1,))
kernel._init_handles()
assert told["max_shared_mem"] // kernel.metadata.shared // kernel.n_regs
kernel[(40, 1, 1)](torch.zeros(64, device="cuda"))
"""
    assert predicted(code).peak.allocated == 512


def test_a_native_library_does_nothing(library):
    library(BITSANDBYTES)
    code = """
import bitsandbytes as bnb
w = torch.empty(4096, 4096, device="cuda")
packed = bnb.functional.quantize(w)
for update in bnb.optim.str2optimizer8bit["adam"]:
    update(w, packed)
bnb.optim.str2optimizer8bit["lion"](w)
"""
    assert predicted(code).peak.allocated == 64 * MIB + 8 * MIB


def test_paged_states_are_outside_of_the_allocator_and_it_is_said(library):
    library(BITSANDBYTES)
    code = """
import bitsandbytes as bnb
state = bnb.functional.get_paged(1024, 1024, dtype=torch.uint8)
bnb.functional.prefetch_tensor(state)
assert state.is_paged and state.shape == (1024, 1024) and state.dtype is torch.uint8
x = torch.empty(256, device="cuda")
"""
    report = predicted(code)
    assert report.peak.allocated == 1024
    assert sum("managed memory" in note for note in report.notes) == 1


OPERATOR = """
torch.library.define("predicted::grow", "(Tensor a) -> Tensor")
@torch.library.register_fake("predicted::grow")
def fake(a):
    return a.new_empty(2 * a.numel())
"""


def test_an_operator_is_told_by_its_fake_kernel():
    code = """
@torch.library.register_kernel("predicted::grow", "cpu")
def cpu(a):
    return torch.cat([a.double(), a.double()]).float()
a = torch.empty(2**18, device="cuda")
b = torch.ops.predicted.grow(a)
"""
    assert predicted(OPERATOR + code).peak.allocated == MIB + 2 * MIB


@pytest.mark.parametrize("devices", ["'cuda'", "None"])
def test_an_operator_runs_its_python_for_the_card_with_its_temporaries(devices):
    code = f"""
@torch.library.register_kernel("predicted::grow", {devices})
def on_card(a):
    twice = torch.cat([a, a])
    return twice + 1
a = torch.empty(2**18, device="cuda")
b = torch.ops.predicted.grow(a)
"""
    assert predicted(OPERATOR + code).peak.allocated == MIB + 2 * MIB + 2 * MIB


def test_real_bitsandbytes_takes_four_bits_and_a_scale_for_each_block():
    pytest.importorskip("bitsandbytes")
    code = """
import bitsandbytes as bnb
layer = bnb.nn.Linear4bit(4096, 4096, bias=False, quant_type="nf4", compress_statistics=False)
layer = layer.cuda()
"""
    kept = predicted(code).after.allocated
    blocks = 4096 * 4096 // 64
    assert kept == 4096 * 4096 // 2 + 4 * blocks + 512  # and the table of 16 values


def test_pynvml_reads_the_card():
    pynvml = pytest.importorskip("pynvml")
    report = predict(
        "from pynvml import *\n"
        "nvmlInit()\n"
        "handle = nvmlDeviceGetHandleByIndex(nvmlDeviceGetCount() - 1)\n"
        "made = torch.empty(5, 2**20, device='cuda')\n"
        "read = nvmlDeviceGetMemoryInfo(handle)\n"
        "print(nvmlDeviceGetName(handle), torch.cuda.mem_get_info() == (read.free, read.total))\n"
        "print(read.used + read.free == read.total, nvmlDeviceGetUtilizationRates(handle).gpu)\n"
        "nvmlShutdown()",
        {"torch": torch},
        gpu="T4",
    )
    assert report.error is None, report.error
    assert report.output == "Tesla T4 True\nTrue 0\n"
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlDeviceGetCount()
