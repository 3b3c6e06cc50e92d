"""torch.cuda.FloatTensor and its like."""

from __future__ import annotations

import inspect

import pytest
import torch

from gpumem_magic.virtual.torch_cuda.tensor_types import ON_DEVICE, dtype_of


def test_they_make_and_recognise_device_tensors(gpu):
    x = torch.cuda.FloatTensor([1, 2])
    assert (x.is_cuda, x.dtype, x.tolist()) == (True, torch.float32, [1, 2])
    assert torch.cuda.LongTensor(3).shape == (3,)
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.half(), torch.cuda.FloatTensor)
    assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)
    assert torch.ones(2).type(torch.cuda.HalfTensor).type() == "torch.cuda.HalfTensor"


@pytest.mark.filterwarnings("ignore:.*set_default_tensor_type")
def test_one_can_be_the_default(gpu):
    torch.set_default_tensor_type(torch.cuda.DoubleTensor)
    try:
        assert (torch.zeros(2).is_cuda, torch.zeros(2).dtype) == (True, torch.float64)
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert (torch.zeros(2).is_cuda, torch.zeros(2).dtype) == (False, torch.float32)


@pytest.mark.parametrize("kind", ["torch.FloatTensor", torch.float32, 3, "torch.cuda.Stream", int])
def test_other_types_are_none_of_theirs(kind):
    assert dtype_of(kind, ON_DEVICE) is None


def test_a_subclass_can_be_called(gpu):
    class Named(torch.Tensor):
        def __init__(self, *args):
            self.label = "n"

    x = torch.ones(3, device="cuda")
    assert Named(2, 3).shape == (2, 3)
    assert (Named(x).is_cuda, Named(x).label) == (True, "n")
    assert torch.cuda.memory_allocated() == 512


def test_dynamo_may_know_the_constructor_by_other_parameters(gpu):
    kinds = [one.kind.name for one in inspect.signature(torch.Tensor.__new__).parameters.values()]
    assert kinds == ["VAR_POSITIONAL", "VAR_KEYWORD"]


def test_sparse_ones_are_made_and_recognised(gpu):
    places, values = torch.tensor([[0, 1], [2, 0]], device="cuda"), torch.ones(2, device="cuda")
    x = torch.cuda.sparse.FloatTensor(places, values, torch.Size([2, 3]))
    assert (x.shape, x.is_sparse, x.is_cuda) == ((2, 3), True, True)
    assert isinstance(x, torch.cuda.sparse.FloatTensor)
    assert not isinstance(values, torch.cuda.sparse.FloatTensor)
    assert torch.cuda.sparse.DoubleTensor(2, 3).dtype is torch.float64
