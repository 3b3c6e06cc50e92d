"""Attacks through what the system keeps for many processes: signals, queues, terminals, networks,
keys, priorities, and through processes made by its calls."""

from __future__ import annotations

LIBC = """
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    me = os.getpid()
"""
TERMINAL = (
    LIBC
    + """
    master, slave = os.openpty()
    name = os.ttyname(slave).encode()
"""
)
WAITING = """
    import select
    assert select.select([slave], [], [], 0.2)[0] and os.read(slave, 99) == b'typed\\n'
"""
GROUPS = (
    LIBC
    + """
    import os, socket, threading, time
    live_seen, live_over = [], threading.Event()
    live_groups = os.open('/proc/net/igmp', os.O_RDONLY)  # once: what is open is compared, too
    def live_work():
        while not live_over.is_set():
            live_seen.append(b'E1E1E1E1' in os.pread(live_groups, 1 << 16, 0))
            time.sleep(0.001)
    live_thread = threading.Thread(target=live_work, daemon=True, name='live')
    live_thread.start()
"""
)
CALLS = LIBC + "    call = libc.syscall\n    call.restype = ctypes.c_long\n"

ATTACKS = {
    "a signal by a socket's owner": {
        "setup": """
            import os, signal
            user, told = os.getpid(), []
            before = signal.signal(signal.SIGURG, lambda *which: told.append(1))
            before = signal.signal(signal.SIGUSR1, lambda *which: told.append(2))
        """,
        "attack": """
            import fcntl, socket, struct
            a, b = socket.socketpair()
            fcntl.ioctl(a, 0x8901, struct.pack('i', user))
            fcntl.fcntl(a, fcntl.F_SETSIG, signal.SIGUSR1)
            fcntl.fcntl(a, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
            b.send(b'x')
        """,
        "wait": 0.2,
        "error": None,
    },
    "a signal by the queue": {
        "setup": LIBC
        + """
    import signal
    told = []
    before = signal.signal(signal.SIGUSR1, lambda *which: told.append(1))
        """,
        "attack": "libc.sigqueue(me, 10, ctypes.c_void_p(3)); libc.tgkill(me, me, 10)",
        "wait": 0.1,
    },
    "a signal by a descriptor and libc": {
        "setup": CALLS
        + """
    import subprocess
    p = subprocess.Popen(['sleep', '60'])
    f = os.pidfd_open(p.pid)
        """,
        "attack": "call(424, f, 9, None, 0)",
        "after": "assert p.poll() is None; p.kill(); p.wait(); os.close(f)",
    },
    "the user's process traced": {
        "setup": LIBC,
        "attack": "libc.ptrace(ctypes.c_long(16), ctypes.c_long(os.getppid()), None, None)",
    },
    "semaphores of System V": {
        "setup": LIBC
        + """
    s = libc.semget(0, 1, 0o1600)
    one = (ctypes.c_short * 3)(0, 1, 0)
        """,
        "attack": "libc.semop(s, one, ctypes.c_size_t(1))",
        "after": "assert libc.semctl(s, 0, 12) == 0; libc.semctl(s, 0, 0)",
    },
    "messages of System V": {
        "setup": LIBC
        + """
    q = libc.msgget(0, 0o1600)
    message = (ctypes.c_long * 2)(1, 7)
        """,
        "attack": "libc.msgsnd(q, message, ctypes.c_size_t(8), 0); libc.msgctl(q, 0, None)",
        "after": """
            assert libc.msgrcv(q, message, ctypes.c_size_t(8), 0, 0o4000) == -1
            assert ctypes.get_errno() == 42
            assert libc.msgctl(q, 0, None) == 0
        """,
    },
    "a semaphore with a name": {
        "setup": LIBC
        + """
    libc.sem_open.restype = ctypes.c_void_p
    s = ctypes.c_void_p(libc.sem_open(b'/isolation_s', os.O_CREAT, 0o600, 2))
    n = ctypes.c_int()
        """,
        "attack": "libc.sem_post(s); libc.sem_unlink(b'/isolation_s')",
        "after": """
            libc.sem_getvalue(s, ctypes.byref(n))
            assert n.value == 2
            assert libc.sem_unlink(b'/isolation_s') == 0
        """,
    },
    "a queue with a name": {
        "setup": LIBC + "    q = libc.mq_open(b'/isolation_q', os.O_CREAT | os.O_RDWR, 0o600, None)",
        "attack": "libc.mq_send(q, b'leak', ctypes.c_size_t(4), 1); libc.mq_unlink(b'/isolation_q')",
        "after": "assert libc.mq_unlink(b'/isolation_q') == (0 if q > 0 else -1)",
        "real": False,
    },
    "a terminal's modes by an old call": {
        "setup": TERMINAL,
        "attack": """
            t = libc.open(name, os.O_RDONLY | os.O_NOCTTY)
            old = ctypes.create_string_buffer(60)
            libc.ioctl(t, 0x5405, old)
            libc.ioctl(t, 0x5406, bytes(60))
            libc.ioctl(t, 0x402C542B, bytes(60))
        """,
        "after": "import termios; assert termios.tcgetattr(slave)[3] & termios.ECHO",
    },
    "a terminal's modes": {
        "setup": "import os, termios; master, slave = os.openpty()",
        "attack": "import tty; tty.setraw(slave); tty.setraw(master)",
        "after": "assert termios.tcgetattr(slave)[3] & termios.ECHO",
        "error": None,
    },
    "a terminal read by libc": {
        "setup": TERMINAL + "    n = os.write(master, b'typed\\n')",
        "attack": """
            t = libc.open(name, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
            libc.read(t, ctypes.create_string_buffer(99), 99)
        """,
        "after": WAITING,
    },
    "a terminal taken as one's own": {
        "setup": TERMINAL + "    n = os.write(master, b'typed\\n')",
        "attack": "t = libc.open(name, os.O_RDONLY)",
        "after": WAITING,
        "wait": 0.1,
        "real": False,
    },
    "a terminal typed into": {
        "setup": TERMINAL,
        "attack": "os.write(master, b'typed\\n')",
        "after": "import select; assert not select.select([slave], [], [], 0.1)[0]",
    },
    "an event written by libc": {
        "setup": LIBC + "    e = os.eventfd(3)",
        "attack": "libc.eventfd_write(e, ctypes.c_ulong(5))",
        "after": "assert os.eventfd_read(e) == 3",
    },
    "events added by libc": {
        "setup": LIBC
        + """
    import select
    e = select.epoll()
    r, w = os.pipe()
    n = os.write(w, b'x')
        """,
        "attack": "libc.epoll_ctl(e.fileno(), 1, r, b'\\1' + bytes(11))",
        "after": "assert not e.poll(0)",
    },
    "a watch of all files": {
        "setup": CALLS + "    f = call(300, 0, 0)",
        "attack": "call(301, f, 1, ctypes.c_ulong(0xFF), -100, b'.')",
        "real": False,
    },
    "a message to a socket without a file": {
        "setup": """
            import os, socket
            address = f'\\0isolation-{os.getpid()}'
            s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            s.bind(address)
            s.setblocking(False)
        """,
        "attack": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'leak', address)",
    },
    "a message to a socket without a file by libc": {
        "setup": LIBC
        + """
    import socket
    address = b'\\1\\0\\0isolation-%d' % os.getpid()
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind(address[2:])
    s.setblocking(False)
        """,
        "attack": """
            t = libc.socket(1, 2, 0)
            libc.sendto(t, b'leak', ctypes.c_size_t(4), 0, address, len(address))
            libc.connect(t, address, len(address))
            libc.send(t, b'leak', ctypes.c_size_t(4), 0)
        """,
    },
    "a group of the network": {
        "setup": GROUPS,
        "attack": """
            s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            group = socket.inet_aton('225.225.225.225') + socket.inet_aton('127.0.0.1')
            s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
            import ctypes; ctypes.CDLL(None).usleep(300_000)
        """,
        "after": "live_over.set(); live_thread.join(); assert not any(live_seen)",
        "error": None,
    },
    "a group of the network by libc": {
        "setup": GROUPS,
        "attack": """
            t = libc.socket(2, 2, 0)
            group = socket.inet_aton('225.225.225.225') + socket.inet_aton('127.0.0.1')
            libc.setsockopt(t, 0, 35, group, 8)
            import ctypes; ctypes.CDLL(None).usleep(300_000)
        """,
        "after": "live_over.set(); live_thread.join(); assert not any(live_seen)",
    },
    "other networks": {
        "attack": """
            import socket
            for family, kind, protocol in [
                (16, 3, 0), (17, 3, 3), (40, 1, 0), (38, 5, 0), (2, 3, 1), (2, 1, 132), (10, 5, 132),
                (2, 6, 33), (10, 3, 58), (44, 3, 0),
            ]:
                try:
                    socket.socket(family, kind, protocol)
                except OSError:
                    continue
                raise RuntimeError(f'{family} {kind} {protocol}')
        """,
        "real": False,
    },
    "a key": {
        "setup": CALLS
        + """
    key = call(248, b'user', b'isolation', b'old', ctypes.c_size_t(3), ctypes.c_long(-2))
    text = ctypes.create_string_buffer(9)
        """,
        "attack": "call(248, b'user', b'isolation', b'new', ctypes.c_size_t(3), ctypes.c_long(-2))",
        "after": """
            if key > 0:
                call(250, 11, ctypes.c_long(key), text, ctypes.c_size_t(9))
                assert text.value == b'old'
        """,
        "real": False,
    },
    "files of a user's process by libc": {
        "setup": LIBC + "    look = lambda name: open(f'/proc/self/{name}').read()\n"
        "    was = [look(name) for name in ('comm', 'oom_score_adj', 'coredump_filter', 'timerslack_ns')]",
        "attack": """
            for name in ('comm', 'oom_score_adj', 'coredump_filter', 'timerslack_ns', 'clear_refs'):
                f = libc.open(f'/proc/{me}/{name}'.encode(), os.O_WRONLY)
                libc.write(f, b'7', 1)
            f = libc.open(f'/proc/{me}/task/{me}/comm'.encode(), os.O_WRONLY)
            libc.write(f, b'other', 5)
        """,
        "after": "assert was == [look(n) for n in ('comm', 'oom_score_adj', 'coredump_filter', 'timerslack_ns')]",
    },
    "priorities of a group by libc": {
        "setup": CALLS,
        "attack": """
            libc.setpriority(1, os.getpgid(me), 7)
            call(251, 1, me, 3 << 13)
        """,
        "after": "assert os.getpriority(os.PRIO_PROCESS, 0) < 7",
        "real": False,
    },
    "a dump of the memory": {
        "setup": "import os, resource",
        "attack": """
            resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))
            resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
            os.abort()
        """,
        "error": True,
        "wait": 0.3,
    },
    "a process by system calls": {
        "setup": CALLS,
        "attack": """
            for number, flags in (57, 0), (58, 0), (56, 17), (56, 0x4111), (435, 0):
                if call(number, ctypes.c_long(flags), None, None, None, None) == 0:
                    libc.creat(b'n', 0o600)
                    libc._exit(0)
        """,
        "real": False,
    },
    "a process by posix spawn of libc": {
        "setup": LIBC,
        "attack": """
            words = (ctypes.c_char_p * 3)(b'touch', b'n', None)
            libc.posix_spawn(ctypes.byref(ctypes.c_int()), b'/usr/bin/touch', None, None, words, None)
        """,
        "wait": 0.3,
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
