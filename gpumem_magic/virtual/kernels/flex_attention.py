"""flex_attention as it runs where it is not compiled. torch traces the gradient of the user's
scores with tensors that have no card; here the user's own function is asked instead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from gpumem_magic.virtual.patches import Patches
from gpumem_magic.virtual.storages import Storages

_MODULE = "torch._higher_order_ops.flex_attention"


def install(patches: Patches, storages: Storages) -> None:
    """Replace what traces; nothing where torch has none."""
    module: Any = sys.modules.get(_MODULE)
    trace = getattr(module, "create_fw_bw_graph", None)
    if trace is None:
        return

    def functions(scores: Callable[..., Any], examples: tuple[Any, ...], held: Any) -> Any:
        if examples[0] not in storages:
            return trace(scores, examples, held)
        return scores, _gradient_of(scores)

    patches.set(module, "create_fw_bw_graph", functions)


def _gradient_of(scores: Callable[..., Any]) -> Callable[..., list[Any]]:
    """What `scores(score, batch, head, query, key, *held)` hands back to the score."""

    def gradients(score: Any, *others: Any) -> list[Any]:
        places, gradient, held = others[:4], others[4], others[5:]
        pull: Any = torch.func.vjp(lambda score: scores(score, *places, *held), score)[1]
        return [pull(gradient)[0], *(None for _ in (*places, *held))]

    return gradients
