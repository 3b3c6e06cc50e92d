"""What operators take on a GPU besides their results: workspaces that stay, buffers that go at
once."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.virtual.storages import Blocks, Storages
from gpumem_magic.virtual.workspaces.convolutions import Convolutions
from gpumem_magic.virtual.workspaces.dense_copies import (
    AFTER,
    Transfers,
    copied,
    fuses_bias,
    packing_copies,
    product_copies,
)
from gpumem_magic.virtual.workspaces.folds import Folds
from gpumem_magic.virtual.workspaces.fused_cells import CellKernels
from gpumem_magic.virtual.workspaces.layouts import Layout
from gpumem_magic.virtual.workspaces.lookups import Lookups
from gpumem_magic.virtual.workspaces.losses import LOSSES, Losses, Sequences
from gpumem_magic.virtual.workspaces.norms import Norms
from gpumem_magic.virtual.workspaces.reductions import Operand, Processors, reduction_buffers
from gpumem_magic.virtual.workspaces.scatters import Exponentials, Scatters
from gpumem_magic.virtual.workspaces.selection import Selections, scan_storage

Scratch = Callable[[tuple[Any, ...], dict[str, Any]], None]
"""Called with an operator's arguments once its results are placed."""

Placing = Callable[[tuple[Any, ...], Any], None]
"""Called with an operator's arguments and results, which it places, with buffers in between."""

_CUBLAS = frozenset("addbmm addmm addmv addr baddbmm bmm dot mm mv vdot _addmm_activation".split())
_REDUCTIONS = frozenset(
    "sum mean prod amax amin max min nansum norm linalg_vector_norm all any "
    "std var std_mean var_mean argmax argmin".split()
)
_SUMS = frozenset({"sum", "prod", "nansum"})
_PLACES = frozenset({"argmax", "argmin"})
"""Their partial results are a value and its place."""

_WITH_PLACES = frozenset({"max", "min"})
"""So they are here, along a dimension."""

_ONE_DIM = frozenset({"all", "any", "max", "min", "prod", "argmax", "argmin"})
"""Their second argument is one dimension, if anything."""

_INDEX = 8  # bytes
_SCANS = frozenset({"cumsum", "cumprod", "logcumsumexp"})
_ORDERS = frozenset("amax amin max min".split())
"""They keep values as they are; other reductions combine them in float32 at least."""

_POOLINGS = frozenset({"max_pool2d_with_indices_backward", "avg_pool2d_backward"})
_WELFORD = frozenset({"std", "var", "std_mean", "var_mean"})
CUBLAS_WORKSPACE = 4096 * 1024 * 2 + 16 * 1024 * 8
"""Bytes: ":4096:2:16:8", the default of at::cuda::getChosenWorkspaceSize below capability 9.0."""

CUBLAS_WORKSPACE_HOPPER = 4096 * 1024 * 8
"""Bytes: the default of getChosenWorkspaceSize from capability 9.0 on."""

CUBLASLT_WORKSPACE = 1024 * 1024
"""Bytes: the default of CUBLASLT_WORKSPACE_SIZE (in KiB there)."""


def cublas_workspace_size(capability: tuple[int, int], config: str | None = None) -> int:
    """Bytes of one cuBLAS workspace. config: CUBLAS_WORKSPACE_CONFIG (":4096:2:16:8" in KiB)."""
    if config == ":0:0":
        return 0
    pairs = re.findall(r":(\d+):(\d+)", config or "")
    if pairs:
        return sum(int(size) * 1024 * int(count) for size, count in pairs)
    return CUBLAS_WORKSPACE_HOPPER if capability[0] >= 9 else CUBLAS_WORKSPACE


_CUBLAS_WORKSPACE = "cuBLAS workspace"
_CUBLASLT_WORKSPACE = "cuBLASLt workspace"
_DROPOUT_STATES = "cuDNN dropout states"


