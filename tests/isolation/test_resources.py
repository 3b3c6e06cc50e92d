"""Attacks that do not end, take everything, or wait for what never comes; and repeated ones."""

from __future__ import annotations

SOON = {"options": "--timeout 1", "limit": 6, "real": False}
ENDED = {**SOON, "error": True}
"""It never ends by itself: the prediction ends it after 1 s, and says so."""
FEW = """
    import resource
    used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30), resource.RLIM_INFINITY))
"""
"""3 GiB more than now, so that the machine that runs the tests lives."""
LIMITED = {"setup": FEW, "error": True, "limit": 25, "real": False}

ATTACKS = {
    "an engine of before, with a connection in its pool": {
        "needs": "sqlalchemy",
        "setup": """
            import sqlalchemy
            engine = sqlalchemy.create_engine("sqlite:///real.db")
            with engine.begin() as connection:
                connection.execute(sqlalchemy.text("create table t (x)"))
        """,
        "attack": """
            with engine.begin() as connection:
                connection.execute(sqlalchemy.text("insert into t values (3)"))
                found = connection.execute(sqlalchemy.text("select * from t")).fetchall()
            assert found == [(3,)]
        """,
        "after": """
            with engine.begin() as connection:
                assert not connection.execute(sqlalchemy.text("select * from t")).fetchall()
        """,
    },
    "a loop without end": {"attack": "while True: pass", **ENDED},
    "a loop that counts": {"attack": "n = 0\nwhile n >= 0: n += 1", **ENDED},
    "a loop that writes": {"attack": "while True: open('a.txt', 'a').write('x')", **ENDED},
    "a loop over numbers": {
        "attack": "import itertools\nfor n in itertools.count(): x = n",
        **ENDED,
        "error": None,
    },
    "a loop that catches everything": {
        "attack": """
            while True:
                try:
                    while True: pass
                except BaseException:
                    pass
        """,
        **ENDED,
    },
    "a loop that ignores signals": {
        "attack": """
            import signal
            for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1):
                signal.signal(n, signal.SIG_IGN)
            while True: pass
        """,
        **ENDED,
    },
    "a loop in C": {"attack": "import re; re.match('(a+)+$', 'a' * 60 + 'b')", **ENDED},
    "a power": {"attack": "x = 7 ** (10 ** 9)", **ENDED},
    "a sum": {"attack": "sum(iter(int, 1))", **ENDED},
    "a loop in a thread": {
        "attack": "import threading\ndef f():\n    while True: pass\nthreading.Thread(target=f).start()",
        **SOON,
        "error": None,
    },
    "a loop in a thread that is joined": {
        "attack": "import threading\ndef f():\n    while True: pass\nt = threading.Thread(target=f)\n"
        "t.start()\nt.join()",
        **SOON,
        "error": None,
    },
    "a loop in a finalizer": {
        "attack": "class F:\n    def __del__(self):\n        while True: pass\nf = F()\ndel f",
        **ENDED,
    },
    "a loop that prints": {"attack": "while True: print('x' * 1000)", **ENDED},
    "recursion": {"attack": "def f(): return f()\nf()", "error": "RecursionError", "real": False},
    "recursion without a limit": {
        "attack": "import sys; sys.setrecursionlimit(10 ** 9)\n"
        "def f(x): return list(map(f, [x]))\nf([])",
        "error": True,
        "limit": 25,
        "options": "--timeout 15",
    },
    "recursion in C": {
        "attack": "import sys; sys.setrecursionlimit(10 ** 9); x = []\nfor n in range(10 ** 6): x = [x]\nrepr(x)",
        "error": None,
        "limit": 25,
        "options": "--timeout 15",
    },
    "100 GB at once": {"attack": "b = bytearray(100 << 30); b[::4096] = b'x' * (25 << 20)", **LIMITED},
    "a list that grows": {"attack": "x = []\nwhile True: x.append(bytearray(10 << 20))", **LIMITED},
    "a tensor of the host": {"attack": "import torch; x = torch.ones(100 << 30, dtype=torch.uint8)",
                             **LIMITED, "error": None},
    "an array": {"attack": "import numpy as np; x = np.ones(13 << 30)", **LIMITED, "error": None},
    "a text that grows": {"attack": "x = 'x'\nwhile True: x += x", **LIMITED},
    "many files": {"attack": "for n in range(3000): open(f'many{n}', 'w').close()"},
    "many descriptors": {
        "attack": "x = [open('a.txt') for n in range(100_000)]",
        "setup": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500))",
        "error": True,
        "real": False,
    },
    "many processes": {"attack": "import os\nfor n in range(20):\n    if os.fork() == 0: os._exit(0)", "real": False},
    "sleep": {"attack": "import time; time.sleep(3600)", "limit": 10, "real": False},
    "sleep kept from before": {
        "setup": "from time import sleep",
        "attack": "for n in range(100): sleep(60)",
        "limit": 10,
        "real": False,
    },
    "sleep of asyncio": {"attack": "import asyncio; await asyncio.sleep(3600)", "limit": 10, "real": False},
    "sleep of libc": {"attack": "import ctypes; ctypes.CDLL(None).sleep(60)", **ENDED, "error": None},
    "input": {"attack": "x = input('name? ')", "error": True, "limit": 10},
    "a password": {"attack": "import getpass; x = getpass.getpass()", "error": True, "limit": 10, "real": False},
    "input of the stream": {"attack": "import sys; x = sys.stdin.read()", "error": True, "limit": 10},
    "a debugger": {"attack": "x = 1\nbreakpoint()\nopen('new.txt', 'w').close()", "error": None, "limit": 10,
                   "real": False},
    "a debugger by its name": {"attack": "import pdb; pdb.set_trace()", "error": None, "limit": 10, "real": False},
    "a console": {"attack": "import code; code.interact()", "error": None, "limit": 10, "real": False},
    "a browser": {"attack": "import webbrowser; webbrowser.open('http://%s:%s/' % tuple(tcp))", "limit": 10,
                  "real": False},
    "a lock that is held": {
        "setup": "import threading; lock = threading.Lock(); x = lock.acquire()",
        "attack": "lock.acquire()",
        **ENDED,
        "after": "assert lock.locked()\nlock.release()",
    },
    "a lock that a thread holds": {
        "setup": """
            import threading
            lock, go = threading.Lock(), threading.Event()
            def hold():
                with lock: go.wait()
            live_thread = threading.Thread(target=hold, daemon=True)
            live_thread.start()
            while not lock.locked(): pass
        """,
        "attack": "with lock: x = 1",
        **ENDED,
        "error": None,
        "limit": 20,
        "after": "go.set(); live_thread.join()\nassert not lock.locked()",
    },
    "a thread of the user is joined": {
        "setup": """
            import threading
            go = threading.Event()
            live_thread = threading.Thread(target=go.wait, daemon=True)
            live_thread.start()
        """,
        "attack": "live_thread.join()",
        **SOON,
        "error": None,
        "after": "go.set(); live_thread.join(5)\nassert not live_thread.is_alive()",
    },
    "an empty queue": {"setup": "import queue; q = queue.Queue()", "attack": "q.get()", **ENDED, "error": None},
    "an event": {"attack": "import threading; threading.Event().wait()", **SOON, "error": None},
    "a condition": {"attack": "import threading\nc = threading.Condition()\nwith c: c.wait()", **SOON, "error": None},
    "a future": {"attack": "from concurrent.futures import Future; Future().result()", **SOON, "error": None},
    "an empty pipe": {"setup": "import os; r, w = os.pipe()", "attack": "os.read(r, 1)", **SOON, "error": None},
    "a silent socket": {
        "setup": "import socket; s = socket.create_connection(tcp)",
        "attack": "s.recv(1)",
        **SOON,
        "error": None,
    },
    "select": {"attack": "import select; select.select([], [], [])", **SOON, "error": None},
    "a signal awaited": {"attack": "import signal; signal.pause()", **SOON, "error": None},
    "a job awaited": {
        "setup": "import subprocess; p = subprocess.Popen(['sleep', '60'])",
        "attack": "p.wait()",
        **SOON,
        "error": None,
        "after": "assert p.poll() is None\np.kill()\nx = p.wait()",
    },
    "a loop that runs forever": {"attack": "import asyncio; asyncio.new_event_loop().run_forever()", **SOON,
                                 "error": None},
    "ten in a row": {
        "setup": "import torch; x = torch.ones(3, device='cuda'); f = open('a.txt')",
        "attack": "x.zero_(); f.read(); y = x * 2\nopen('new.txt', 'w').close()",
        "after": "assert x.sum().item() == 3 and f.read(5) == 'alpha'",
        "repeat": 10,
    },
    "ten in a row that fail": {"attack": "1 / 0", "repeat": 10, "error": "ZeroDivisionError", "real": False},
    "ten in a row that die": {"attack": "import os; os.abort()", "repeat": 10, "error": True, "real": False},
    "interrupted": {"attack": "while True: pass", "interrupt": 1.0, "real": False},
    "interrupted in C": {"attack": "x = 7 ** (10 ** 9)", "interrupt": 1.0, "real": False},
    "interrupted while it ignores": {
        "attack": "import signal; signal.signal(2, signal.SIG_IGN)\nwhile True: pass",
        "interrupt": 1.0,
        "real": False,
    },
    "interrupted with threads and jobs": {
        "attack": "import threading\ndef f():\n    while True: pass\n"
        "for n in range(3): threading.Thread(target=f).start()\nf()",
        "interrupt": 1.0,
        "real": False,
    },
    "interrupted in a fit": {
        "attack": "n = 1\nwhile n: pass",
        "options": "--fit n",
        "interrupt": 1.0,
        "real": False,
    },
    "interrupted three times": {"attack": "while True: pass", "interrupt": 0.6, "repeat": 3, "real": False},
    "killed by libc": {
        "attack": "import ctypes, os; ctypes.CDLL(None).kill(os.getpid(), 9)",
        **{"error": "or a limit that the cell has set ran out, or somebody ended it", "real": False},
    },
    "a signal by libc": {
        "attack": "import ctypes, os; ctypes.CDLL(None).kill(os.getpid(), 15)",
        **{"error": "was ended by SIGTERM, from the cell", "real": False},
    },
    "clocks that go on as it sleeps": {
        "attack": """
            import time
            from datetime import date, datetime, timezone
            clocks = [time.time_ns, time.monotonic_ns, time.perf_counter_ns]
            dates = [datetime.now, lambda: datetime.now(tz=timezone.utc), datetime.today]
            before, began = [clock() for clock in clocks], [now() for now in dates]
            time.sleep(60)
            assert all(now() - then >= 60e9 for now, then in zip(clocks, before))
            assert all((now() - then).total_seconds() > 59.9 for now, then in zip(dates, began))
            class Mine(datetime): pass
            assert type(Mine.now()) is Mine and abs(time.time() - datetime.now().timestamp()) < 5
        """,
        **{"says": "fits: ", "limit": 6, "real": False},
    },
    "an out of memory of the cell's own": {
        "attack": "import torch; raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB')",
        **{"error": True, "says": "not out of memory: ", "real": False},
    },
}  # fmt: skip


def test_nothing_outside_changes(attack, play):
    play(attack)
