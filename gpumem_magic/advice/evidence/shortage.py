"""When memory is short, and how little is not worth a word: apart, because every rule asks it."""

from __future__ import annotations

import numpy as np

from gpumem_magic.units import MIB
from gpumem_magic.values.findings import Trace

_SHORT = 0.8
"""Share of the device in use from which on memory is short, so that its price is worth asking."""

_WORTH = 0.01
"""Share of the peak below which a saving is not worth a word."""


def is_short(trace: Trace) -> bool:
    """Whether the cell ran out of memory, or came near it; run without limit, whether it would."""
    total = trace.device.total if trace.device else 0
    used = trace.peak.device_used or trace.peak.reserved or trace.peak.allocated or 0
    return trace.oom is not None or trace.fits is False or used >= _SHORT * total > 0


def least_saving(trace: Trace, share: float = _WORTH) -> int:
    """Bytes below which a saving is not worth a word: 1 MiB, or a share of the peak."""
    return max(MIB, int(share * (trace.peak.allocated or 0)))


def least_of_rise(trace: Trace) -> int:
    """The same, of what the cell adds to what was there: the models of other cells, which fill the
    device, do not make its own mistakes smaller."""
    return max(MIB, int(_WORTH * ((trace.peak.allocated or 0) - (trace.before.allocated or 0))))


def last_moment(trace: Trace) -> int:
    """The event before memory ran out: with what was asked for then, it is the highest; else the
    peak's."""
    lives, oom = trace.lives, trace.oom
    if oom is None or not oom.held:
        return lives.peak_event
    last = int(lives.birth.max(initial=-1))
    alike = np.flatnonzero(lives.levels()[last + 1 :] == sum(oom.held.values()))
    return last + int(alike[0]) if len(alike) else lives.peak_event
