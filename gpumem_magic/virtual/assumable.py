"""Libraries with kernels of their own that are often there on a card's machine and not here. They
are listed apart from what stands in for them, because the magics read this where there is no torch.
"""

from __future__ import annotations

from types import MappingProxyType

ASSUMABLE = MappingProxyType(
    {
        "triton": ("triton", "3.5.0"),
        "flash_attn": ("flash-attn", "2.8.3"),
        "xformers": ("xformers", "0.0.33"),
        "causal_conv1d": ("causal-conv1d", "1.5.3"),
    }
)
"""Those that a prediction can take as installed: their distributions, and the versions that stand
in for them."""

OTHERS = ("apex", "mamba_ssm", "sageattention")
"""Those that are told only."""


def assumable(text: str) -> tuple[str, ...]:
    """The libraries between commas. Raises ValueError, which lists what can be assumed."""
    names = [name.strip().replace("-", "_") for name in text.split(",")]
    unknown = [name for name in names if name not in ASSUMABLE]
    if unknown:
        raise ValueError(f"{unknown[0]!r} cannot be assumed; {', '.join(ASSUMABLE)} can")
    return tuple(names)
