# What is tried here is written as users write it.
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH107, PTH116, PTH123, PTH211
# ruff: noqa: SIM115, PLW0108, PLW1510
import contextlib
import ctypes
import os
import pathlib
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading

import numpy as np
import pytest
import torch

from gpumem_magic.isolation.walls.confinement import (
    confine,
    read_landlock_version,
)

linux = sys.platform == "linux"
files = pytest.mark.skipif(
    not linux or read_landlock_version(ctypes.CDLL(None)) < 3, reason="the kernel lacks Landlock 3"
)
calls = pytest.mark.skipif(
    not linux or os.uname().machine not in ("x86_64", "aarch64"), reason="no seccomp filter here"
)


@pytest.fixture
def confined(in_child, tmp_path):
    """What a function of the scratch folder returns in a child that is confined to it."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def confined(function):
        def run(pipe):
            torch.set_num_threads(1)
            confine(scratch)
            return function(scratch)

        return in_child(run)

    return confined


@pytest.fixture
def outside(tmp_path):
    """A folder of the user's; what is in it stays as it was."""
    folder = tmp_path / "outside"
    (folder / "full").mkdir(parents=True)
    (folder / "file").write_bytes(b"kept")
    before = snapshot(folder)
    yield folder
    assert snapshot(folder) == before


