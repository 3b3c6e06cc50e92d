"""Attacks on files, pipes and memory that are reached in other ways: by a descriptor that only names
them, by the user's process, by calls that few know."""

from __future__ import annotations

LIBC = """
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    me = os.getpid()
"""
CALLS = LIBC + "    call = libc.syscall\n    call.restype = ctypes.c_long\n"

ATTACKS = {
    "a file without a name given one": {
        "setup": LIBC,
        "attack": """
            f = libc.open(b'.', os.O_TMPFILE | os.O_RDWR, 0o600)
            libc.linkat(-100, b'/proc/self/fd/%d' % f, -100, b'n', 0x400)
        """,
        "real": False,
    },
    "a file in a folder that is open": {
        "setup": LIBC + "    d = os.open('sub', os.O_RDONLY)",
        "attack": "libc.openat(d, b'c.txt', os.O_WRONLY | os.O_TRUNC)",
    },
    "a file in a folder that is named only": {
        "setup": LIBC + "    d = os.open('sub', os.O_PATH)",
        "attack": "libc.unlinkat(d, b'c.txt', 0)",
    },
    "a file that is named only": {
        "setup": LIBC + "    p = os.open('a.txt', os.O_PATH)",
        "attack": "libc.open(b'/proc/self/fd/%d' % p, os.O_WRONLY | os.O_TRUNC)",
    },
    "memory that is named only": {
        "setup": LIBC
        + """
    m = os.memfd_create('m')
    n = os.write(m, b'kept')
    p = os.open(f'/proc/self/fd/{m}', os.O_PATH)
        """,
        "attack": "f = libc.open(b'/proc/self/fd/%d' % p, os.O_RDWR); libc.write(f, b'gone', 4)",
        "after": "assert os.pread(m, 9, 0) == b'kept'",
    },
    "a pipe that is named only": {
        "setup": LIBC
        + """
    r, w = os.pipe()
    os.set_blocking(r, False)
    n = os.write(w, b'waiting')
    p = os.open(f'/proc/self/fd/{w}', os.O_PATH)
        """,
        "attack": """
            f = libc.open(b'/proc/self/fd/%d' % p, os.O_WRONLY | os.O_NONBLOCK)
            libc.write(f, b'leak', 4)
            f = libc.open(b'/proc/self/fd/%d' % p, os.O_RDONLY | os.O_NONBLOCK)
            libc.read(f, ctypes.create_string_buffer(9), 3)
        """,
        "after": "assert os.read(r, 99) == b'waiting'",
    },
    "a pipe of the user's process by libc": {
        "setup": LIBC + "    r, w = os.pipe()\n    os.set_blocking(r, False)",
        "attack": """
            f = libc.open(b'/proc/%d/fd/%d' % (me, w), os.O_WRONLY | os.O_NONBLOCK)
            libc.write(f, b'leak', 4)
        """,
    },
    "memory of the user's process by a path": {
        "setup": LIBC + "    m = os.memfd_create('m')\n    n = os.write(m, b'kept')",
        "attack": "f = libc.open(b'/proc/%d/fd/%d' % (me, m), os.O_RDWR); libc.write(f, b'gone', 4)",
        "after": "assert os.pread(m, 9, 0) == b'kept'",
    },
    "the user's memory by libc and a path": {
        "setup": LIBC
        + """
    b = bytearray(b'safe')
    at = ctypes.addressof((ctypes.c_char * 4).from_buffer(b))
        """,
        "attack": """
            f = libc.open(b'/proc/%d/mem' % me, os.O_RDWR)
            libc.pwrite(f, b'gone', 4, ctypes.c_long(at))
        """,
        "after": "assert b == b'safe'",
    },
    "memory shared by a descriptor": {
        "setup": """
            import mmap, os
            f = os.memfd_create('m')
            os.ftruncate(f, 4096)
            m = mmap.mmap(f, 4096)
        """,
        "attack": "m[:4] = b'gone'; mmap.mmap(f, 4096)[4:8] = b'gone'",
        "after": "assert os.pread(f, 8, 0) == bytes(8)",
    },
    "memory shared by two maps": {
        "setup": """
            import mmap, os
            f = os.memfd_create('m')
            os.ftruncate(f, 4096)
            m, n = mmap.mmap(f, 4096), mmap.mmap(f, 4096)
        """,
        "attack": """
            m[:4] = b'gone'
            assert n[:4] == os.pread(f, 4, 0) == b'gone'
            os.pwrite(f, b'more', 4)
            assert m[4:8] == b'more'
        """,
        "after": "assert n[:8] == os.pread(f, 8, 0) == bytes(8)",
    },
    "memory shared by its name": {
        "setup": """
            from multiprocessing.shared_memory import SharedMemory
            live_one = SharedMemory(create=True, size=64)
            live_two = SharedMemory(live_one.name)
        """,
        "attack": """
            live_one.buf[0] = 9
            three = SharedMemory(live_one.name)
            assert live_two.buf[0] == three.buf[0] == 9
            three.close()
        """,
        "after": """
            assert live_two.buf[0] == 0
            live_two.close(); live_one.close(); live_one.unlink()
        """,
        "not_sent": "memory",
    },
    "a map of a file that is read by its name": {
        "setup": "import numpy as np; m = np.memmap('m.dat', 'u1', 'w+', shape=8); m.flush()",
        "attack": """
            m[:] = 3
            assert np.fromfile('m.dat', 'u1').tolist() == [3] * 8
            np.memmap('m.dat', 'u1', 'r+')[0] = 5
            assert m[0] == 5
        """,
        "after": "assert m.tolist() == np.fromfile('m.dat', 'u1').tolist() == [0] * 8",
        "not_sent": "a map",
    },
    "memory sealed": {
        "setup": "import fcntl, os; f = os.memfd_create('m', os.MFD_ALLOW_SEALING)",
        "attack": "fcntl.fcntl(f, 1033, 15)",
        "after": "assert os.write(f, b'more') == 4",
        "error": None,
    },
    "pages moved into a pipe": {
        "setup": LIBC
        + """
    r, w = os.pipe()
    os.set_blocking(r, False)
    class Part(ctypes.Structure):
        _fields_ = [('at', ctypes.c_char_p), ('n', ctypes.c_size_t)]
        """,
        "attack": "libc.vmsplice(w, ctypes.byref(Part(b'leak', 4)), ctypes.c_size_t(1), 0)",
    },
    "a pipe moved into a file": {
        "setup": "import os; f = os.open('a.txt', os.O_RDWR)",
        "attack": "r, w = os.pipe(); os.write(w, b'gone'); os.splice(r, f, 4)",
        "needs": "os",
    },
    "a file sent into a socket of before": {
        "setup": "import os, socket; a, b = socket.socketpair(); b.setblocking(False)",
        "attack": "with open('b.bin') as f: os.sendfile(a.fileno(), f.fileno(), 0, 9)",
        "error": None,
    },
    "a file that was sent and is not taken": {
        "setup": """
            import os, socket
            a, b = socket.socketpair()
            f = open('a.txt', 'a')
            n = socket.send_fds(a, [b'x'], [f.fileno()])
        """,
        "attack": "os.write(socket.recv_fds(b, 1, 1)[1][0], b'more')",
        "after": "b.settimeout(1); assert len(socket.recv_fds(b, 1, 1)[1]) == 1",
        "error": None,
    },
    "writing in the background": {
        "setup": CALLS
        + """
    f = os.open('a.txt', os.O_RDWR)
    text = ctypes.create_string_buffer(b'gone')
    order = (ctypes.c_ulong * 8)(0, 0, 1 << 0 | f << 32, ctypes.addressof(text), 4, 0, 0, 0)
    order[2] = 1 | f << 32
        """,
        "attack": """
            context = ctypes.c_ulong(0)
            call(206, 4, ctypes.byref(context))
            call(209, context, ctypes.c_long(1), ctypes.byref(ctypes.pointer(order)))
        """,
        "wait": 0.1,
        "real": False,
    },
    "the size of a pipe": {
        "setup": "import fcntl, os; r, w = os.pipe()",
        "attack": "fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 4096)",
        "after": "assert fcntl.fcntl(w, fcntl.F_GETPIPE_SZ) > 4096",
    },
    "files exchanged": {
        "setup": CALLS,
        "attack": "call(316, -100, b'a.txt', -100, b'data.csv', 2)",
    },
    "a device made": {
        "setup": LIBC,
        "attack": "libc.mknod(b'dev', 0o20666, ctypes.c_ulong(0x103)); libc.mkfifo(b'fifo', 0o600)",
    },
    "times and attributes of an open file": {
        "setup": LIBC + "    f = os.open('a.txt', os.O_RDONLY)",
        "attack": """
            libc.futimens(f, bytes(32))
            libc.fchmod(f, 0)
            libc.fsetxattr(f, b'user.x', b'1', ctypes.c_size_t(1), 0)
            libc.fchown(f, 7, 7)
        """,
    },
    "a file by its handle": {
        "setup": LIBC
        + """
    class Handle(ctypes.Structure):
        _fields_ = [('size', ctypes.c_uint), ('kind', ctypes.c_int), ('data', ctypes.c_char * 128)]
    handle, n = Handle(128), ctypes.c_int()
    x = libc.name_to_handle_at(-100, b'a.txt', ctypes.byref(handle), ctypes.byref(n), 0)
    d = os.open('.', os.O_RDONLY)
        """,
        "attack": """
            f = libc.open_by_handle_at(d, ctypes.byref(handle), os.O_WRONLY | os.O_TRUNC)
            libc.write(f, b'gone', 4)
        """,
        "real": False,
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
