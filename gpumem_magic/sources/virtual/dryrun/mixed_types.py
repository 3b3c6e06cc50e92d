"""What kernels refuse because of the types of their operands, which meta kernels do not look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_FACTORS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::linear"), (0, 1)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::addmv"), (1, 2)),
}
"""Matrix products, and the places of their two factors."""

_IN_PLACE = frozenset({"aten::add_", "aten::sub_", "aten::mul_", "aten::div_"})

_NAMES: Mapping[torch.dtype, str] = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
}
"""As errors of torch call them (c10/core/ScalarType.h)."""


def check_types(name: str, args: tuple[Any, ...]) -> None:
    """Raises RuntimeError, with torch's text, where the operator refuses these types."""
    places = _FACTORS.get(name)
    if places is not None:
        one, other = (args[place].dtype for place in places)
        if one is not other:
            raise RuntimeError(
                f"mat1 and mat2 must have the same dtype, but got {_named(one)} and {_named(other)}"
            )
    elif name in _IN_PLACE:
        result = torch.result_type(args[0], args[1])
        if not torch.can_cast(result, args[0].dtype):
            raise RuntimeError(
                f"result type {_named(result)} can't be cast to the desired output type "
                f"{_named(args[0].dtype)}"
            )


def _named(dtype: torch.dtype) -> str:
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))
