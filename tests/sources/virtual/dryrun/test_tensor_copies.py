from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn


def test_views_share_one_storage_and_keep_their_geometry(lend, tensor):
    space = {
        "whole": tensor,
        "column": tensor[:, 1],
        "transposed": tensor.t(),
        "last": torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "apart": tensor.clone(),
    }
    geometry = {k: (t.shape, t.stride(), t.storage_offset(), t.dtype) for k, t in space.items()}
    with lend(space):
        copies = dict(space)
        space["column"].fill_(9)
        assert space["whole"][0, 1] == space["transposed"][1, 0] == 9
        assert space["apart"][0, 1] == 1
        found = {k: (t.shape, t.stride(), t.storage_offset(), t.dtype) for k, t in copies.items()}
        assert found == geometry
    assert tensor.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert tensor._version == 0


def test_tied_parameters_are_one_parameter(lend):
    model = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["embedding"].weight
    with lend(space := {"model": model}):
        copied = space["model"]
        assert copied["head"].weight is copied["embedding"].weight is not model["head"].weight
        assert type(copied["head"].weight) is nn.Parameter


def test_parameters_keep_gradients_attributes_and_hooks(lend):
    weight = nn.Parameter(torch.ones(2))
    weight.note = note = [1]
    seen = []
    weight.register_hook(lambda gradient: seen.append("hook"))
    weight.register_post_accumulate_grad_hook(lambda w: seen.append(w is weight))
    weight.sum().backward()  # its gradient is one that Python has not touched
    before = list(seen)
    with lend(space := {"weight": weight, "seen": seen}):
        copied = space["weight"]
        assert copied.grad.tolist() == [1, 1]
        assert copied.note == [1]
        assert copied.note is not note
        assert copied.is_leaf
        assert copied.requires_grad
        copied.sum().backward()
        assert copied.grad.tolist() == [2, 2]
        assert space["seen"] == [*before, "hook", True]
    assert weight.grad.tolist() == [1, 1]
    assert seen == before == ["hook", True]


class Marked(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch.ones(2, dtype=torch.complex64).conj().imag,  # has its negative bit set
        lambda: torch.empty(3, device="meta"),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.ones(3).as_subclass(Marked),
        lambda: nn.Buffer(torch.ones(3)),
        nn.parameter.UninitializedParameter,
        lambda: torch.ones(3, requires_grad=True),
        lambda: torch.ones(3).detach(),
        lambda: torch.ones(0),
        lambda: torch.ones(()),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
)
def test_all_kinds_of_tensors_have_copies(lend, make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original = make()
    with lend(space := {"it": original}) as found:
        copied = space["it"]
        assert found.notes == ()
        assert copied is not original
        assert type(copied) is type(original)
        assert copied.dtype == original.dtype
        assert copied.requires_grad == original.requires_grad
        assert repr(copied) == repr(original)
        with torch._C.DisableTorchFunction():
            assert copied.is_conj() == original.is_conj()
            assert copied.is_neg() == original.is_neg()
            has_values = torch._C._has_storage(original) and not original.is_meta
            if has_values and original.numel() > 1:
                assert copied.data_ptr() != original.data_ptr()


def test_inference_tensors_stay_inference_tensors(lend):
    with torch.inference_mode():
        original = torch.ones(2)
    with lend(space := {"it": original}):
        assert space["it"].is_inference()


def test_storages_are_the_storages_of_the_copies(lend, tensor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        space = {"t": tensor, "untyped": tensor.untyped_storage(), "typed": tensor.storage()}
        with lend(space):
            assert space["untyped"]._cdata == space["t"].untyped_storage()._cdata
            assert space["untyped"]._cdata != tensor.untyped_storage()._cdata
            assert space["typed"]._untyped_storage is space["untyped"]
            assert list(space["typed"]) == tensor.flatten().tolist()


class Careful:
    """Copies itself as the documentation of `copy` says."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.copies = 0

    def __deepcopy__(self, memo):
        import copy

        made = Careful(copy.deepcopy(self.tensor, memo))
        made.copies = self.copies + 1
        return made


def test_a_class_with_its_own_deepcopy_is_asked_and_its_tensors_are_the_same_copies(lend, tensor):
    with lend(space := {"careful": Careful(tensor), "tensor": tensor}):
        assert space["careful"].copies == 1
        assert space["careful"].tensor is space["tensor"] is not tensor


class Wrapped(torch.Tensor):
    """A tensor that consists of another."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Wrapped(parts["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def test_tensors_made_of_tensors(lend, tensor):
    with lend(space := {"wrapped": Wrapped(tensor), "tensor": tensor}) as found:
        assert space["wrapped"].inner is space["tensor"] is not tensor
        assert found.notes == ()
