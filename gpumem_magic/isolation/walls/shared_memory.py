"""Memory that a forked child shares with its parent becomes private, at the same addresses.

A fork copies private memory on write, but not what was mapped as shared: `np.memmap`,
`share_memory_()`, locks and queues of multiprocessing.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import mmap
import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpumem_magic.isolation.walls.descriptors import CopiedFile

_FIXED = 0x10  # MAP_FIXED
_NO_RESERVE = 0x4000  # MAP_NORESERVE: more than there is memory may be mapped, if not written
_MAY_MOVE_THERE = 3  # MREMAP_MAYMOVE | MREMAP_FIXED
_FAILED = ctypes.c_void_p(-1).value
_DEVICES = (b"/dev/", b"anon_inode:", b"/dmabuf:")
_MEMORY = (b"/dev/shm/", b"/dev/zero", b"/dev/hugepages/", b"anon_inode:[io_uring]")
_SHARED = re.compile(rb"[x-]s [0-9a-f]{8,} ")
"""In a line of maps; looked for in the whole text, of which only few lines are then read. What may
not be written now can be made writable."""
_COPIED = 1 << 20
"""Bytes up to which deleted files are copied without a look at what is open."""


@dataclass(frozen=True, slots=True)
class _Mapping:
    """A line of /proc/self/maps."""

    start: int
    size: int
    protection: int
    offset: int
    inode: int
    path: bytes


def make_shared_memory_private(keep: Collection[int], copied: Collection[CopiedFile] = ()) -> None:
    """From now on nothing that is written to memory reaches another process; Linux only.

    keep: start addresses of mappings to leave. Devices' memory is left, too. copied: files whose
    copies are mapped in their place, so that what is written there is read here, and the other way.
    """
    mappings = [mapping for mapping in _find_shared() if mapping.start not in keep]
    if mappings:
        libc = _load_libc()
        memory = os.open("/proc/self/mem", os.O_RDONLY)
        copies = {(os.fsencode(each.name), each.inode): each.copy for each in copied}
        for mapping in mappings:
            copy = copies.get((mapping.path, mapping.inode))
            if not (_map_file(mapping, copy, libc) or _copy(mapping, memory, libc)):
                # better that writing ends the child than that it reaches the parent
                libc.mprotect(mapping.start, mapping.size, mmap.PROT_READ)
        os.close(memory)


def _find_shared() -> Iterator[_Mapping]:
    try:
        with io.FileIO("/proc/self/maps") as file:
            maps = file.readall()
    except FileNotFoundError:
        return
    for found in _SHARED.finditer(maps):
        start, end = maps.rfind(b"\n", 0, found.start()) + 1, maps.find(b"\n", found.end())
        mapping = _parse(maps[start:end])
        if not _is_device(mapping.path):
            yield mapping


def _parse(line: bytes) -> _Mapping:
    addresses, permissions, offset, _, inode, *path = line.split(None, 5)
    start, end = (int(address, 16) for address in addresses.split(b"-"))
    bits = zip(b"rwx", (mmap.PROT_READ, mmap.PROT_WRITE, mmap.PROT_EXEC), strict=True)
    protection = sum(bit for letter, bit in bits if letter in permissions)
    name = path[0].replace(b"\\012", b"\n") if path else b""
    return _Mapping(start, end - start, protection, int(offset, 16), int(inode), name)


def _is_device(path: bytes) -> bool:
    return path.startswith(_DEVICES) and not path.startswith(_MEMORY)


def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (address, size, number, number, number, ctypes.c_int64)
    libc.mremap.argtypes = (address, size, size, number, address)
    libc.mprotect.argtypes = (address, size, number)
    libc.munmap.argtypes = (address, size)
    libc.mmap.restype = libc.mremap.restype = address
    return libc


def _map_file(mapping: _Mapping, copy: Path | None, libc: ctypes.CDLL) -> bool:
    """Maps the copy, or the same file privately, which copies nothing; False if it cannot be
    opened."""
    file = _open_file(mapping) if copy is None else os.open(copy, os.O_RDWR)
    if file is None:
        return False
    flags = (mmap.MAP_PRIVATE if copy is None else mmap.MAP_SHARED) | _FIXED | _NO_RESERVE
    try:
        found = libc.mmap(
            mapping.start, mapping.size, mapping.protection, flags, file, mapping.offset
        )
    finally:
        os.close(file)
    return bool(found != _FAILED)


def _open_file(mapping: _Mapping) -> int | None:
    """The mapped file, by its path or, when it was deleted, by a descriptor that is open."""
    with contextlib.suppress(OSError):
        file = os.open(mapping.path, os.O_RDONLY | os.O_NONBLOCK)
        # devices are not compared: overlay and btrfs tell another one in maps
        if _is_file(file, mapping.inode):
            return file
        os.close(file)
    return _find_descriptor(mapping) if mapping.size > _COPIED else None


def _find_descriptor(mapping: _Mapping) -> int | None:
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found = os.fsencode(link.readlink()) == mapping.path
            if found and _is_file(int(link.name), mapping.inode):
                return os.dup(int(link.name))
    return None


def _is_file(file: int, inode: int) -> bool:
    status = os.fstat(file)
    return status.st_ino == inode and stat.S_ISREG(status.st_mode)


def _copy(mapping: _Mapping, memory: int, libc: ctypes.CDLL) -> bool:
    """Puts a copy in the mapping's place, all at once."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    size = mapping.size
    copy = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if copy == _FAILED:
        return False
    if (
        _read(mapping, copy, memory)
        and libc.mprotect(copy, size, mapping.protection) == 0
        and libc.mremap(copy, size, size, _MAY_MOVE_THERE, mapping.start) != _FAILED
    ):
        return True
    libc.munmap(copy, size)
    return False


def _read(mapping: _Mapping, copy: int, memory: int) -> bool:
    """Reads the mapping by a system call: past the end of its file that fails, where an access
    would end the process."""
    target = memoryview((ctypes.c_char * mapping.size).from_address(copy)).cast("B")
    at = 0
    with contextlib.suppress(OSError):
        while at < mapping.size:
            at += os.preadv(memory, [target[at:]], mapping.start + at)
    return at > 0
