import asyncio
import os
import pty
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpumem_magic.isolation.walls.descriptors import unshare_descriptors

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc and queues")


@pytest.fixture
def unshared(in_child, tmp_path):
    """What a function returns in a child whose descriptors are its own; tells the output, too."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def unshared(function):
        def run(pipe):
            output = os.open(scratch / "output", os.O_RDWR | os.O_CREAT, 0o600)
            unshare_descriptors({pipe}, scratch, output)
            return function()

        return in_child(run)

    unshared.scratch = scratch
    return unshared


def failure(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return type(error).__name__
    return None


def test_standard_streams_are_captured(unshared):
    def run():
        os.write(1, b"to output, ")
        os.write(2, b"both")
        return os.read(0, 10)

    assert unshared(run) == b""
    assert (unshared.scratch / "output").read_bytes() == b"to output, both"


def test_reading_goes_on_where_it_was_and_moves_only_the_child(unshared, tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"0123456789")
    with path.open("rb", buffering=0) as file:
        file.read(3)
        assert unshared(lambda: file.read(4)) == b"3456"
        assert file.tell() == 3


@linux
def test_deleted_file_is_read(unshared):
    with tempfile.TemporaryFile() as file:
        file.write(b"unnamed")
        file.seek(2)
        assert unshared(file.read) == b"named"
        assert file.tell() == 2


def test_written_file_is_a_copy_at_the_same_place(unshared, tmp_path):
    path = tmp_path / "both"
    path.write_bytes(b"abcdef")
    with path.open("r+b", buffering=0) as file:
        file.seek(4)

        def run():
            file.write(b"XYZ")
            file.truncate()
            file.seek(0)
            return file.read()

        assert unshared(run) == b"abcdXYZ"
        assert file.tell() == 4
    assert path.read_bytes() == b"abcdef"


def test_buffered_text_and_a_second_reader_agree(unshared, tmp_path):
    path = tmp_path / "text"
    path.write_text("old ")
    with path.open("r+") as writer, path.open() as reader:
        writer.seek(0, os.SEEK_END)
        writer.write("unwritten ")

        def run():
            writer.write("new")
            writer.flush()
            return reader.read()

        assert unshared(run) == "old unwritten new"
    assert path.read_text() == "old unwritten "


def test_log_is_not_appended_to(unshared, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"line\n")
    with path.open("ab", buffering=0) as log:

        def run():
            log.write(b"dry\n")
            return os.fstat(log.fileno()).st_size

        assert unshared(run) == 9
        log.write(b"real\n")
    assert path.read_bytes() == b"line\nreal\n"


def test_large_file_stays_readable_only(unshared, tmp_path):
    path = tmp_path / "large"
    with path.open("w+b", buffering=0) as file:
        file.truncate(65 << 20)
        file.seek(64 << 20)

        def run():
            return len(file.read()), failure(os.write, file.fileno(), b"x")

        assert unshared(run) == (1 << 20, "OSError")
        assert file.tell() == 64 << 20


@linux
def test_memory_file_is_a_copy(unshared):
    number = os.memfd_create("shared")
    os.write(number, b"before")
    unshared(lambda: os.pwrite(number, b"AFTER!", 0))
    assert os.pread(number, 9, 0) == b"before"
    os.close(number)


def test_directory_scan_goes_on(unshared, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "abc":
        (folder / name).touch()
    with os.scandir(folder) as entries:
        first = next(entries).name
        assert sorted([first, *unshared(lambda: [entry.name for entry in entries])]) == [*"abc"]
        assert len([*entries]) == 2


@pytest.mark.parametrize("family", ["tcp", "udp", "pair"])
def test_connection_is_dead(unshared, family):
    with connected(family) as (here, there):
        there.setblocking(False)

        def run():
            return here.recv(9), failure(here.send, b"dry")

        assert unshared(run) == (b"", "BrokenPipeError")
        assert failure(there.recv, 9) == "BlockingIOError"
        here.send(b"real")
        there.setblocking(True)
        assert there.recv(9) == b"real"


class connected:  # noqa: N801
    def __init__(self, family):
        if family == "pair":
            self.sockets = socket.socketpair()
            return
        kind = socket.SOCK_STREAM if family == "tcp" else socket.SOCK_DGRAM
        here, there = socket.socket(type=kind), socket.socket(type=kind)
        there.bind(("127.0.0.1", 0))
        if family == "tcp":
            there.listen()
        here.connect(there.getsockname())
        if family == "tcp":
            listening, there = there, there.accept()[0]
            listening.close()
        self.sockets = here, there

    def __enter__(self):
        return self.sockets

    def __exit__(self, *error):
        for one in self.sockets:
            one.close()


def test_listening_socket_takes_no_connection(unshared):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        with socket.create_connection(server.getsockname()) as client:
            assert unshared(lambda: failure(server.accept)) == "OSError"
            accepted, _ = server.accept()
            assert accepted.getpeername() == client.getsockname()
            accepted.close()


def test_non_blocking_stays(unshared):
    with connected("pair") as (here, there):
        here.setblocking(False)

        def run():
            return os.get_blocking(here.fileno()), os.get_blocking(there.fileno())

        assert unshared(run) == (False, True)


def test_pipe_to_another_process_is_not_written_to(unshared):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:

        def run():
            os.write(cat.stdin.fileno(), b"dry")
            return os.read(cat.stdout.fileno(), 9)

        assert unshared(run) == b""
        assert cat.communicate(b"real")[0] == b"real"


@linux
def test_pipe_in_the_process_goes_on_privately(unshared):
    read, write = os.pipe()
    second = os.dup(write)
    os.write(write, b"waiting,")
    os.set_blocking(read, False)

    def run():
        os.write(second, b"more")
        return os.read(read, 99), os.get_blocking(read), os.get_blocking(write)

    assert unshared(run) == (b"waiting,more", False, True)
    assert os.read(read, 99) == b"waiting,"
    for number in (read, write, second):
        os.close(number)


@linux
def test_event_queues_are_fresh(unshared):
    read, write = os.pipe()
    queue, event = select.epoll(), os.eventfd(3, os.EFD_NONBLOCK)
    queue.register(read, select.EPOLLIN)

    def run():
        queue.register(write, select.EPOLLOUT)
        failed = failure(queue.unregister, read)
        return failed, len(queue.poll(1)), os.eventfd_read(event), os.get_blocking(event)

    assert unshared(run) == ("FileNotFoundError", 1, 3, False)
    assert queue.poll(0) == []
    os.write(write, b"x")
    assert queue.poll(0) == [(read, select.EPOLLIN)]
    assert os.eventfd_read(event) == 3
    for number in (read, write, event):
        os.close(number)
    queue.close()


@linux
def test_a_new_event_loop_runs(unshared):
    async def answer():
        return await asyncio.to_thread(sum, [1, 2])

    loop = asyncio.new_event_loop()
    assert unshared(lambda: asyncio.run(answer())) == 3
    assert loop.run_until_complete(answer()) == 3
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def test_terminal_is_not_written_to(unshared):
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    assert unshared(lambda: (os.write(slave, b"dry"), os.isatty(slave))) == (3, False)
    assert failure(os.read, master, 9) == "BlockingIOError"
    os.close(master)
    os.close(slave)


@linux
def test_what_a_descriptor_only_names_is_not_opened_by_it(unshared, tmp_path):
    memory = os.memfd_create("memory")
    named = os.open(f"/proc/self/fd/{memory}", os.O_PATH)
    folder = os.open(tmp_path, os.O_PATH)

    def run():
        os.write(os.open(f"/proc/self/fd/{named}", os.O_RDWR), b"dry")
        return os.stat("scratch", dir_fd=folder).st_nlink > 0

    assert unshared(run)
    assert os.fstat(memory).st_size == 0
    for number in (memory, named, folder):
        os.close(number)


def test_harmless_devices_stay(unshared):
    with Path("/dev/urandom").open("rb", buffering=0) as random:
        assert len(unshared(lambda: random.read(5))) == 5


def test_inheritance_and_what_is_kept(unshared, in_child, tmp_path):
    path = tmp_path / "kept"
    number = os.open(path, os.O_WRONLY | os.O_CREAT)
    heard = os.dup(number)
    os.set_inheritable(heard, True)

    def inherited():
        return os.get_inheritable(number), os.get_inheritable(heard)

    assert unshared(inherited) == (False, True)

    def keep(pipe):
        unshare_descriptors({pipe, number}, tmp_path, number)
        os.write(number, b"kept")

    in_child(keep)
    assert path.read_bytes() == b"kept"
    os.close(number)
    os.close(heard)


def test_closed_standard_streams(in_child, tmp_path):
    def run(pipe):
        for number in range(3):
            os.close(number)
        output = os.open(tmp_path / "output", os.O_RDWR | os.O_CREAT, 0o600)
        unshare_descriptors({pipe}, tmp_path, output)
        os.write(1, b"out")
        os.write(2, b"err")
        return os.read(0, 1)

    assert in_child(run) == b""
    assert (tmp_path / "output").read_bytes() == b"outerr"
