"""Types that CUDA's kernels refuse: refused in dry runs too, though nothing is computed."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic import predict

X, Y = "torch.randn(300, 300, device='cuda')", "torch.randn(300, 300, device='cuda').double()"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (f"{X} @ {Y}", "mat1 and mat2 must have the same dtype, but got Float and Double"),
        (
            f"torch.nn.Linear(300, 300).cuda()({X}.half())",
            "mat1 and mat2 must have the same dtype, but got Half and Float",
        ),
        (
            f"torch.baddbmm({X}[None], {X}[None], {Y}[None])",
            "mat1 and mat2 must have the same dtype, but got Float and Double",
        ),
        (
            f"{X}.long().add_({X})",
            "result type Float can't be cast to the desired output type Long",
        ),
        (
            f"torch.nn.LayerNorm(300).cuda()({X}.half())",
            "expected scalar type Half but found Float",
        ),
        (
            f"torch.nn.GroupNorm(3, 300).cuda().half()({X})",
            "expected scalar type Float but found Half",
        ),
        (
            f"torch.nn.functional.scaled_dot_product_attention({X}, {X}, {Y})",
            "Expected query, key, and value to have the same dtype, but got query.dtype: Float "
            "key.dtype: Float and value.dtype: Double instead.",
        ),
    ],
)
def test_what_a_kernel_refuses_is_refused(source, text):
    report = predict(source, {"torch": torch}, gpu="T4")
    assert report.error == f"RuntimeError: {text}"


@pytest.mark.parametrize(
    "source",
    [
        f"{X} + {Y}",
        f"{X}.add_({Y})",
        f"{X}.mul_(2)",
        f"{X} @ {X}",
        f"{X}.add_({X}.long())",
        f"torch.nn.LayerNorm(300)({X}.cpu().bfloat16())",
        f"with torch.autocast('cuda'): torch.nn.LayerNorm(300).cuda()({X}.half())",
        "attend = torch.nn.functional.scaled_dot_product_attention\n"
        f"with torch.autocast('cuda'): attend({X}, {X}.half(), {X})",
    ],
)
def test_other_mixtures_are_not(source):
    assert predict(source, {"torch": torch}, gpu="T4").error is None
