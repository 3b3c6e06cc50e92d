"""How much memory the host has for this process, within the limits of its container."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

SPARED = 0.03
"""Share of the host's memory that is left to others."""

_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_FILES = {
    "": ("", "memory.max", "memory.current"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}
"""By controller (version 2 has one for all): the root of its groups, and in each the files of the
limit and of what is used. Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""


def host_memory() -> tuple[int, int]:
    """Bytes in all, and those that can be had. Raises OSError where the system does not tell."""
    rows = dict(row.split(":") for row in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(rows[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    for limit, used in _limits():
        total, free = min(total, limit), min(free, limit - used)
    return total, max(0, free)


def _limits() -> Iterator[tuple[int, int]]:
    """Of each control group around this process that has one: its limit and what is used of it."""
    for group in _MEMBERSHIP.read_text().splitlines():
        _, controller, path = group.split(":", 2)
        if controller in _FILES:
            root, limit, used = _FILES[controller]
            at = _GROUPS / root / path.strip("/")
            for folder in (at, *at.parents):
                if folder.is_relative_to(_GROUPS / root):
                    with contextlib.suppress(OSError, ValueError):  # "max", or a group out of sight
                        yield int((folder / limit).read_text()), _in_use(folder, used)


def _in_use(folder: Path, used: str) -> int:
    """Bytes, without copies of files that the kernel gives up for what is needed."""
    rows = dict(row.split() for row in (folder / "memory.stat").read_text().splitlines())
    spare = rows.get("total_inactive_file", rows.get("inactive_file", 0))
    return int((folder / used).read_text()) - int(spare)
