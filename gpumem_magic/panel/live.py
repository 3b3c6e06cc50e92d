"""What is known of the devices now and since the running cell began; filled by a thread, shown by
the panel."""

from __future__ import annotations

import contextvars
import linecache
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from gpumem_magic.glance import Glance, Glancer
from gpumem_magic.sources import Source
from gpumem_magic.sources.stacks.frames import outwards

POINTS = 160
"""Readings of one cell that are kept; with more, every other one is dropped."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the cell that is running."""

    number: int
    source: str


@dataclass(slots=True)
class Live:
    """The devices as they were seen last.

    highest: the highest allocated level of each device since the cell began, in bytes; it includes
    what was between two looks wherever the allocator's own counter tells it. trail: allocated and
    reserved bytes of the first device at even intervals since then.
    """

    glances: tuple[Glance, ...] = ()
    running: bool = False
    seconds: float = 0.0
    place: Place | None = None
    highest: list[int] = field(default_factory=list)
    trail: list[tuple[int, int]] = field(default_factory=list)


class Follower:
    """Looks at a source's devices. `begin` and `end` are called in the thread that runs cells."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self.live = Live()
        self._namespace = namespace
        self._source: Source | None = None
        self._glancer: Glancer | None = None
        self._counters: list[int | None] = []
        self._thread, self._began = 0, 0.0
        self._every = self._looks = 1

    def begin(self, source: Source | None, thread: int) -> None:
        """A cell runs from here on, in this thread."""
        self.use(source)
        self._thread, self._began = thread, time.monotonic()
        self._every, self._looks = 1, 0
        self._counters = list(self._glancer.highest()) if self._glancer else []
        self.live = Live(glances=self.live.glances, running=True)

    def end(self) -> None:
        """The cell is over."""
        self.live.running = False
        self.live.seconds = time.monotonic() - self._began
        self.live.place = None

    def use(self, source: Source | None) -> None:
        """Look at this source from now on."""
        if source is not self._source:
            self.close()
            self._source = source
            self._glancer = Glancer(source) if source is not None else None
            self.live = Live(running=self.live.running)

    def look(self) -> None:
        """See how things are now."""
        live = self.live
        live.glances = self._glancer.look() if self._glancer else ()
        if live.running:
            live.seconds = time.monotonic() - self._began
            live.place = self._running_line()
        self._note_highest(live)
        self._note_trail(live)

    def close(self) -> None:
        """Let go of the source and its driver."""
        glancer, self._glancer, self._source = self._glancer, None, None
        if glancer is not None:
            glancer.close()

    def _note_highest(self, live: Live) -> None:
        seen = live.highest or [0] * len(live.glances)
        highest = []
        for i, glance in enumerate(live.glances):
            levels = [seen[i] if i < len(seen) else 0, glance.level.allocated or 0]
            first = self._counters[i] if i < len(self._counters) else None
            if glance.highest is not None and glance.highest != first:
                levels.append(glance.highest)  # it moved, so that was in this cell
            highest.append(max(levels))
        live.highest = highest

    def _note_trail(self, live: Live) -> None:
        if live.glances and self._looks % self._every == 0:
            level = live.glances[0].level
            live.trail.append((level.allocated or 0, level.reserved or 0))
        self._looks += 1
        if len(live.trail) > POINTS:
            del live.trail[1::2]
            self._every *= 2

    def _running_line(self) -> Place | None:
        found = [*filter(self._is_cell, outwards(sys._current_frames().get(self._thread)))]
        if not found:
            return None
        file, line = found[-1].f_code.co_filename, found[-1].f_lineno  # the cell itself
        return Place(line, linecache.getline(file, line).strip())

    def _is_cell(self, frame: FrameType) -> bool:
        return frame.f_globals is self._namespace and frame.f_code.co_name.startswith(_CELL)


_CELL = ("<module>", "<cell line", "async-def-wrapper")
"""What IPython 7 to 9 call the code of a cell."""

INTERVAL = 0.3
"""Seconds between two steps, and so between two messages, at least: never four in a second."""

SHARE = 0.005
"""Of the time, at most this part is spent on steps; where one takes long, the next comes later."""

LONGEST = 2.0
"""Seconds between two steps at most, whatever they cost."""


class Timer:
    """Calls `step` again and again, from `wake` until it returns False. Errors end it silently:
    `step` has to tell of its own. thrifty: whether there is someone whose time a step takes."""

    def __init__(self, step: Callable[[], bool], thrifty: Callable[[], bool]) -> None:
        self._step = step
        self._thrifty = thrifty
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._again = False

    @property
    def active(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None

    def wake(self) -> None:
        """See to it that a step comes."""
        with self._lock:
            self._again = True
            if self._thread is None and not self._stopped.is_set():
                # ipykernel keeps the message that widgets answer to in a context variable
                context = contextvars.copy_context()
                self._thread = threading.Thread(
                    target=context.run, args=(self._run,), name="gpumem-panel", daemon=True
                )
                self._thread.start()

    def stop(self, patience: float = 1.0) -> None:
        """End for good; waits so many seconds for a step that is under way."""
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience)

    def _run(self) -> None:
        wait = INTERVAL
        while not self._stopped.wait(wait):
            self._again = False
            spent = time.thread_time()
            more = self._step()
            cost = time.thread_time() - spent if self._thrifty() else 0.0
            wait = min(max(INTERVAL, cost / SHARE), LONGEST)
            with self._lock:
                if not (more or self._again):
                    self._thread = None
                    return
        self._thread = None
