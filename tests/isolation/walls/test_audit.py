"""What got past everything else is refused by Python itself, and told."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import socket
import sqlite3
import sys

import pytest

from ..effects.forked import audit, run_cell


@pytest.fixture
def folder(tmp_path):
    """A file and a folder, which stay."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "empty").mkdir()
    yield tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]
    assert (tmp_path / "file").read_text() == "old"
    assert (tmp_path / "file").stat().st_mode & 0o777 != 0o600


def run(cell, folder, **names):
    return run_cell(
        f"import io, os, sys, shutil, subprocess, pathlib, sqlite3, tempfile\n{cell}",
        audit,
        names={"file": str(folder / "file"), "folder": str(folder), **names},
    )


@pytest.mark.parametrize(
    ("attack", "event"),
    [
        *(("os.remove(file)", "os.remove"), ("os.rmdir(folder + '/empty')", "os.rmdir")),
        *(("os.mkdir(folder + '/a')", "os.mkdir"), ("os.chmod(file, 0o600)", "os.chmod")),
        *(("os.rename(file, '/x')", "os.rename"), ("os.replace(file, '/x')", "os.rename")),
        *(("os.link(file, folder + '/a')", "os.link"), ("os.truncate(file, 0)", "os.truncate")),
        *(("os.symlink('/x', folder + '/a')", "os.symlink"), ("os.utime(file)", "os.utime")),
        *(("os.chown(file, -1, -1)", "os.chown"), ("open(file, 'w')", "open")),
        *(
            ("open(file, 'a')", "open"),
            ("open(file, 'r+b')", "open"),
            ("io.FileIO(file, 'w')", "open"),
        ),
        *(("os.open(file, os.O_RDWR)", "open"), ("pathlib.Path(file).write_text('a')", "open")),
        *(("os.chdir(folder); os.remove('file')", "os.remove"), ("shutil.rmtree(folder)", "os.r")),
        ("d = os.open(folder, os.O_RDONLY); os.remove('file', dir_fd=d)", "os.remove"),
        *(
            ("sqlite3.connect(folder + '/a')", "sqlite3.connect"),
            ("os.system('true')", "os.system"),
        ),
        *(("subprocess.run(['true'])", "subprocess.Popen"), ("os.fork()", "os.fork")),
        *(("os.execv('/bin/true', ['true'])", "os.exec"), ("os.kill(1, 15)", "os.kill")),
        ("os.setxattr(file, 'user.a', b'')", "os.setxattr"),
    ],
)
def test_what_reaches_outside_is_refused(folder, attack, event):
    after = run(attack, folder)
    assert after.error.startswith(f"PermissionError: [Errno 1] {event}")
    assert " is not done in a dry run" in after.error
    assert len(after.told) == 1
    assert after.told[0].startswith(event)
    assert after.told[0].endswith("(line 2)")


@pytest.mark.parametrize(
    "connect",
    [
        "socket.create_connection(('127.0.0.1', 1))",
        "socket.getaddrinfo('example.com', 80)",
        "socket.gethostbyname('example.com')",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'1', ('127.0.0.1', 1))",
        "socket.socket().bind(('127.0.0.1', 0))",
        "__import__('smtplib').SMTP('localhost')",
    ],
)
def test_connections_are_refused(folder, connect):
    after = run(connect, folder, socket=socket)
    assert after.error.startswith("ConnectionRefusedError: a dry run makes no connections")
    assert after.told[0].startswith("connection to ")


def test_captured_functions_and_callers_in_c_are_met(folder):
    cell = """
class Own(str):
    remove = staticmethod(os.remove)
attempts = [lambda: held[0](file), lambda: partial(), lambda: Own.remove(file)]
attempts += [lambda: list(map(os.remove, [file])), lambda: next(iter(partial, None))]
attempts += [lambda: api.PyObject_CallObject(os.remove, (file,))]
x = 0
for attempt in attempts:
    try:
        attempt()
    except PermissionError:
        x += 1
"""
    api = ctypes.pythonapi
    api.PyObject_CallObject.argtypes = [ctypes.py_object, ctypes.py_object]
    api.PyObject_CallObject.restype = ctypes.py_object
    names = {"held": [os.remove], "partial": functools.partial(os.remove, str(folder / "file"))}
    after = run(cell, folder, api=api, **names)
    assert (after.error, after.x) == (None, 6)


def test_the_rest_goes_on(folder):
    cell = """
scratch = os.path.dirname(os.readlink("/proc/self/fd/1"))
for name in ("a", "b"):
    with open(f"{scratch}/{name}", "w") as new:
        new.write(name)
os.rename(f"{scratch}/a", f"{scratch}/c")
os.makedirs(f"{scratch}/d/e")
shutil.copy(f"{scratch}/b", f"{scratch}/d/e")
os.chdir(scratch)
os.symlink("b", "f")
os.remove("f")
shutil.rmtree("d")
database = sqlite3.connect(f"{scratch}/data")
database.execute("create table a (b)")
database.close()
sqlite3.connect(":memory:").close()
sqlite3.connect(f"file:{old}?mode=ro", uri=True).execute("select * from a")
open(file).read()
open("/dev/null", "w").write("a")
with open(1, "w", closefd=False) as stream:
    stream.write("out")
os.kill(os.getpid(), 0)
tempfile.tempdir = scratch
with tempfile.TemporaryDirectory() as place, tempfile.NamedTemporaryFile() as new:
    pathlib.Path(place, "a").touch()
import json.tool, wave
socket.getaddrinfo("127.0.0.1", 80)
one, two = socket.socketpair()
one.sendmsg([b"ab"])
x = sorted(os.listdir(scratch))
"""
    sys.modules.pop("wave", None)
    old = folder / "file"
    database = folder.parent / "old.db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table a (b)")
    connection.close()
    after = run(cell, folder, old=str(database), socket=socket)
    assert (after.error, after.told) == (None, [])
    assert after.x == ["b", "c", "data", "output"]
    assert after.output == "out"
    assert old.read_text() == "old"


def test_signals_to_threads_are_refused(folder):
    cell = "import threading; signal.pthread_kill(threading.get_ident(), 9)"
    assert run(cell, folder, signal=signal).error.startswith(
        "PermissionError: [Errno 1] signal.pthread_kill"
    )


def test_it_costs_little(folder):
    cell = """
import time
begun = time.thread_time()
for _ in range(100_000):
    id(file)
x = time.thread_time() - begun
"""
    elsewhere = {"file": None}
    exec(cell, elsewhere)
    assert run(cell, folder).x < 100 * elsewhere["x"]
