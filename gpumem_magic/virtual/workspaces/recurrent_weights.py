"""How cuDNN lays out the weights of recurrent layers: all of them in one buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpumem_magic.virtual.storages import storage_id

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
"""Gates of a unit, by torch's name of the layer, in the order of cudnnRNNMode_t."""

Place = tuple[int, tuple[int, ...]]
"""Where a weight begins in the buffer, in elements, and its shape."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The buffer of a layer that is `layers` deep; projected: size of the output, 0 where that is
    the hidden state itself.

    There are matrices first, then the biases, which take their place also where the layer has none:
    torch always asks for CUDNN_RNN_DOUBLE_BIAS (cudnn/Descriptors.h). cuDNN does not pad between.
    """

    gates: int
    inputs: int
    hidden: int
    projected: int
    layers: int
    directions: int

    def places(self, each: int) -> list[Place]:
        """In torch's order of parameters, of which each layer and direction has `each`: 2 or 3
        without biases, 4 or 5 with them."""
        rows, state = self.gates * self.hidden, self.projected or self.hidden
        matrices: list[list[tuple[int, ...]]] = []
        biases: list[list[tuple[int, ...]]] = []
        for layer in range(self.layers):
            for _ in range(self.directions):
                columns = state * self.directions if layer else self.inputs
                shapes: list[tuple[int, ...]] = [(rows, columns), (rows, state)]
                if self.projected:
                    shapes.append((self.projected, self.hidden))
                matrices.append(shapes)
                biases.append([(rows,), (rows,)] if each > 3 else [])
        offset = 0
        found: list[list[Place]] = [[] for _ in matrices]
        for shapes_of_one_kind in (matrices, biases):
            for places, of_one in zip(found, shapes_of_one_kind, strict=True):
                for shape in of_one:
                    places.append((offset, shape))
                    offset += math.prod(shape)
        if self.projected and each > 3:  # torch names the projection last
            found = [[p[0], p[1], p[3], p[4], p[2]] for p in found]
        return [place for places in found for place in places]

    @property
    def numel(self) -> int:
        """Elements of the buffer (cudnnGetRNNWeightSpaceSize)."""
        *_, (offset, shape) = sorted(self.places(5 if self.projected else 4))
        return offset + math.prod(shape)

    def views(self, buffer: torch.Tensor, each: int) -> list[torch.Tensor]:
        """The parameters' places in `buffer`; autograd does not take them for views."""
        return [
            buffer.data[offset : offset + math.prod(shape)].view(shape).data
            for offset, shape in self.places(each)
        ]

    def is_kept_by(self, parameters: Sequence[torch.Tensor], each: int) -> bool:
        """Whether all parameters lie where cuDNN reads them (try_get_weight_buf in
        cudnn/RNN.cpp)."""
        storage = storage_id(parameters[0])
        return all(
            storage_id(parameter) == storage and parameter.storage_offset() == offset
            for parameter, (offset, _) in zip(parameters, self.places(each), strict=True)
        )