class ScratchMemory:
    """The scratch memory of one device.

    cuBLAS and cuBLASLt take one workspace per handle and stream and keep it (torch up to 2.14); the
    thread that runs backward on a GPU has a handle of its own. `held` maps these to addresses.
    """

    def __init__(
        self, storages: Storages, processors: Processors, capability: tuple[int, int]
    ) -> None:
        self._storages = storages
        self._processors = processors
        self._capability = capability
        self._cublas_size = cublas_workspace_size(
            capability, os.environ.get("CUBLAS_WORKSPACE_CONFIG")
        )
        kib = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
        self._cublaslt_size = int(kib) * 1024 if kib.isdigit() else CUBLASLT_WORKSPACE
        self.held: dict[tuple[str, bool, int], int] = {}
        convolutions = Convolutions(
            storages,
            lambda tensor, dims: self._reduce(tensor, dims, "sum"),
            lambda: self._hold(_CUBLAS_WORKSPACE, self._cublas_size),
            capability,
        )
        self._lookups = Lookups(storages, capability)
        self._losses = Losses(storages)
        norms, transfers = Norms(storages), Transfers(storages)
        sequences, selections = Sequences(storages), Selections(storages, processors, capability)
        self._placings: dict[str, Placing] = {
            "convolution": convolutions.forward,
            "convolution_backward": convolutions.backward,
            "embedding_dense_backward": self._lookups.embedding_backward,
            "index": self._lookups.index,
            "_embedding_bag": self._lookups.bag,
            "_embedding_bag_backward": self._lookups.bag_backward,
            "_embedding_bag_dense_backward": self._lookups.bag_backward,
            "native_layer_norm": norms.layer,
            "native_layer_norm_backward": norms.layer_backward,
            "native_batch_norm": norms.forward,
            "native_batch_norm_backward": norms.backward,
            "log_sigmoid_forward": self._losses.log_sigmoid,
            "_ctc_loss": sequences.forward,
            "_ctc_loss_backward": sequences.backward,
            "where": transfers.where,
            "logsumexp": Exponentials(storages, self._reduce).logsumexp,
            **Folds(storages).placings(),
            **CellKernels(storages, lambda tensor: self._reduce(tensor, [0], "sum")).placings(),
        }
        self._scratches: dict[str, Scratch] = {
            "_softmax_backward_data": self._softmax_backward,
            "_safe_softmax": lambda args, kwargs: self._take(args[0].numel()),
            "_pack_padded_sequence": lambda args, kwargs: self._take(
                *packing_copies(*args, **kwargs)
            ),
            "count_nonzero": self._count,
            "_to_copy": transfers.to_copy,
            "copy_": transfers.copy,
            **selections.scratches(),
            **norms.scratches(),
            **Scatters(storages).scratches(),
        }

    def placing(self, operator: str) -> Placing | None:
        """What places this operator's results where their order and that of its buffers matter;
        None: they are placed in turn, and buffers come after them."""
        return self._placings.get(operator)

    def workspaces(self) -> tuple[tuple[str, int], ...]:
        """The libraries that keep workspaces, each with the size of one."""
        return (_CUBLAS_WORKSPACE, self._cublas_size), (_CUBLASLT_WORKSPACE, self._cublaslt_size)

    def of(self, operator: str) -> Scratch | None:
        """What takes the scratch memory of this operator (without "aten::"); None: none."""
        if operator in _CUBLAS:
            return functools.partial(self._product, operator, product_copies(operator))
        if operator in _REDUCTIONS:
            return functools.partial(self._reduction, operator)
        if operator in LOSSES:
            return functools.partial(self._losses.before_the_mean, LOSSES[operator])
        if operator in ("index_put", "index_put_", "_index_put_impl_"):
            return self._lookups.index_put
        if operator in _POOLINGS:
            return self._pooling_backward
        if operator in _SCANS:
            return self._scan
        if operator in AFTER:
            return lambda args, kwargs: self._take(*copied(AFTER[operator], args))
        return self._scratches.get(operator)

    def clear(self) -> None:
        """Give all workspaces back, as torch._C._cuda_clearCublasWorkspaces does."""
        for key in [key for key in self.held if key[0] != _DROPOUT_STATES]:
            self._storages.release(self.held.pop(key))

    def hold_dropout_states(self, size: int) -> None:
        """The device's only ones (get_dropout_state in cudnn/RNN.cpp); a seed is drawn first."""
        if (_DROPOUT_STATES, False, 0) not in self.held:
            self._take(8)
            self.held[_DROPOUT_STATES, False, 0] = self._storages.malloc(size)

    def _hold(self, library: str, size: int) -> None:
        key = library, torch._C._current_graph_task_id() != -1, self._storages.stream
        if key not in self.held:
            self.held[key] = self._storages.malloc(size)

    def _take(self, *sizes: int) -> None:
        """Blocks that live only while the operator runs."""
        with Blocks(self._storages) as buffers:
            buffers.take(*sizes)

    def _product(
        self,
        operator: str,
        copies: Callable[[tuple[Any, ...]], list[int]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        with Blocks(self._storages) as operands:
            operands.take(*copies(args))
            self._hold(_CUBLAS_WORKSPACE, self._cublas_size)
            if fuses_bias(operator, args, kwargs):
                self._hold(_CUBLASLT_WORKSPACE, self._cublaslt_size)

    def _reduction(self, operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensor = args[0]
        with Blocks(self._storages) as copies:
            if operator in _SUMS and (wider := _sum_type(tensor, kwargs.get("dtype"))):
                copies.take(tensor.numel() * wider.itemsize)
                tensor = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=wider, device="meta"
                )
            self._reduce(tensor, _dims(operator, args, kwargs), operator)

    def _reduce(self, tensor: torch.Tensor, dims: Any, operator: str) -> None:
        welford = operator in _WELFORD
        accumulator = tensor.dtype.itemsize
        if operator not in _ORDERS and tensor.dtype is not torch.bool:
            accumulator = max(4, accumulator)
        if operator in _PLACES or (operator in _WITH_PLACES and dims):
            accumulator = 2 * _INDEX
        self._take(
            *reduction_buffers(
                Operand(tensor.shape, tensor.stride(), int(tensor.storage_offset())),
                dims or range(tensor.dim()),
                4 * accumulator if welford else accumulator,
                self._processors,
                vector=2 if welford else 4,
            )
        )

    def _pooling_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The gradient in the input's layout (native/cuda/DilatedMaxPool2d.cu,
        AveragePool2d.cu)."""
        gradient = Layout.of(args[0])
        if not gradient.is_in(Layout.of(args[1]).suggested()):
            self._take(gradient.nbytes)

    def _softmax_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """gradient x output (softmax_backward_cuda_out in native/cuda/SoftMax.cu)."""
        self._take(args[0].numel() * args[0].dtype.itemsize, *copied((0, 1), args))

    def _count(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Whether each is not zero, and the sum of that (count_nonzero_cuda in
        native/TensorAdvancedIndexing.cpp)."""
        with Blocks(self._storages) as flags:
            flags.take(0 if args[0].dtype is torch.bool else args[0].numel())
            self._take(args[0].numel() * _INDEX)

    def _scan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """scan_dim of native/cuda/ScanUtils.cuh: CUB where there is one dimension to speak of."""
        tensor, dim = args[:2]
        dtype = kwargs.get("dtype") or tensor.dtype
        if not dtype.is_floating_point and not dtype.is_complex:
            dtype = torch.int64
        converted = tensor.numel() * dtype.itemsize
        copies = [converted] if dtype is not tensor.dtype else copied((0,), args)
        if tensor.dim() and 0 < tensor.numel() == tensor.shape[dim]:
            copies.append(scan_storage(tensor.numel(), dtype.itemsize))
        self._take(*copies)


def _sum_type(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype | None:
    """What the terms are converted to before they are summed; None: they are summed as they are, as
    halves are in float32 (make_reduction in native/ReduceOpsUtils.h)."""
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    wider = dtype or (torch.int64 if whole else tensor.dtype)
    if wider is tensor.dtype or (wider is torch.float32 and tensor.dtype.itemsize == 2):
        return None
    return wider


def _dims(operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int] | None:
    """The dimensions that a reduction was asked for; None: all."""
    dims: Any = kwargs.get("dim")
    if dims is None and operator in _ONE_DIM:
        dims = args[1] if len(args) > 1 else None
    elif dims is None:
        dims = next((a for a in args[1:] if isinstance(a, (list, tuple))), None)
    return [dims] if isinstance(dims, int) else dims
