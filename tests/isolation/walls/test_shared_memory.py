import ctypes
import mmap
import multiprocessing
import sys
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest
import torch

from gpumem_magic.isolation.walls.shared_memory import make_shared_memory_private

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/maps")


@pytest.fixture
def private(in_child):
    """What a function returns in a child whose memory is its own."""

    def private(function, keep=()):
        def run(pipe):
            make_shared_memory_private(keep)
            return function()

        return in_child(run)

    return private


def read_maps():
    return Path("/proc/self/maps").read_text().splitlines()


def start_of(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def test_memory_mapped_array(private, tmp_path):
    np.arange(5000.0).tofile(tmp_path / "array")
    array = np.memmap(tmp_path / "array", mode="r+", dtype=np.float64, offset=800)

    def run():
        array[:] += 1
        array.flush()
        return array[0], array[-1]

    assert private(run) == (101.0, 5000.0)
    assert array[0] == 100.0
    assert np.array_equal(np.fromfile(tmp_path / "array"), np.arange(5000.0))


def test_a_large_mapping_is_not_copied(private, tmp_path):
    with (tmp_path / "large").open("w+b") as file:
        file.truncate(1 << 40)
        memory = mmap.mmap(file.fileno(), 1 << 40)

    def run():
        memory[-1] = 7
        return memory[-1], resident()

    last, pages = private(run)
    assert last == 7
    assert pages < resident() + 100_000
    assert memory[-1] == 0
    memory.close()


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_deleted_large_file_is_mapped_by_its_descriptor(private, tmp_path):
    with (tmp_path / "large").open("w+b") as file:
        file.truncate(1 << 40)
        memory = mmap.mmap(file.fileno(), 1 << 40)
        (tmp_path / "large").unlink()
        memory[5] = 3
        assert private(lambda: (memory[5], poke(memory, 5))) == (3, 9)
        assert memory[5] == 3
        memory.close()


def poke(memory, at):
    memory[at] = 9
    return memory[at]


def test_another_file_at_the_path_is_not_taken(private, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"first" * 1000)
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 5000)
    (tmp_path / "other").write_bytes(b"other" * 1000)
    (tmp_path / "other").replace(path)
    assert private(lambda: (memory[:5], poke(memory, 0))) == (b"first", 9)
    assert memory[:5] == b"first"
    memory.close()


def test_anonymous_memory(private):
    memory = mmap.mmap(-1, 3 << 20)
    memory[:4] = memory[-4:] = b"real"

    def run():
        memory[:4] = b"dry!"
        return memory[:4], memory[-4:]

    assert private(run) == (b"dry!", b"real")
    assert memory[:4] == b"real"
    memory.close()


def test_kept_memory_stays_shared(private):
    memory = mmap.mmap(-1, 4096)
    private(lambda: poke(memory, 0), keep={start_of(memory)})
    assert memory[0] == 9


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_shared_tensors(private, strategy):
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        tensor = torch.arange(1000.0).share_memory_()
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
    assert private(lambda: tensor.mul_(2).sum().item()) == 999000.0
    assert tensor.sum().item() == 499500.0


def test_posix_shared_memory(private):
    memory = shared_memory.SharedMemory(create=True, size=100)
    try:
        memory.buf[0] = 1
        assert private(lambda: poke(memory.buf, 0)) == 9
        assert memory.buf[0] == 1
    finally:
        memory.close()
        memory.unlink()


def test_what_multiprocessing_shares(private):
    fork = multiprocessing.get_context("fork")
    lock, value, semaphore = fork.Lock(), fork.Value("i", 5), fork.Semaphore(3)
    array, event = fork.Array("d", 3), fork.Event()

    def run():
        taken = lock.acquire(timeout=1), semaphore.acquire(timeout=1)
        event.set()
        value.value += 1
        array[1] = 2.5
        again = lock.acquire(timeout=0.01)
        return taken, again, value.value, array[1], event.is_set()

    assert private(run) == ((True, True), False, 6, 2.5, True)
    assert (value.value, array[1], event.is_set(), semaphore.get_value()) == (5, 0.0, False, 3)
    assert lock.acquire(timeout=1)


def test_a_queue_keeps_its_lock(private):
    queue = multiprocessing.get_context("fork").SimpleQueue()
    queue.put("real")
    assert private(lambda: queue._rlock.acquire(timeout=1))
    assert queue.get() == "real"
    queue.close()


def test_memory_past_the_end_of_its_file(private, tmp_path):
    path = tmp_path / "shrunk"
    path.write_bytes(b"x" * 40960)
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 40960)
        file.truncate(5000)
    path.unlink()
    assert private(lambda: (memory[4999], poke(memory, 0))) == (ord("x"), 9)
    assert memory[0] == ord("x")
    memory.close()


def test_what_cannot_be_copied_is_not_written_to(in_child, monkeypatch):
    memory = mmap.mmap(-1, 4096)
    module = sys.modules[make_shared_memory_private.__module__]
    monkeypatch.setattr(module, "_copy", lambda *_: False)

    def run(pipe):
        make_shared_memory_private(())
        memory[0] = 9

    assert in_child(run) == 11  # SIGSEGV
    assert memory[0] == 0
    memory.close()


def test_protection_stays_and_what_is_not_writable_yet_is_private(private, tmp_path):
    (tmp_path / "file").write_bytes(b"r" * 4096)
    with (tmp_path / "file").open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        written = mmap.mmap(file.fileno(), 0)

    def run():
        found = [line.split()[1] for line in read_maps() if str(tmp_path) in line]
        return sorted(found), memory[0]

    assert private(run) == (["r--p", "rw-p"], ord("r"))
    memory.close()
    written.close()


def test_nothing_shared_and_writable_is_left(private):
    memory = mmap.mmap(-1, 4096)

    def run():
        shared = [line for line in read_maps() if line.split()[1] == "rw-s"]
        return [line for line in shared if "/dev/nv" not in line]

    assert private(run) == []
    memory.close()
