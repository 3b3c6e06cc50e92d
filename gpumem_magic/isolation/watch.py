"""When a child is given up: nothing new for too long, a dead lock, no more memory on the host, no
room for its files, threads without end."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from shutil import disk_usage
from time import monotonic

from gpumem_magic.isolation.child import Child, DryRunError
from gpumem_magic.sources.host_memory import SPARED, host_memory
from gpumem_magic.units import GIB, MIB, format_bytes

_LONGEST = 5
"""Times as long as it may come to nothing new that a child may run at all."""

_STILL = 4.0
"""Seconds without work after which a child is taken to wait for what never comes."""

_IDLE = 0.05
"""Share of a processor below which a process does no work: looking at the clock takes less."""

_MUCH = 256 * MIB
"""Bytes that a dry run may take without anyone asking."""

_TOLD = re.compile(r"^(RssAnon|RssShmem|Threads):\s*(\d+)", re.MULTILINE)

_MANY = 5000
"""Threads; a system has room for some thousands, and others would get none."""

_EVERY = 0.1  # seconds between two looks at the system


class StandsStillError(DryRunError):
    """The child waits for something that no thread in it will do."""


class Watch:
    """Follows one child; `check` raises where it is to be given up. timeout: seconds without
    anything new; it may run five times as long."""

    def __init__(self, child: Child, timeout: float) -> None:
        now = monotonic()
        self._child = child
        self._timeout = timeout
        self._begun = self._looked = self._new = self._worked = now
        self._seconds: defaultdict[int, float] = defaultdict(float)
        self._news = -1
        self._processor = 0.0
        self._memory = 1 << 62
        self._room = _room_for(child)

    def check(self) -> None:
        """Raises DryRunError, which names the line and what to do."""
        now = monotonic()
        if now - self._looked < _EVERY:
            return
        news, line, _ = self._child.progress.read()
        self._seconds[line] += now - self._looked
        self._looked = now
        if news > self._news:
            self._news, self._new = news, now
        if now - self._new > self._timeout:
            raise DryRunError(
                f"the dry run came to nothing new in {self._timeout:g} s{_at(line)}; a loop that "
                "does not end? --optimizer-steps 3 ends loops over training steps, --timeout gives "
                "it more time"
            )
        self._check_length(now)
        self._check_work(now, line)
        self._check_memory(line)
        self._check_room(line)

    def _check_length(self, now: float) -> None:
        """It may always come to something new, and yet to no end."""
        if now - self._begun > _LONGEST * self._timeout:
            line, seconds = max(self._seconds.items(), key=lambda spent: spent[1])
            raise DryRunError(
                f"the dry run took more than {_LONGEST * self._timeout:g} s, {seconds:.0f} s of it"
                f"{_at(line)}; fewer rounds there (--optimizer-steps 3 ends loops over training "
                "steps, a small max_new_tokens ends text) say the same, --timeout gives it more "
                "time"
            )

    def _check_work(self, now: float, line: int) -> None:
        used = _processor_seconds(self._child.pid)
        if used is None or used - self._processor > _IDLE * (now - self._worked):
            self._processor, self._worked = used or 0.0, now
        elif now - self._worked > _STILL:
            raise StandsStillError(
                f"the dry run stands still{_at(line)}: it waits for the clock, or for something "
                "that another thread or process would have to do; only threads that the cell "
                "starts run in it"
            )

    def _check_memory(self, line: int) -> None:
        memory, threads = _read_status(self._child.pid)
        if threads > _MANY:
            raise DryRunError(f"the dry run started {threads:,} threads{_at(line)}")
        self._memory = min(self._memory, memory)
        taken = memory - self._memory
        if taken < _MUCH:
            return
        total, free = host_memory()
        if free < SPARED * total:
            raise DryRunError(
                f"the dry run took {format_bytes(taken)} of the host's memory{_at(line)}, and only "
                f"{format_bytes(free)} are left; what the cell makes on the host is made for real"
            )

    def _check_room(self, line: int) -> None:
        """Others write there, too; it does not matter who has filled it."""
        (total, free), before = _room_for(self._child), self._room[1]
        if before - free >= _MUCH and free < SPARED * total:
            raise DryRunError(
                f"the dry run wrote{_at(line)}, and only {format_bytes(free)} are left in the "
                "folder for temporary files, where what the cell writes is kept until it ends"
            )


def _room_for(child: Child) -> tuple[int, int]:
    """Bytes of the disk that has the child's folder, and those that are free; 0 where unknown."""
    try:
        usage = disk_usage(child.scratch)
    except OSError:
        return 0, 0
    return usage.total, usage.free


def _at(line: int) -> str:
    return f" at line {line}" if line else ""


def _processor_seconds(pid: int) -> float | None:
    """Processor time so far; None where the system does not tell, or for what is at work now."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] != "S":
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_status(pid: int) -> tuple[int, int]:
    """Bytes of memory, but for copies of files, what it shares with its parent among them; threads.
    0 where unknown."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    told = {name: int(value) for name, value in _TOLD.findall(status)}
    memory = told.get("RssAnon", 0) + told.get("RssShmem", 0)
    return memory << 10, told.get("Threads", 0)


def room_for_another() -> bool:
    """Whether the host has memory for one more child beside those that run."""
    try:
        total, free = host_memory()
    except OSError:
        return True
    return free > max(2 * GIB, 2 * SPARED * total)