def snapshot(folder):
    return {
        path: (path.lstat().st_mode, path.lstat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in [folder, *folder.rglob("*")]
    }


def failure(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except (OSError, RuntimeError, sqlite3.Error) as error:
        return type(error).__name__
    return None


@files
@calls
def test_all_is_put_in_place(in_child, tmp_path):
    assert in_child(lambda pipe: confine(tmp_path)) == ()


def test_other_systems_have_neither(in_child, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert in_child(lambda pipe: confine(tmp_path)) == ("Landlock", "seccomp")


def test_what_is_missing_is_named(in_child, tmp_path):
    assert in_child(lambda pipe: "Landlock" in confine(tmp_path / "absent"))


@files
@pytest.mark.parametrize(
    "write",
    [
        lambda folder: open(folder / "new", "w"),
        lambda folder: open(folder / "file", "a"),
        lambda folder: open(folder / "file", "r+"),
        lambda folder: os.remove(folder / "file"),
        lambda folder: os.rename(folder / "file", folder / "moved"),
        lambda folder: os.mkdir(folder / "folder"),
        lambda folder: os.rmdir(folder / "full"),
        lambda folder: os.symlink("file", folder / "link"),
        lambda folder: os.link(folder / "file", folder / "link"),
        lambda folder: os.truncate(folder / "file", 1),
        lambda folder: os.mkfifo(folder / "fifo"),
        lambda folder: shutil.rmtree(folder),
        lambda folder: shutil.copy(folder / "file", folder / "copy"),
        lambda folder: tempfile.NamedTemporaryFile(dir=folder),
        lambda folder: np.ones(3).tofile(folder / "array"),
        lambda folder: torch.save(torch.ones(3), folder / "tensor"),
        lambda folder: torch.ones(3).numpy().dump(folder / "array"),
        lambda folder: torch.jit.script(torch.nn.Linear(1, 1)).save(str(folder / "script")),
        lambda folder: sqlite3.connect(folder / "base").execute("create table t (x)"),
    ],
)
def test_nothing_is_written_outside(confined, outside, write):
    assert confined(lambda scratch: failure(write, outside)) is not None


@files
def test_c_code_writes_nothing_outside(confined, outside):
    file, moved = os.fsencode(outside / "file"), os.fsencode(outside / "moved")

    def run(scratch):
        libc = ctypes.CDLL(None)
        return (
            libc.open(file, os.O_WRONLY | os.O_TRUNC),
            libc.creat(moved, 0o600),
            libc.unlink(file),
            libc.rename(file, moved),
            libc.rename(file, os.fsencode(scratch / "moved")),
        )

    assert confined(run) == (-1, -1, -1, -1, -1)


@calls
def test_metadata_seem_to_change(confined, outside):
    def run(scratch):
        os.chmod(outside / "file", 0)
        os.utime(outside / "file", (0, 0))
        os.chown(outside / "file", 12345, 12345)
        os.setxattr(outside / "file", "user.x", b"1")
        return ctypes.CDLL(None).chmod(os.fsencode(outside / "file"), 0)

    assert confined(run) == 0
    assert os.stat(outside / "file").st_uid == os.getuid()


def test_the_scratch_folder_is_usable(confined, outside):
    def run(scratch):
        shutil.copy2(outside / "file", scratch / "copy")
        shutil.copytree(outside, scratch / "tree")
        (scratch / "copy").rename(scratch / "tree" / "moved")
        torch.save(torch.ones(3), scratch / "tensor")
        with tempfile.NamedTemporaryFile(dir=scratch) as file:
            file.write(b"x")
        with sqlite3.connect(scratch / "base") as base:
            base.execute("create table t (x)")
        with open(os.devnull, "w") as null:
            null.write("gone")
        shutil.rmtree(scratch / "tree")
        return torch.load(scratch / "tensor").sum().item(), (outside / "file").read_bytes()

    assert confined(run) == (3.0, b"kept")


@calls
@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run(["true"]),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
        lambda: os.execv("/bin/true", ["true"]),
        lambda: os.fork(),
        lambda: os.forkpty(),
    ],
)
def test_no_process_starts(confined, start):
    assert confined(lambda scratch: failure(start)) == "PermissionError"


@calls
def test_no_command_runs(confined, outside):
    def run(scratch):
        libc = ctypes.CDLL(None)
        return libc.system(b"touch %s/made" % os.fsencode(outside)), os.system("true")

    assert 0 not in confined(run)


@calls
def test_no_connection_of_any_sort(confined, tmp_path):
    kinds = socket.SOCK_STREAM, socket.SOCK_DGRAM
    with contextlib.ExitStack() as stack:
        tcp, udp = (stack.enter_context(socket.socket(type=kind)) for kind in kinds)
        unix, log = (stack.enter_context(socket.socket(socket.AF_UNIX, kind)) for kind in kinds)
        for one in (tcp, udp):
            one.bind(("127.0.0.1", 0))
        unix.bind(str(tmp_path / "unix"))
        log.bind(str(tmp_path / "log"))
        for one in (tcp, unix):
            one.listen()
        for one in (tcp, udp, unix, log):
            one.setblocking(False)
        pairs = [(one.family, one.type, one.getsockname()) for one in (tcp, udp, unix, log)]

        def run(scratch):
            failed = []
            for family, kind, address in pairs:
                with socket.socket(family, kind) as client:
                    failed.append(failure(client.connect, address))
                    if kind == socket.SOCK_DGRAM:
                        failed.append(failure(client.sendto, b"dry", address))
                        failed.append(failure(client.sendmsg, [b"dry"], [], 0, address))
            return set(failed)

        assert confined(run) == {"ConnectionRefusedError"}
        assert failure(tcp.accept) == failure(unix.accept) == "BlockingIOError"
        assert failure(udp.recv, 9) == failure(log.recv, 9) == "BlockingIOError"


@calls
def test_c_code_connects_nowhere(confined):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = (
            b"\2\0" + server.getsockname()[1].to_bytes(2, "big") + bytes([127, 0, 0, 1] + [0] * 8)
        )

        def run(scratch):
            libc = ctypes.CDLL(None)
            return libc.connect(libc.socket(2, 1, 0), address, 16)

        assert confined(run) == -1
        assert failure(server.accept) == "BlockingIOError"


@calls
def test_no_server_no_raw_sockets(confined):
    def run(scratch):
        with socket.socket() as one:
            return (
                failure(one.bind, ("127.0.0.1", 0)),
                failure(one.listen),
                failure(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW),
                failure(socket.getaddrinfo, "example.com", 80),
            )

    bound, listened, raw, resolved = confined(run)
    assert (bound, listened, raw) == ("PermissionError", "PermissionError", "OSError")
    assert resolved == "gaierror"


@calls
def test_a_pair_of_its_own_works(confined):
    def run(scratch):
        here, there = socket.socketpair()
        here.sendall(b"inside")
        return there.recv(9)

    assert confined(run) == b"inside"


@calls
def test_signals_reach_only_itself(confined):
    parent, group = os.getpid(), os.getpgrp()
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append("parent"))

    def run(scratch):
        signal.signal(signal.SIGUSR1, lambda *_: heard.append("child"))
        failed = [
            failure(os.kill, parent, signal.SIGUSR1),
            failure(os.killpg, group, signal.SIGUSR1),
            failure(os.kill, parent, 0),
            ctypes.CDLL(None).kill(parent, int(signal.SIGUSR1)),
        ]
        os.kill(os.getpid(), signal.SIGUSR1)
        return failed, heard

    try:
        assert confined(run) == (["PermissionError"] * 3 + [-1], ["child"])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == []


