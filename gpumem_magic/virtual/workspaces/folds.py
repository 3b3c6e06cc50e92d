"""Sliding windows (`F.unfold`, `F.fold`) and adaptive pooling: the order in which CUDA's kernels
allocate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.virtual.storages import Blocks, Storages


class Folds:
    """Places what they return."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages

    def placings(self) -> dict[str, Callable[[tuple[Any, ...], Any], None]]:
        """By operator."""
        return {
            "im2col": self._fold,
            "col2im": self._fold,
            "adaptive_max_pool2d": self._pool,
            "adaptive_max_pool2d_backward": self._pool_backward,
        }

    def _fold(self, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """im2col_cuda and col2im_cuda of native/cuda/Im2Col.cu and Col2Im.cu: the result begins as
        large as the input, and keeps that memory if it needs less."""
        inputs = args[0]
        with Blocks(self._storages) as copies:
            first = self._storages.malloc(inputs.nbytes)
            copies.take(0 if inputs.is_contiguous() else inputs.nbytes)
            if out.nbytes <= inputs.nbytes:
                self._storages.place(out, first)
            else:
                self._storages.place(out)
                self._storages.release(first)

    def _pool(self, args: tuple[Any, ...], out: tuple[torch.Tensor, ...]) -> None:
        """adaptive_max_pool2d_out_cuda of native/cuda/AdaptiveMaxPooling2d.cu, which writes dense
        results first."""
        for result in out:
            self._storages.place(result)
        with Blocks(self._storages) as copies:
            copies.take(
                *(tensor.nbytes for tensor in (*out, args[0]) if not tensor.is_contiguous())
            )

    def _pool_backward(self, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """adaptive_max_pool2d_backward_out_cuda, in the same file."""
        self._storages.place(out)
        gradient, _, indices = args
        with Blocks(self._storages) as copies:
            dense = (tensor for tensor in (gradient, indices, out) if not tensor.is_contiguous())
            copies.take(*(tensor.nbytes for tensor in dense))
