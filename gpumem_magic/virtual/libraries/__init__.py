"""Other libraries on the card, so that a dry run can follow what they do to it."""

from __future__ import annotations

from collections.abc import Callable

from gpumem_magic.isolation.effects.arrivals import Arrivals
from gpumem_magic.virtual.libraries.like_layers import LikeLayers, Values
from gpumem_magic.virtual.libraries.native import Bitsandbytes, launch_nothing
from gpumem_magic.virtual.libraries.remembered import forget_answers
from gpumem_magic.virtual.source import VirtualSource


def install_libraries(
    arrivals: Arrivals, source: VirtualSource, values: Values, tell: Callable[[str], None]
) -> None:
    """Do so for those that are loaded and those to come, in a process that ends with the dry run.

    source: records what is done on the card. values: knows which tensors have none. tell: called
    with a sentence of what lies outside of torch's allocator.
    """
    forget_answers()
    arrivals.expect("bitsandbytes", Bitsandbytes(tell, values.written).stand_in)
    launch_nothing(arrivals, values.written)
    LikeLayers(source, values).expect(arrivals)
