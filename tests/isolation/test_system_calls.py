"""Attacks by calls of the system and by registries that ordinary code seldom uses."""

from __future__ import annotations

ATTACKS = {
    "sendfile": {
        "setup": "import os; src = open('a.txt','rb'); dst = open('w.txt','wb+', buffering=0)",
        "attack": "os.sendfile(dst.fileno(), src.fileno(), 0, 5)",
        "after": "assert os.fstat(dst.fileno()).st_size == 0",
    },
    "splice": {
        "setup": """
            import os
            r, w = os.pipe()
            n = os.write(w, b'waiting')
            dst = open('w.txt','wb+', buffering=0)
        """,
        "attack": "os.splice(r, dst.fileno(), 7)",
        "after": "assert os.read(r, 9) == b'waiting'",
    },
    "tee": {
        "setup": """
            import os, ctypes
            r, w = os.pipe()
            n = os.write(w, b'waiting')
            r2, w2 = os.pipe()
        """,
        "attack": "print(ctypes.CDLL(None).tee(r, w2, 7, 0))",
        "after": """
            os.set_blocking(r2, False)
            try:
                os.read(r2, 9)
                raise AssertionError
            except BlockingIOError:
                pass
        """,
    },
    "vmsplice": {
        "setup": "import os; r, w = os.pipe(); os.set_blocking(r, False)",
        "attack": """
            import ctypes
            class V(ctypes.Structure): _fields_=[('b',ctypes.c_char_p),('n',ctypes.c_size_t)]
            v = V(b'leak', 4)
            ctypes.CDLL(None).vmsplice(w, ctypes.byref(v), 1, 0)
        """,
        "after": """
            try:
                os.read(r, 9)
                raise AssertionError
            except BlockingIOError:
                pass
        """,
    },
    "a lock of a whole file": {
        "setup": "import fcntl; f = open('a.txt'); fcntl.flock(f, fcntl.LOCK_EX)",
        "attack": "fcntl.flock(f, fcntl.LOCK_UN)",
        "after": """
            g = open('a.txt')
            try:
                fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
                raise AssertionError
            except BlockingIOError:
                pass
        """,
    },
    "a lease": {
        "setup": "import fcntl; f = open('a.txt')",
        "attack": "fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK)",
        "after": "assert fcntl.fcntl(f, fcntl.F_GETLEASE) == fcntl.F_UNLCK",
    },
    "the size of a pipe": {
        "setup": "import os, fcntl; r, w = os.pipe(); n = fcntl.fcntl(w, 1032)",
        "attack": "fcntl.fcntl(w, 1031, 4096)",
        "after": "assert fcntl.fcntl(w, 1032) == n",
    },
    "the owner of a descriptor": {
        "setup": "import os, fcntl, socket; a, b = socket.socketpair()",
        "attack": """
            fcntl.fcntl(a, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        """,
        "after": """
            assert fcntl.fcntl(a, fcntl.F_GETOWN) == 0 and not fcntl.fcntl(a, fcntl.F_GETFL) & (os.O_ASYNC | os.O_NONBLOCK)
        """,
    },
    "a descriptor sent by a socket": {
        "setup": """
            import socket, os, array
            a, b = socket.socketpair()
            f = open('a.txt','rb', buffering=0)
        """,
        "attack": "socket.send_fds(a, [b'x'], [f.fileno()])",
        "after": """
            b.setblocking(False)
            try:
                b.recv(1)
                raise AssertionError
            except BlockingIOError:
                pass
        """,
    },
    "a descriptor that waits in a socket": {
        "setup": """
            import socket, os
            a, b = socket.socketpair()
            f = open('a.txt','rb', buffering=0)
            n = socket.send_fds(a, [b'x'], [f.fileno()])
        """,
        "attack": "socket.recv_fds(b, 1, 1)",
        "after": """
            m, fds, *_ = socket.recv_fds(b, 1, 1)
            assert m == b'x' and fds
        """,
    },
    "a queue of messages": {
        "attack": """
            import ctypes, os
            c = ctypes.CDLL(None, use_errno=True)
            q = c.mq_open(b'/isolation_q', os.O_CREAT | os.O_RDWR, 0o600, None)
            c.mq_send(q, b'x', 1, 0)
        """,
        "after": """
            import ctypes, os
            c = ctypes.CDLL(None, use_errno=True)
            assert c.mq_open(b'/isolation_q', os.O_RDWR) < 0, c.mq_unlink(b'/isolation_q')
        """,
    },
    "a semaphore of System V": {
        "setup": """
            import ctypes; c = ctypes.CDLL(None, use_errno=True); s = c.semget(0, 1, 0o1600)
        """,
        "attack": "c.semctl(s, 0, 16, 7)",
        "after": """
            v = c.semctl(s, 0, 12); c.semctl(s, 0, 0)
            assert v == 0, v
        """,
    },
    "a message of System V": {
        "setup": "import ctypes; c = ctypes.CDLL(None, use_errno=True); s = c.msgget(0, 0o1600)",
        "attack": """
            b = ctypes.create_string_buffer(b'\\1\\0\\0\\0\\0\\0\\0\\0leak')
            print(c.msgsnd(s, b, 4, 0))
        """,
        "after": """
            b = ctypes.create_string_buffer(100)
            n = c.msgrcv(s, b, 50, 0, 0o4000)
            c.msgctl(s, 0, 0)
            assert n < 0, n
        """,
    },
    "memory written from outside": {
        "setup": """
            import ctypes, os; buf = ctypes.create_string_buffer(b'kept'); pid = os.getpid()
        """,
        "attack": """
            class V(ctypes.Structure): _fields_=[('b',ctypes.c_void_p),('n',ctypes.c_size_t)]
            new = ctypes.create_string_buffer(b'gone')
            a, b = V(ctypes.addressof(new), 4), V(ctypes.addressof(buf), 4)
            print(ctypes.CDLL(None, use_errno=True).process_vm_writev(os.getppid(), ctypes.byref(a), 1, ctypes.byref(b), 1, 0))
            ctypes.CDLL(None).process_vm_writev(pid, ctypes.byref(a), 1, ctypes.byref(b), 1, 0)
        """,
        "after": "assert buf.value == b'kept'",
    },
    "a signal by the number of a process": {
        "setup": """
            import os, signal
            hits = []
            signal.signal(signal.SIGUSR1, lambda *a: hits.append(1))
            pid = os.getpid()
        """,
        "attack": "p = os.pidfd_open(pid); signal.pidfd_send_signal(p, signal.SIGUSR1)",
        "after": "assert not hits; signal.signal(signal.SIGUSR1, signal.SIG_DFL)",
    },
    "a timer that is a descriptor": {
        "setup": "import ctypes, os; c = ctypes.CDLL(None); t = c.timerfd_create(1, 0o4000)",
        "attack": """
            b = (ctypes.c_long*4)(0,0,0,1000)
            print(c.timerfd_settime(t, 0, b, None))
            import time
            time.sleep(.05)
        """,
        "after": """
            try:
                os.read(t, 8); raise AssertionError
            except BlockingIOError:
                pass
        """,
    },
    "a file by the folder of a process": {
        "setup": """
            import os
            pid = os.getpid()
            f = open('w.txt','w')
            n = f.write('one')
            f.flush()
        """,
        "attack": """
            open(f'/proc/{pid}/fd/{f.fileno()}', 'w').write('two')
            open(f'/proc/{pid}/cwd/new.txt', 'w').write('x')
            open(f'/proc/{pid}/comm', 'w').write('gone')
        """,
        "after": "assert open('w.txt').read() == 'one' and not os.path.exists('new.txt')",
    },
    "openat2": {
        "setup": "import os, ctypes",
        "attack": """
            h = (ctypes.c_uint64*3)(0o102, 0o644, 0)
            print(ctypes.CDLL(None, use_errno=True).syscall(437, -100, b'new2.txt', h, 24))
        """,
        "after": "assert not os.path.exists('new2.txt')",
    },
    "a second name for a file": {
        "setup": "import os, ctypes",
        "attack": """
            print(ctypes.CDLL(None, use_errno=True).syscall(316, -100, b'a.txt', -100, b'c2.txt', 0))
        """,
        "after": "assert os.path.exists('a.txt')",
    },
    "an operator defined": {
        "setup": "import torch",
        "attack": """
            lib = torch.library.Library('isolation_ns', 'DEF')
            lib.define('f(Tensor x) -> Tensor')
            lib.impl('f', lambda x: x + 1, 'CPU')
            print(torch.ops.isolation_ns.f(torch.ones(1)))
        """,
        "after": """
            try:
                torch.ops.isolation_ns.f; raise SystemError
            except AttributeError: pass
        """,
    },
    "an operator replaced": {
        "setup": "import torch",
        "attack": """
            lib = torch.library.Library('aten', 'IMPL')
            lib.impl('sin', lambda x: x * 0 + 7, 'CPU')
            print(torch.sin(torch.zeros(1)))
        """,
        "after": "assert torch.sin(torch.zeros(1)).item() == 0",
    },
    "a hook of a tensor of before": {
        "setup": """
            import torch
            got = []
            w = torch.ones(2, device='cuda', requires_grad=True)
            h = w.register_hook(got.append)
            l = (w * 2).sum()
        """,
        "attack": "l.backward()",
        "after": "assert not got and w.grad is None; l.backward(); assert len(got) == 1",
    },
    "a write that goes on meanwhile": {
        "setup": "import ctypes; f = open('w.txt','wb', buffering=0)",
        "attack": """
            class A(ctypes.Structure): _fields_=[('fd',ctypes.c_int),('op',ctypes.c_int),('prio',ctypes.c_int),('buf',ctypes.c_void_p),('n',ctypes.c_size_t),('pad',ctypes.c_char*128)]
            b = ctypes.create_string_buffer(b'leak')
            a = A(f.fileno(), 0, 0, ctypes.addressof(b), 4)
            c = ctypes.CDLL(None)
            try: print(c.aio_write(ctypes.byref(a)))
            except AttributeError: print(ctypes.CDLL('librt.so.1').aio_write(ctypes.byref(a)))
            import time; time.sleep(.3)
        """,
        "after": "import os; assert os.fstat(f.fileno()).st_size == 0",
    },
}


def test_attack(play, attack):
    play(attack)
