"""Other libraries on the card, so that a dry run can follow what they do to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.virtual.libraries.assumed import install_assumed
from gpumem_magic.virtual.libraries.like_layers import LikeLayers, Values
from gpumem_magic.virtual.libraries.native import Bitsandbytes, launch_nothing
from gpumem_magic.virtual.libraries.nvml import answer_for_card
from gpumem_magic.virtual.libraries.remembered import forget_answers, name_a_runtime
from gpumem_magic.virtual.source import VirtualSource
from gpumem_magic.virtual.torch_cuda.one_process import keep_to_one_process


def install_libraries(
    arrivals: Arrivals,
    source: VirtualSource,
    values: Values,
    tell: Callable[[str], None],
    assume: Sequence[str] = (),
) -> None:
    """Do so for those that are loaded and those to come, in a process that ends with the dry run.

    source: records what is done on the card. values: knows which tensors have none. tell: called
    with a sentence of what lies outside of torch's allocator. assume: libraries that are
    taken as installed, see `assumable.py`.
    """
    forget_answers()
    name_a_runtime(arrivals)
    arrivals.expect("torch.distributed.rendezvous", keep_to_one_process)
    install_assumed(assume, values.written, tell)
    arrivals.expect("bitsandbytes", Bitsandbytes(tell, values.written).stand_in)
    launch_nothing(arrivals, values.written)
    answer_for_card(arrivals, source)
    LikeLayers(source, values).expect(arrivals)