@calls
@pytest.mark.parametrize("end", [os.abort, lambda: ctypes.CDLL(None).abort()])
def test_abort_ends_it(confined, end):
    assert confined(lambda scratch: end()) == signal.SIGABRT


@calls
def test_priorities_and_limits_of_others(confined):
    parent = os.getpid()
    before = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)

    def run(scratch):
        os.setpriority(os.PRIO_PROCESS, parent, 19)
        os.sched_setaffinity(parent, {0})
        resource.prlimit(0, resource.RLIMIT_CORE)
        return failure(resource.prlimit, parent, resource.RLIMIT_NOFILE, (10, 10))

    assert confined(run) == "PermissionError"
    assert (os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)) == before


@calls
def test_system_v_and_administration(confined):
    def run(scratch):
        libc = ctypes.CDLL(None)
        return (
            libc.shmget(0, 4096, 0o1600),
            libc.semget(0, 1, 0o1600),
            libc.msgget(0, 0o1600),
            libc.ptrace(16, os.getppid(), None, None),
            libc.mount(b"none", b"/mnt", b"tmpfs", 0, None),
            libc.sethostname(b"x", 1),
            libc.syscall(425, 8, None),
        )

    assert set(confined(run)) == {-1}


@pytest.mark.skipif(not linux, reason="no capabilities here")
def test_privileges_are_dropped(confined):
    """Without them no device is made, which would lead past Landlock to what it stands for."""

    def run(scratch):
        status = pathlib.Path("/proc/self/status").read_text().splitlines()
        sets = [line.split()[1] for line in status if line.startswith(("CapPrm", "CapEff"))]
        made = ctypes.CDLL(None).mknod(bytes(scratch / "device"), 0o20600, os.makedev(1, 11))
        return [int(each, 16) & ~0x1000006 for each in sets], made

    assert confined(run) == ([0, 0], -1)


@calls
def test_no_terminal(confined):
    assert confined(lambda scratch: failure(open, "/dev/tty", "rb")) == "PermissionError"


def test_threads_and_kernels_work(confined):
    matrix = torch.randn(64, 64)

    def run(scratch):
        found = []
        threads = [threading.Thread(target=found.append, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        product = [torch.zeros(0)]
        thread = threading.Thread(target=lambda: product.append(matrix @ matrix))
        thread.start()
        thread.join()
        weight = matrix.clone().requires_grad_()
        (weight @ matrix).sum().backward()
        return sorted(found), torch.equal(product[1], matrix @ matrix), weight.grad is not None

    assert confined(run) == ([0, 1, 2, 3], True, True)


def test_new_openmp_threads_work(tmp_path):
    """GIVEN a child whose parent never used OpenMP WHEN it is confined THEN threads start."""
    code = f"""
import pathlib, torch
from gpumem_magic.isolation.walls.confinement import confine
confine(pathlib.Path({str(tmp_path)!r}))
torch.set_num_threads(2)
a = torch.ones(600, 600)
print((a @ a).sum().item(), (a + a).sum().item())
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.stdout.split() == [str(600.0**3), str(2 * 600.0**2)], told.stderr


def test_limits(confined):
    def run(scratch):
        score = pathlib.Path("/proc/self/oom_score_adj")
        return (
            int(score.read_text()) if score.exists() else 1000,
            resource.getrlimit(resource.RLIMIT_CORE)[0] <= 1,
            0 <= resource.getrlimit(resource.RLIMIT_FSIZE)[0] <= 4 << 30,
        )

    assert confined(run) == (1000, True, True)
    assert pathlib.Path("/proc/self/oom_score_adj").read_text() != "1000\n"
