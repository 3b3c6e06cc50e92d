"""Results whose size is a matter of values: assumed as large as they can be."""

from __future__ import annotations

import pytest
import torch

from gpumem_magic.dryrun.shapes.unknown_sizes import UnknownSizes
from gpumem_magic.dryrun.shapes.valueless import Valueless
from gpumem_magic.virtual.kernels.geometry import Geometry

aten = torch.ops.aten
X = torch.ones(4, 6)


@pytest.mark.parametrize(
    ("func", "args", "sizes"),
    [
        (aten.nonzero.default, (X,), [(24, 2)]),
        (aten.masked_select.default, (X, torch.ones(6, dtype=torch.bool)), [(24,)]),
        (aten._unique2.default, (X, True, True, True), [(24,), (4, 6), (24,)]),
        (aten._unique2.default, (X,), [(24,), (0,), (0,)]),
        (aten.unique_consecutive.default, (X, False, True), [(24,), (0,), (24,)]),
        (aten.unique_dim.default, (X, 1), [(4, 6), (6,), (6,)]),
        (aten.bincount.default, (torch.ones(5, dtype=torch.int64), None, 7), [(7,)]),
        (aten.index.Tensor, (X, [X > 0]), [(24,)]),
        (aten.index.Tensor, (X, [None, torch.ones(6, dtype=torch.bool)]), [(4, 6)]),
    ],
    ids=str,
)
def test_everything_is_found(func, args, sizes):
    found = UnknownSizes(Geometry(), Valueless()).assumed(func, args, {})
    found = found if type(found) is tuple else (found,)
    assert [tuple(shape.size) for shape in found] == sizes


def test_real_results_are_never_larger():
    mask = torch.rand(4, 6) > 0.3
    unknown = UnknownSizes(Geometry(), Valueless())
    for func, args in ((aten.nonzero.default, (mask,)), (aten.masked_select.default, (X, mask))):
        assumed = unknown.assumed(func, args, {})
        assert func(*args).numel() <= assumed.size.numel()
        assert func(*args).dtype is assumed.dtype


def test_all_other_operators_are_left_to_their_meta_kernels():
    unknown = UnknownSizes(Geometry(), Valueless())
    assert unknown.assumed(aten.index.Tensor, (X, [torch.tensor([1, 2])]), {}) is None
    assert unknown.assumed(aten.relu.default, (X,), {}) is None


@pytest.mark.parametrize(
    ("func", "args", "size"),
    [
        (aten.index.Tensor, (X, [torch.arange(4) > 1]), (2, 6)),
        (aten.index.Tensor, (X, [None, torch.arange(6) > 4]), (4, 1)),
        (aten.masked_select.default, (X, torch.arange(6) > 1), (16,)),
        (aten.repeat_interleave.Tensor, (torch.tensor([3, 0, 4]),), (7,)),
    ],
    ids=str,
)
def test_masks_that_are_known_tell_how_much_they_select(func, args, size):
    valueless = Valueless()
    unknown = UnknownSizes(Geometry(), valueless)
    assert unknown.told_by_values(func, args, {}).size == size == func(*args).shape
    mask = args[-1] if isinstance(args[-1], torch.Tensor) else args[-1][-1]
    valueless.mark(mask.untyped_storage())
    assert unknown.told_by_values(func, args, {}) is None
