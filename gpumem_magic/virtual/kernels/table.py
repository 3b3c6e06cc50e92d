"""Where CUDA's operators are others than the CPU's: registered above autograd, for device tensors
only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gpumem_magic.virtual import devices
from gpumem_magic.virtual.catalog import GPUModel
from gpumem_magic.virtual.kernels import flex_attention, nested_attention
from gpumem_magic.virtual.kernels.attention import (
    FLASH,
    FusedDevice,
    How,
    additive_mask,
    attend_in_graph,
    attend_plainly,
    choose_attention,
    mask_for_kernel,
    pad_heads,
)
from gpumem_magic.virtual.kernels.encoder_layer import EncoderLayer
from gpumem_magic.virtual.kernels.geometry import named
from gpumem_magic.virtual.kernels.recurrent import Recurrent
from gpumem_magic.virtual.kernels.recurrent_steps import CELLS
from gpumem_magic.virtual.kernels.rms_norm import RMSNorm, is_fused
from gpumem_magic.virtual.kernels.sparse import found_in
from gpumem_magic.virtual.patches import OperatorPatches, Patches
from gpumem_magic.virtual.storages import Storages
from gpumem_magic.virtual.torch_cuda.threads import Here
from gpumem_magic.virtual.traits import composite_kernel, host_kernel
from gpumem_magic.virtual.workspaces.fused_cells import FUSED
from gpumem_magic.virtual.workspaces.layouts import Layout
from gpumem_magic.virtual.workspaces.norms import is_copied_for_cudnn
from gpumem_magic.virtual.workspaces.scratch import ScratchMemory

_CUMPROD_BACKWARD = composite_kernel(torch.ops.aten.cumprod_backward.default)
_KEY = "AutogradCPU"  # above every composite operator, and below it every caller is the same


class Kernels:
    """Replacements of whole operators while the virtual GPU is on; host tensors keep what they
    had."""

    def __init__(
        self, storages: Storages, here: Here, card: GPUModel, scratch: ScratchMemory
    ) -> None:
        self._storages = storages
        self._here = here
        self._card = card
        self._recurrent = Recurrent(storages, here, card, scratch)
        self._encoder_layer = EncoderLayer(storages, card.capability)
        self._operators = OperatorPatches()

    def patch(self, patches: Patches) -> None:
        """Replace what modules ask for before they call an operator."""
        self._recurrent.install(patches)
        self._encoder_layer.install(patches)
        flex_attention.install(patches, self._storages)
        if self._here.tracker.is_dry:
            nested_attention.install(patches, self._card.capability)

    def install(self) -> None:
        """Register them with torch."""
        self._impl("dropout", self._dropout)
        self._impl("scaled_dot_product_attention", self._attention)
        self._impl("group_norm", _group_norm)
        self._impl("batch_norm", _batch_norm)
        self._impl("_embedding_bag_backward", self._embedding_bag_backward)
        self._impl("cumprod_backward", self._cumprod_backward)
        if is_fused():
            self._impl("rms_norm", RMSNorm(self._storages, self._here))
        for operators in (CELLS, self._recurrent.operators(), self._encoder_layer.operators()):
            for name, kernel in operators.items():
                self._impl(name, kernel)
        grid = torch.ops.aten.affine_grid_generator.default
        self._here.tracker.replacements[grid] = composite_kernel(grid)  # its product is seen
        self._here.tracker.replacements |= found_in(self._storages)
        traced = torch.ops.aten._convolution.default  # how traces name it
        self._here.tracker.replacements[traced] = lambda *args: torch.convolution(*args[:9])
        # what torch has for CUDA alone, also for tensors without values
        for name, kernel in FUSED.items():
            for key in ("CPU", "Meta"):
                if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
                    self._operators.set(name, key, kernel)

    def remove(self) -> None:
        """Take them out again."""
        self._operators.restore()
        self._here.tracker.replacements.clear()

    def _impl(self, name: str, kernel: Callable[..., Any]) -> None:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        on_host = host_kernel(operator)

        def choose(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor in self._storages and not self._here.tracker.is_suspended:
                return kernel(tensor, *args, **kwargs)
            return on_host(tensor, *args, **kwargs)

        self._operators.set(name, _KEY, choose)
        self._here.tracker.replacements[operator] = choose

    def _dropout(self, tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        """CUDA keeps a mask of one byte an element (is_fused_kernel_acceptable in
        native/Dropout.cpp)."""
        if train and p == 1 and tensor.numel():
            return tensor * tensor.new_zeros(())
        if not train or p == 0 or not tensor.numel():
            return tensor
        if not 0 < p < 1:  # torch's own words for a wrong probability
            plain: torch.Tensor = composite_kernel(torch.ops.aten.dropout.default)(tensor, p, train)
            return plain
        dropped: torch.Tensor = torch.ops.aten.native_dropout(tensor, p, True)[0]
        return dropped

    def _embedding_bag_backward(
        self, gradient: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *others: Any
    ) -> torch.Tensor:
        """The one of two operators that the arguments ask for, as in native/EmbeddingBag.cpp: only
        their own schemas tell whether the result is sparse."""
        aten = torch.ops.aten
        bags, bag_size, most, count, by_frequency, mode, is_sparse, *weights = others
        if indices.numel() > bags.numel():  # the host's kernel needs no bag of each index
            with self._here.tracker.suspended():
                places = torch.arange(indices.numel(), dtype=bags.dtype)
                bags.resize_(indices.shape).copy_(torch.bucketize(places, offsets, right=True) - 1)
        how = count, by_frequency, mode, *weights
        made: torch.Tensor
        if is_sparse:
            made = aten._embedding_bag_sparse_backward(
                gradient, indices, offsets, bags, bag_size, *how
            )
        else:
            made = aten._embedding_bag_dense_backward(gradient, indices, bags, bag_size, most, *how)
        return made

    def _cumprod_backward(
        self, gradient: torch.Tensor, tensor: torch.Tensor, dim: int, output: torch.Tensor
    ) -> torch.Tensor:
        """cumprod_backward in native/ReduceOps.cpp, which goes element by element where anything
        watches; elsewhere it reads whether there are zeros."""
        if tensor.numel() <= 1 or tensor.shape[dim] == 1:
            return gradient
        weighted = output.conj() * gradient
        is_zero = tensor == 0
        if torch.ops.aten._local_scalar_dense(is_zero.any()):
            result = torch.empty_like(tensor)
            with self._here.tracker.suspended(), _disable_current_modes():
                result.copy_(_CUMPROD_BACKWARD(gradient, tensor, dim, output))
            return result
        flipped = weighted.flip(dim)
        sums = flipped.cumsum(dim)
        flipped_back = sums.flip(dim)
        del flipped, sums
        return flipped_back.div(tensor.conj())

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        *switches: Any,
        **scaling: Any,
    ) -> torch.Tensor:
        if key not in self._storages or value not in self._storages:
            raise RuntimeError(
                "Expected query, key, and value to have the same device type, but got "
                f"query.device: {query.device} key.device: {key.device} and value.device: "
                f"{value.device} instead."
            )
        if not query.dtype is key.dtype is value.dtype:
            raise RuntimeError(
                "Expected query, key, and value to have the same dtype, but got query.dtype: "
                f"{named(query.dtype)} key.dtype: {named(key.dtype)} and value.dtype: "
                f"{named(value.dtype)} instead."
            )
        tensors, how = (query, key, value), How(*switches, **scaling)
        choice = choose_attention(tensors, attn_mask, how, self._card.capability)
        attn_mask = additive_mask(attn_mask, query)
        if choice is None:
            return attend_plainly(tensors, attn_mask, how)
        attn_mask = mask_for_kernel(attn_mask, choice, query, key)
        if self._storages.traced:
            return attend_in_graph(choice, tensors, attn_mask, how)
        device = FusedDevice(self._storages, self._here.tracker, choice, self._card)
        if choice is FLASH and (head := query.shape[-1]) % 8:
            return device.attend(*pad_heads(tensors, how), attn_mask)[..., :head]
        return device.attend(tensors, how, attn_mask)


def _batch_norm(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    *how: Any,
) -> torch.Tensor:
    """cuDNN's kernel wants its input dense."""
    others, (training, _, epsilon, _) = (weight, bias, mean, variance), how
    if is_copied_for_cudnn(tensor, others, training, epsilon):
        tensor = tensor.contiguous(memory_format=Layout.plain(tensor).suggested())
    normalized: torch.Tensor = composite_kernel(torch.ops.aten.batch_norm.default)(
        tensor, *others, *how
    )
    return normalized


def _group_norm(
    tensor: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> torch.Tensor:
    """Up to PyTorch 2.13 CUDA's kernel wants its input dense, the host's also with channels last
    (group_norm in native/group_norm.cpp)."""
    if devices.RELEASE < (2, 14):
        tensor = tensor.contiguous()
    normalized: torch.Tensor = composite_kernel(torch.ops.aten.group_norm.default)(
        tensor, num_groups, weight, bias, eps, cudnn_enabled
    )
    return normalized
