"""What lies outside the process: folders, shared memory, and what the servers were sent."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from digest import hashed

SHARED = Path("/dev/shm")
LARGEST = 1 << 22
"""Bytes of a file that are compared; of a larger one, its first ones."""


def look_at_folders(folders: Mapping[str, str], without_time: str) -> dict[str, str]:
    """Everything in the folders (by name): kind, mode, size, time, inode, content, attributes.

    without_time: the folder for temporary files, which we may use: its own time does not count.
    """
    found: dict[str, str] = {}
    for name, root in folders.items():
        found[f"file {name}"] = _describe(root, timeless=root == without_time)
        for place, inner, files in os.walk(root):
            for each in (*inner, *files):
                path = os.path.join(place, each)  # noqa: PTH118
                found[f"file {name}/{os.path.relpath(path, root)}"] = _describe(path)
    return found


def _describe(path: str, timeless: bool = False) -> str:
    try:
        facts = os.lstat(path)
    except OSError as error:
        return type(error).__name__
    said = [oct(facts.st_mode), f"inode {facts.st_ino}", f"owner {facts.st_uid}:{facts.st_gid}"]
    if not timeless:
        said += [f"changed {facts.st_mtime_ns}", f"links {facts.st_nlink}"]
    file = Path(path)
    if file.is_symlink():
        said.append(f"to {file.readlink()}")
    elif file.is_file():
        with file.open("rb") as opened:
            said.append(hashed(opened.read(LARGEST)))
    return " ".join(said)


def look_at_shared_memory() -> dict[str, str]:
    """The listing of /dev/shm."""
    if not SHARED.is_dir():
        return {}
    found = {}
    for path in SHARED.iterdir():
        try:
            facts = path.lstat()
        except OSError:  # another process's, gone meanwhile
            continue
        content = path.read_bytes() if path.is_file() and facts.st_size < LARGEST else b""
        found[f"shared memory {path.name}"] = f"{facts.st_size} {hashed(content)}"
    return found


def is_of_others(name: str, ours: set[int]) -> bool:
    """Whether shared memory is in use by processes other than `ours`: other tests run beside."""
    if not (SHARED / name).exists():
        return name.startswith(("torch_", "sem.", "psm_", "pym-"))
    path = str(SHARED / name)
    others = {*filter(str.isdecimal, os.listdir("/proc"))} - {*map(str, ours)}  # noqa: PTH208
    return any(path in _maps_of(process) for process in others)


def _maps_of(process: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/maps").read_text()
    return ""


def look_at_servers(record: str) -> dict[str, str]:
    """What the servers were sent until now, as soon as nothing more comes."""
    content, since = Path(record).read_text(), time.monotonic()
    while time.monotonic() - since < 0.03:
        time.sleep(0.01)
        if content != (now := Path(record).read_text()):
            content, since = now, time.monotonic()
    return {"servers got": content}
