"""Waiting takes no time: where everything in the process waits, its clock is set forward.

Threads that ran before the fork are not in the process. What only they could end is an error.
"""

from __future__ import annotations

import datetime
import signal
import time
from typing import Any

from gpumem_magic.isolation.arrivals import Arrivals
from gpumem_magic.isolation.builtin_functions import set_in_class
from gpumem_magic.isolation.telling import Effects
from gpumem_magic.isolation.waits.clock import Clock
from gpumem_magic.isolation.waits.event_loop import keep_loop
from gpumem_magic.isolation.waits.files import install_files, install_sockets
from gpumem_magic.isolation.waits.locks import install_locks, install_pools


def install_waiting_effects(effects: Effects, arrivals: Arrivals) -> None:
    """Replace what waits, and the clocks that tell how long."""
    clock = Clock()
    effects.put(time, "sleep", clock.sleep)
    for name in ("time", "monotonic", "perf_counter"):
        effects.replace(time, name, clock.in_seconds)
        effects.replace(time, f"{name}_ns", clock.in_nanoseconds)
    for name in ("now", "utcnow"):  # the others of datetime ask `time.time`
        set_in_class(datetime.datetime, name, _set_forward(name, clock))
    install_locks(effects, clock, arrivals)
    install_files(effects, clock)
    install_sockets(effects, clock)
    effects.replace(signal, "sigtimedwait", clock.of_signals)
    install_pools(effects, arrivals)
    keep_loop()


def _set_forward(name: str, clock: Clock) -> Any:
    original: Any = vars(datetime.datetime)[name]

    def now(cls: Any, *zone: Any, **named: Any) -> Any:
        return original.__get__(None, cls)(*zone, **named) + datetime.timedelta(0, clock.ahead)

    return classmethod(now)
