"""What meta kernels tell of results, and that it is asked once."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic.virtual.kernels.geometry import Geometry
from gpumem_magic.virtual.workspaces.layouts import Layout

aten = torch.ops.aten


def test_shapes_strides_and_types():
    geometry = Geometry()
    a, b = torch.ones(3, 4, dtype=torch.float16), torch.ones(4, 5, dtype=torch.float16)
    expected = Layout(torch.Size((3, 5)), (5, 1), torch.float16)
    assert geometry.results(aten.mm.default, (a, b), {}) == expected
    assert expected.nbytes == 30


def test_several_results_keep_their_order_and_kind():
    geometry = Geometry()
    values, places = geometry.results(aten.topk.default, (torch.ones(8, 9), 3), {})
    assert (values.dtype, places.dtype) == (torch.float32, torch.int64)
    roots = geometry.results(aten._foreach_sqrt.default, ([torch.ones(2), torch.ones(3)],), {})
    assert [list(shape.size) for shape in roots] == [[2], [3]]


def test_the_same_geometry_is_asked_once(monkeypatch):
    asked = []
    module = "gpumem_magic.virtual.kernels.geometry.ask_meta_kernel"
    monkeypatch.setattr(module, lambda *call: asked.append(call) or torch.empty(2, device="meta"))
    geometry = Geometry()
    for other in (torch.ones(2), torch.zeros(2), torch.ones(2, dtype=torch.int64)):
        geometry.results(aten.add.Tensor, (torch.ones(2), other), {})
    assert len(asked) == 2
    geometry.results(aten.add.Tensor, (torch.ones(2), torch.ones(2)), {"alpha": 2})
    geometry.results(aten.add.Tensor, (torch.ones(2), torch.ones(2)), {"alpha": 2.0})
    assert len(asked) == 4


def test_a_convolution_keeps_channels_last():
    x = torch.ones(2, 3, 8, 8).to(memory_format=torch.channels_last)
    args = (x, torch.ones(4, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    shape = Geometry().results(aten.convolution.default, args, {})
    assert shape.stride == (256, 1, 32, 4)


def test_wrong_arguments_raise_as_the_operator_does():
    with pytest.raises(RuntimeError):
        Geometry().results(aten.mm.default, (torch.ones(3, 4), torch.ones(5, 6)), {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_grouped_products_have_the_type_of_their_factors(dtype):
    a, b = torch.empty(32, 16, dtype=dtype), torch.empty(4, 16, 24, dtype=dtype)
    offsets = torch.tensor([8, 16, 24, 32], dtype=torch.int32)
    found = Geometry().results(torch.ops.aten._grouped_mm.default, (a, b, offsets), {})
    assert (found.size, found.stride, found.dtype) == (torch.Size((32, 24)), (24, 1), dtype)


def test_what_has_no_meta_kernel_is_like_its_argument():
    x, target = torch.rand(2, 5), torch.zeros(2, 5, dtype=torch.long)
    given = torch.ones(()), x, target, 1, torch.zeros(2, 5)
    real = aten.multilabel_margin_loss_backward(*given)
    told = Geometry().results(aten.multilabel_margin_loss_backward.default, given, {})
    assert told == (real.shape, real.stride(), real.dtype)


def test_products_into_another_type():
    """Of which not all have a meta kernel."""
    x, aten = torch.empty(4, 8, 8, dtype=torch.bfloat16), torch.ops.aten
    wide = x.float()
    for operator, operands in (
        (aten.mm, (x[0], x[0])),
        (aten.bmm, (x, x)),
        (aten.addmm, (wide[0], x[0], x[0])),
        (aten.baddbmm, (wide, x, x)),
    ):
        for overload, out in ((operator.dtype, {}), (operator.dtype_out, {"out": operands[0]})):
            found = Geometry().results(overload, (*operands, torch.float32), out)
            assert (found.size, found.dtype) == (operands[-1].shape, torch.float32)
