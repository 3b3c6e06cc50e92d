"""What packing sequences of unlike lengths takes on a GPU; sizes in bytes."""

from __future__ import annotations

import torch


def packing_copies(
    padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool = False
) -> list[int]:
    """Of the pieces that `_pack_padded_sequence` copies before it joins them: one for each length,
    with all steps beyond the next shorter one (native/PackedSequence.cpp)."""
    steps_first = padded.transpose(0, 1) if batch_first else padded
    sizes, done = [], 0
    shortest_first = reversed(lengths.tolist())
    for sequences, length in zip(range(len(lengths), 0, -1), shortest_first, strict=True):
        if length > done:
            piece = steps_first[done:length, :sequences]
            if not piece.is_contiguous():
                sizes.append(piece.numel() * piece.dtype.itemsize)
            done = length
    return sizes
