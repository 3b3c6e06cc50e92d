"""Attacks on what a prediction itself stands on: its folder, its answer, what its start needs; and
on what others of the machine see of a file that is only read."""

from __future__ import annotations

FOLDER = """
    import ctypes, os, pickle, tempfile
    libc = ctypes.CDLL(None)
    folder = os.path.dirname(tempfile.gettempdir())
"""
ANSWER = (
    FOLDER
    + """
    class Many:
        def __reduce__(self):
            return set, (range(10**8),)
    data = pickle.dumps(SENT)
    for number in range(3, 100):
        try:
            os.write(number, data)
        except OSError:
            pass
    with open(folder + '/answer', 'wb') as file:
        file.write(data)
    libc._exit(0)
"""
)
WATCHER = """
    import fcntl, os, threading, time
    os.link('a.txt', 'live_a.txt')
    live_failures, live_over = [], threading.Event()
    def live_work():
        with open('live_a.txt', 'r+') as f:
            live_begun.set()
            while not live_over.is_set():
                try:
                    fcntl.%(lock)s(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.%(lock)s(f, fcntl.LOCK_UN)
                except OSError as error:
                    live_failures.append(error)
                time.sleep(0.002)
    live_begun = threading.Event()
    live_thread = threading.Thread(target=live_work, daemon=True, name='live')
    live_thread.start()
    live_begun.wait()
"""
"""It opens the file once, by another name: a lock by one opening is that of a forked process, too,
while that has it open, and a file that is open for writing is another one in a prediction."""

UNSEEN = "live_over.set(); live_thread.join(); assert not live_failures"
COUNT = "\nfor number in range(1_000_000):\n    pass"


def answering(expression):
    """A cell that sends another answer, and ends."""
    return {"attack": ANSWER.replace("SENT", expression), "error": "the dry run", "real": False}


ATTACKS = {
    "its page cut short": {
        "attack": FOLDER
        + """
    for name in os.listdir(folder):
        libc.truncate(f'{folder}/{name}'.encode(), 0)
    for number in range(20_000_000):
        pass
    """,
        "real": False,
    },
    "an answer of many numbers": answering("(True, Many())"),
    "an answer that ends": answering("(False, SystemExit(3))"),
    "an answer that interrupts": answering("(False, KeyboardInterrupt())"),
    "an answer that is no error": answering("(False, 5)"),
    "an answer that is no outcome": answering("(True, 5)"),
    "no classes of ours": {
        "attack": """
            import sys
            for name in [name for name in sys.modules if name.startswith('gpumem_magic')]:
                del sys.modules[name]
            import gpumem_magic
        """,
        "error": "the dry run failed",
        "real": False,
    },
    "many descriptors": {
        "setup": """
            import os, resource
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
            many = [os.open('/dev/null', os.O_RDONLY) for _ in range(1100)]
        """,
        "attack": "os.close(many[0])",
    },
    "no descriptor left": {
        "setup": """
            import os, resource
            soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))
            many = []
            try:
                while True:
                    many.append(os.open('/dev/null', os.O_RDONLY))
            except OSError:
                os.close(many.pop())
        """,
        "attack": "os.close(many[0])",
        "after": """
            for number in many:
                os.close(number)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
        """,
        "error": "the system gives the dry run no process",
    },
    "no folder for temporary files": {
        "setup": """
            import tempfile
            before, tempfile.tempdir = tempfile.tempdir, '/absent'
        """,
        "attack": "x = 1",
        "after": "tempfile.tempdir = before",
        "error": "the system gives the dry run no process",
        "real": False,
    },
    "a lock of a file that is read": {
        "setup": WATCHER % {"lock": "flock"},
        "attack": "f = open('a.txt'); fcntl.flock(f, fcntl.LOCK_EX)" + COUNT,
        "after": UNSEEN,
    },
    "a lock of a part of a file that is read": {
        "setup": WATCHER % {"lock": "lockf"},
        "attack": "f = open('a.txt'); fcntl.lockf(f, fcntl.LOCK_SH)" + COUNT,
        "after": UNSEEN,
    },
    "a hint to the system about a file": {
        "setup": """
            import ctypes, fcntl
            libc, f = ctypes.CDLL(None), open('a.txt')
            libc.fcntl.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_void_p
        """,
        "attack": """
            g = libc.open(b'a.txt', 0)
            libc.fcntl(g, 1036, ctypes.addressof(ctypes.c_uint64(5)))
        """,
        "after": "assert fcntl.fcntl(f, 1035, bytes(8)) == bytes(8)",
    },
    "the generation of a file": {
        "setup": """
            import ctypes, fcntl
            libc, f = ctypes.CDLL(None), open('a.txt')
            try:
                before = fcntl.ioctl(f, 0x80087601, bytes(8))
            except OSError:
                before = None
        """,
        "attack": "libc.ioctl(libc.open(b'a.txt', 0), 0x40087602, bytes(8))",
        "after": "assert before is None or fcntl.ioctl(f, 0x80087601, bytes(8)) == before",
    },
}


def test_nothing_outside_changes(attack, play):
    play(attack)
