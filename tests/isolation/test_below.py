"""Attacks that were written after all others: below Python, by names of pipes and terminals, and on
what a prediction sends back."""

from __future__ import annotations

EVIL = """
    class Evil(str):
        def __reduce__(self):
            return exec, ("open('a.txt', 'w').write('gone')",)
"""
LIBC = """
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
"""

ATTACKS = {
    "a shared map that can be made writable": {
        "setup": """
            import mmap, ctypes, os
            f = open('b.bin', 'r+b')
            libc = ctypes.CDLL(None)
            libc.mmap.restype = ctypes.c_void_p
            at = libc.mmap(None, 4096, 1, 1, f.fileno(), 0)
        """,
        "attack": """
            libc.mprotect(ctypes.c_void_p(at), 4096, 3)
            ctypes.memset(at, 0x41, 8)
        """,
        "error": None,
    },
    "memory of System V": {
        "setup": """
            import ctypes
            libc = ctypes.CDLL(None)
            libc.shmat.restype = ctypes.c_void_p
            number = libc.shmget(0, 4096, 0o1600)
            at = libc.shmat(number, None, 0)
            libc.shmctl(number, 0, None)
        """,
        "attack": "ctypes.memset(at, 1, 4096)",
        "after": "assert ctypes.string_at(at, 9) == bytes(9)",
        "not_sent": "memory",
    },
    "a named pipe read": {
        "setup": """
            import os
            os.mkfifo('fifo')
            f = os.open('fifo', os.O_RDWR)
            os.write(f, b'waiting')
        """,
        "attack": """
            g = os.open('fifo', os.O_RDONLY | os.O_NONBLOCK)
            print(os.read(g, 99))
        """,
        "error": None,
    },
    "a named pipe written": {
        "setup": "import os; os.mkfifo('fifo'); f = os.open('fifo', os.O_RDWR)",
        "attack": "os.write(os.open('fifo', os.O_WRONLY | os.O_NONBLOCK), b'more')",
    },
    "a named pipe read by libc": {
        "setup": LIBC
        + "    os.mkfifo('fifo')\n    f = os.open('fifo', os.O_RDWR)\n    os.write(f, b'more')",
        "attack": "libc.read(libc.open(b'fifo', os.O_NONBLOCK), ctypes.create_string_buffer(9), 9)",
        "error": None,
    },
    "a named pipe elsewhere that somebody waits at": {
        "setup": """
            import ctypes, os, threading
            path = outside + '/sub/fifo'
            os.mkdir(outside + '/sub')
            os.mkfifo(path)
            os.symlink(outside, 'link')
            live_writing = threading.Thread(target=lambda: open(path, 'w').close(), name='live')
            live_writing.start()
            named = os.open(path, os.O_PATH)
        """,
        "attack": """
            libc = ctypes.CDLL(None)
            for each in (path, 'link/sub/fifo'):
                libc.open(os.fsencode(each), os.O_NONBLOCK)
            assert open('a.txt').read() and open(outside + '/kept.txt').read() == 'kept'
        """,
        "after": "assert live_writing.is_alive(); open(path).close(); live_writing.join()",
        "not_sent": "an open descriptor",
        "wait": 0.1,
    },
    "a terminal read by the name that it had": {
        "setup": """
            import os
            master, slave = os.openpty()
            name = os.ttyname(slave)
            os.write(master, b'typed\\n')
        """,
        "attack": "os.read(os.open(name, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK), 3)",
        "after": """
            import select
            assert select.select([slave], [], [], 0.2)[0] and os.read(slave, 99) == b'typed\\n'
        """,
        "error": None,
    },
    "the size of a terminal": {
        "setup": "import os; master, slave = os.openpty(); name = os.ttyname(slave)",
        "attack": """
            import fcntl, termios, struct
            t = os.open(name, os.O_RDONLY | os.O_NOCTTY)
            fcntl.ioctl(t, termios.TIOCSWINSZ, struct.pack('HHHH', 7, 7, 0, 0))
        """,
        "after": "assert os.get_terminal_size(slave).lines != 7",
        "error": None,
    },
    "the input of a terminal dropped": {
        "setup": """
            import os
            master, slave = os.openpty()
            name = os.ttyname(slave)
            os.write(master, b'typed\\n')
        """,
        "attack": """
            import termios
            termios.tcflush(os.open(name, os.O_RDONLY | os.O_NOCTTY), termios.TCIOFLUSH)
        """,
        "after": """
            import select
            assert select.select([slave], [], [], 0.2)[0] and os.read(slave, 99) == b'typed\\n'
        """,
        "error": None,
    },
    "a terminal made exclusive": {
        "setup": "import os; master, slave = os.openpty(); name = os.ttyname(slave)",
        "attack": """
            import fcntl, termios
            fcntl.ioctl(os.open(name, os.O_RDONLY | os.O_NOCTTY), termios.TIOCEXCL)
        """,
        "after": """
            import fcntl, array
            answer = array.array('i', [0])
            fcntl.ioctl(slave, 0x80045440, answer)
            assert answer[0] == 0
        """,
        "error": None,
    },
    "the output of a terminal stopped": {
        "setup": "import os; master, slave = os.openpty(); name = os.ttyname(slave)",
        "attack": """
            import termios
            termios.tcflow(os.open(name, os.O_RDONLY | os.O_NOCTTY), termios.TCOOFF)
        """,
        "after": """
            import select
            os.set_blocking(slave, False)
            os.write(slave, b'shown')
            assert select.select([master], [], [], 0.2)[0]
        """,
        "error": None,
    },
    "a signal by a pipe that is written": {
        "setup": """
            import os, signal
            user, told = os.getpid(), []
            before = signal.signal(signal.SIGIO, lambda *which: told.append(1))
        """,
        "attack": """
            import fcntl
            r, w = os.pipe()
            fcntl.fcntl(r, fcntl.F_SETOWN, user)
            fcntl.fcntl(r, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
            os.write(w, b'x')
        """,
        "wait": 0.2,
        "error": None,
    },
    "a job's standard input by libc": {
        "setup": """
            import subprocess, ctypes
            job = subprocess.Popen('cat > got.txt', shell=True, stdin=subprocess.PIPE)
            live_wait = __import__('time').sleep(0.2)
        """,
        "attack": "ctypes.CDLL(None).write(job.stdin.fileno(), b'more', 4)",
        "wait": 0.2,
    },
    "a link to a file made in the scratch folder": {
        "setup": LIBC,
        "attack": """
            import tempfile
            place = os.fsencode(tempfile.gettempdir() + '/l')
            if libc.link(b'a.txt', place) == 0:
                libc.truncate(place, 1)
        """,
    },
    "folders in folders": {
        "attack": """
            import os, tempfile
            os.chdir(tempfile.mkdtemp())
            for i in range(1200):
                os.mkdir('d')
                os.chdir('d')
        """,
        "real": False,
        "error": None,
    },
    "folders that nobody may enter": {
        "attack": """
            import os, tempfile
            os.umask(0o777)
            d = tempfile.mkdtemp()
            os.makedirs(d + '/x', 0)
        """,
    },
    "pages of a map removed": {
        "setup": """
            import mmap
            f = open('big.bin', 'w+b')
            n = f.write(b'x' * 8192)
            f.flush()
            m = mmap.mmap(f.fileno(), 0)
        """,
        "attack": "m.madvise(mmap.MADV_REMOVE)",
        "error": None,
    },
    "a manager of before": {
        "setup": """
            import multiprocessing
            m = multiprocessing.get_context('fork').Manager()
            d = m.dict(a=1)
        """,
        "attack": "d['a'] = 2",
        "after": "assert d['a'] == 1; m.shutdown()",
        "error": None,
    },
    "a log ahead of a database of before": {
        "setup": """
            import sqlite3
            c = sqlite3.connect('d.db', isolation_level=None)
            c.execute('create table t (x)')
        """,
        "attack": """
            c.execute('pragma journal_mode=wal'); c.execute('insert into t values (1)')
            c.cursor().execute("PRAGMA journal_mode = 'delete'")
            assert c.execute('select * from t').fetchall() == [(1,)]
        """,
        "after": "assert not c.execute('select * from t').fetchall()",
        "says": "Fits",
    },
    "a log ahead of sqlite": {
        "setup": """
            import sqlite3
            c = sqlite3.connect('d.db', isolation_level=None)
            c.execute('pragma journal_mode=wal')
            c.execute('create table t (x)')
        """,
        "attack": "c.execute('insert into t values (1)'); c.execute('pragma wal_checkpoint')",
        "after": """
            assert not c.execute('select * from t').fetchall()
            c.execute('insert into t values (2)')
            assert c.execute('select * from t').fetchall() == [(2,)]
            assert c.execute('pragma integrity_check').fetchall() == [('ok',)]
        """,
        "error": None,
    },
    "a database by its class, attached and copied": {
        "setup": """
            import sqlite3
            c = sqlite3.connect('d.db')
            c.execute('create table t (x)')
            c.commit()
        """,
        "attack": """
            d = sqlite3.Connection('d.db')
            d.execute('insert into t values (1)')
            d.commit()
            e = sqlite3.connect(':memory:')
            e.execute('attach ? as d', ('d.db',))
            assert e.execute('select x from d.t').fetchall() == [(1,)]
            e.executescript("select 1; /* a new one */ attach database 'it''s new.db' as n; create table n.t (x)")
            d.execute('vacuum into :to', {'to': 'v.db'})
            assert sqlite3.connect('v.db').execute('select x from t').fetchall() == [(1,)]
            import os
            assert os.path.exists("it's new.db")
        """,
        "after": "assert not c.execute('select * from t').fetchall()",
        "error": None,
    },
    "a file without open": {
        "attack": """
            import io
            with io.FileIO('a.txt', 'w') as f:
                f.write(b'mine')
            assert f.name == 'a.txt'
            assert io.FileIO('a.txt').read() == open('a.txt', 'rb').read() == b'mine'
        """,
        "error": None,
    },
    "memory that others may share": {
        "setup": """
            from multiprocessing.shared_memory import SharedMemory
            s = SharedMemory(create=True, size=9)
        """,
        "attack": """
            from multiprocessing.shared_memory import SharedMemory
            t = SharedMemory(create=True, size=9)
            t.buf[0] = 1
            assert SharedMemory(t.name).buf[0] == 1
            t.unlink()
            SharedMemory(s.name).buf[0] = 2
        """,
        "after": "assert s.buf[0] == 0; s.close(); s.unlink()",
        "error": None,
        "not_sent": "memory that is shared",
    },
    "a server of the cell": {
        "attack": """
            import http.server, threading
            s = http.server.HTTPServer(('', 0), http.server.BaseHTTPRequestHandler)
            t = threading.Thread(target=s.serve_forever, daemon=True)
            t.start()
            s.shutdown()
            s.socket.settimeout(1000)
            try:
                s.socket.accept()
            except TimeoutError:
                pass
        """,
        "error": None,
    },
    "a handler that waits for children": {
        "setup": """
            import os, signal
            def reap(*which):
                try:
                    os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    pass
            before = signal.signal(signal.SIGCHLD, reap)
        """,
        "attack": "before = 1",
        "repeat": 3,
    },
    "an error that pickles as a call": {
        "setup": EVIL,
        "attack": """
            class Wrong(Exception):
                def __str__(self):
                    return Evil('text')
            raise Wrong()
        """,
        "error": "text",
        "real": False,
    },
    "a name that pickles as a call": {
        "setup": EVIL,
        "attack": """
            import torch
            globals()[Evil('weights')] = torch.ones(1 << 20, device='cuda')
        """,
        "real": False,
        "error": None,
    },
    "a class whose name pickles as a call": {
        "setup": EVIL,
        "attack": """
            import torch
            class Net(torch.nn.Linear):
                pass
            Net.__name__ = Net.__qualname__ = Evil('Net')
            net = Net(512, 512, device='cuda')
            net.register_parameter(Evil('more'), torch.nn.Parameter(torch.ones(1 << 20, device='cuda')))
            net(torch.ones(8, 512, device='cuda')).sum().backward()
        """,
        "real": False,
        "error": None,
    },
    "a call written into all descriptors": {
        "attack": """
            import os, pickle
            class Evil:
                def __reduce__(self):
                    return exec, ("open('a.txt', 'w').write('gone')",)
            for number in range(3, 200):
                try:
                    os.write(number, pickle.dumps(Evil()))
                except OSError:
                    pass
        """,
        "real": False,
        "error": None,
    },
    "a call in place of the answer": {
        "attack": """
            import pickle
            class Evil:
                def __reduce__(self):
                    return exec, ("open('a.txt', 'w').write('gone')",)
            import gpumem_magic.isolation.child as child
            evil = pickle.dumps(Evil())
            child._dumps = lambda *args: evil
        """,
        "real": False,
        "error": None,
    },
    "an error of a module of the cell": {
        "attack": """
            from pathlib import Path
            import sys
            sys.path.insert(0, '.')
            import counted
            class Wrong(Exception):
                def __reduce__(self):
                    return exec, ("import counted; counted.call(3)",)
            from gpumem_magic.virtual.source import VirtualSource
            def stop(*args):
                raise Wrong()
            VirtualSource.stop = stop
        """,
        "real": False,
        "error": None,
    },
    "no descriptors and a loop without end": {
        "attack": """
            import os
            os.closerange(3, 300)
            while True:
                pass
        """,
        "real": False,
        "error": True,
    },
    "the answer flooded": {
        "attack": """
            import os
            while True:
                for number in range(3, 60):
                    try:
                        os.write(number, b'x' * 60000)
                    except OSError:
                        pass
        """,
        "real": False,
        "error": True,
        "options": "--timeout 2",
    },
    "everything closed": {
        "attack": """
            import gc
            for each in gc.get_objects():
                try:
                    if hasattr(type(each), 'close'):
                        each.close()
                except BaseException:
                    pass
        """,
        "error": None,
        "real": False,
    },
    "a process started by libc": {
        "setup": LIBC,
        "attack": "libc.popen(b'touch n', b'r')",
        "error": None,
        "wait": 0.2,
    },
    "by cffi": {
        "attack": """
            import cffi
            ffi = cffi.FFI()
            ffi.cdef("int unlink(const char *); int truncate(const char *, long);")
            c = ffi.dlopen(None)
            c.unlink(b'a.txt'); c.truncate(b'b.bin', 3)
        """,
        "needs": "cffi",
    },
    "a watch of files of before": {
        "setup": LIBC + "\n    n = libc.inotify_init1(0o4000)",
        "attack": "libc.inotify_add_watch(n, b'.', 0xfff)",
        "after": """
            open('n', 'w').close()
            try:
                assert not os.read(n, 99)
            except BlockingIOError:
                pass
        """,
    },
    "a timer with a descriptor": {
        "setup": LIBC + "\n    n = libc.timerfd_create(1, 0o4000)",
        "attack": """
            libc.timerfd_settime(n, 0, (ctypes.c_long * 4)(0, 0, 0, 1000), None)
        """,
        "after": """
            try:
                assert not os.read(n, 8)
            except BlockingIOError:
                pass
        """,
        "wait": 0.1,
    },
}


def test_nothing_outside_changes(attack, play):
    play(attack)
