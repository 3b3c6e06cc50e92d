"""Libraries that are not installed: who looks for them is told; stand-ins have their shapes."""

from __future__ import annotations

import pytest

from gpumem_magic import predict
from gpumem_magic.virtual.assumable import ASSUMABLE, assumable

torch = pytest.importorskip("torch")
MIB = 1 << 20

FLASH = """
import torch
from flash_attn import flash_attn_func
q = torch.randn(2, 4096, 16, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
k, v = (torch.randn(2, 4096, 4, 64, dtype=q.dtype, device="cuda") for _ in "kv")
out = flash_attn_func(q, k, v, causal=True)
out.backward(out)
"""


def notes(report):
    return " ".join(report.notes)


def test_what_is_absent_is_told_by_name_and_by_who_asks():
    cell = "try:\n    import flash_attn\nexcept ImportError:\n    import importlib.util as u\n"
    report = predict(f"{cell}    u.find_spec('apex')\n    u.find_spec('surely_not')", {}, "T4")
    assert report.error is None
    told = notes(report)
    assert "The cell's line 2 looked for flash_attn, which is not installed here" in told
    assert "--assume flash_attn predicts that" in told
    assert "line 5 looked for apex" in told
    assert "--assume apex" not in told
    assert "surely_not" not in told
    assert not any("looked for" in note for note in predict("x = 1", {}, "T4").notes)


def test_flash_attention_takes_what_its_sources_say():
    report = predict(FLASH, {}, "A100-40GB", assume=["flash_attn"])
    assert report.error is None
    assert "Assumed to be installed, with stand-ins that only have shapes: flash_attn" in notes(
        report
    )
    sizes = {line.number: line.allocated for line in report.lines}
    assert sizes[6] == 16 * MIB + MIB // 2 + 512  # the result, its sums, the random state
    # dq, dk, dv; the sums of softmax and of dq in float32; dk and dv for each head
    assert sizes[7] == (16 + 4 + 4) * MIB + MIB // 2 + 32 * MIB + 2 * 16 * MIB


def test_flash_attention_refuses_what_it_refuses_on_the_card():
    assert "only supports Ampere" in predict(FLASH, {}, "T4", assume=["flash_attn"]).error
    cell = FLASH.replace("bfloat16", "float32")
    assert "fp16 and bf16" in predict(cell, {}, "A100-40GB", assume=["flash_attn"]).error


def test_the_other_forms_of_attention_give_the_right_shapes():
    cell = """
import torch
from flash_attn import flash_attn_qkvpacked_func, flash_attn_varlen_func, flash_attn_with_kvcache
from flash_attn.bert_padding import pad_input, unpad_input
from xformers.ops import memory_efficient_attention
from causal_conv1d import causal_conv1d_fn
def t(*size):
    return torch.randn(size, dtype=torch.float16, device="cuda", requires_grad=True)
x = t(2, 8, 3, 4, 60)
shapes = [flash_attn_qkvpacked_func(x).shape]
begins = torch.tensor([0, 5, 9], dtype=torch.int32, device="cuda")
y = flash_attn_varlen_func(t(9, 4, 64), t(9, 4, 64), t(9, 4, 64), begins, begins, 5, 5)
y.sum().backward()
shapes += [y.shape, flash_attn_with_kvcache(t(1, 1, 4, 64), t(1, 9, 4, 64), t(1, 9, 4, 64)).shape]
shapes += [memory_efficient_attention(t(2, 8, 40), t(2, 8, 40), t(2, 8, 40)).shape]
z = causal_conv1d_fn(t(2, 6, 10), w := t(6, 4), None, activation="silu")
z.sum().backward()
shapes += [z.shape, w.grad.shape, pad_input(y, torch.arange(9), 3, 5).shape]
print([tuple(shape) for shape in shapes])
"""
    report = predict(cell, {}, "A100-40GB", assume=["flash_attn", "xformers", "causal_conv1d"])
    assert report.error is None
    wanted = [(2, 8, 4, 60), (9, 4, 64), (1, 1, 4, 64), (2, 8, 40)]
    assert report.output == f"{[*wanted, (2, 6, 10), (6, 4), (3, 5, 4, 64)]}\n"


def test_kernels_of_triton_launch_nothing():
    cell = """
import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import tanh

@triton.autotune(configs=[triton.Config({"SIZE": 64}, num_warps=4)], key=["n"])
@triton.jit
def double(x, out, n, SIZE: tl.constexpr):
    tl.store(out, tl.load(x) * 2)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), triton.next_power_of_2(60)),)](x, out, x.numel())
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad

x = torch.ones(1 << 18, device="cuda", requires_grad=True)
y = Double.apply(x)
y.sum().backward()
if y[0] > 1: pass
"""
    namespace = {"__name__": "__main__"}
    report = predict(cell, namespace, "T4", assume=["triton"])
    assert report.error is None
    sizes = {line.number: line.allocated for line in report.lines}
    assert (sizes[15], sizes[23]) == (MIB, MIB)
    assert "Line 26 goes by values" in notes(report)  # what a launch wrote is not known


def test_metadata_tells_the_version():
    cell = """
import importlib.metadata as metadata
print(metadata.version("flash-attn"), metadata.packages_distributions()["flash_attn"])
import flash_attn
print(flash_attn.__version__, hasattr(flash_attn, "flash_blend"))
from flash_attn import flash_blend
"""
    report = predict(cell, {}, "T4", assume=["flash-attn"])
    assert report.output == "2.8.3 ['flash-attn']\n2.8.3 False\n"
    assert report.error.startswith("ImportError: cannot import name 'flash_blend'")


def test_only_what_is_known_can_be_assumed():
    assert assumable("triton, flash-attn") == ("triton", "flash_attn")
    with pytest.raises(ValueError, match=f"'apex' cannot be assumed; {', '.join(ASSUMABLE)} can"):
        predict("x = 1", {}, "T4", assume=["apex"])
