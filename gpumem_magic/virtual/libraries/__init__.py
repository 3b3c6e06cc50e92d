"""Other libraries on the card, so that a dry run can follow what they do to it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpumem_magic.isolation.effects.arrivals import Arrivals
from gpumem_magic.virtual.libraries.native import Bitsandbytes, launch_nothing
from gpumem_magic.virtual.libraries.remembered import forget_answers


def install_libraries(
    arrivals: Arrivals, tell: Callable[[str], None], written: Callable[[torch.Tensor], None]
) -> None:
    """Do so for those that are loaded and those to come, in a process that ends with the dry run.

    tell: called with a sentence of what lies outside of torch's allocator. written: called with
    tensors that a kernel may have written to.
    """
    forget_answers()
    arrivals.expect("bitsandbytes", Bitsandbytes(tell, written).stand_in)
    launch_nothing(arrivals, written)
